package procs

import (
	"runtime"
	"testing"
)

// There are always two more processors than threads that keep one; what was
// raised stays, and is enough for the next ones.
func TestReserve(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for _, step := range []struct{ n, want int }{{1, 3}, {2, 5}, {-3, 5}, {3, 5}, {1, 6}, {-4, 6}} {
		Reserve(step.n)
		if got := runtime.GOMAXPROCS(0); got != step.want {
			t.Errorf("after %+d: %d, want %d", step.n, got, step.want)
		}
	}
}
