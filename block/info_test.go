package block

import "testing"

// Who watches a size hears of each change, also through a node that passes the
// size of another on, and of nothing else.
func TestWatchSize(t *testing.T) {
	var below, above Info
	above.FollowSize(&below, 512)
	var heard []int64
	stop := above.WatchSize(func() { heard = append(heard, above.Size()) })
	other := 0
	defer below.WatchSize(func() { other++ })()
	for _, n := range []int64{1024, 1024, 4096, -1} {
		below.SetSize(n)
	}
	stop()
	below.SetSize(8192)
	if len(heard) != 3 || heard[0] != 512 || heard[1] != 3584 || heard[2] != 0 {
		t.Errorf("heard of the sizes %v, want 512, 3584 and 0", heard)
	}
	if other != 4 {
		t.Errorf("the other watcher was called %d times, want 4", other)
	}
}
