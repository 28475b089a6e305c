package queue

import (
	"testing"
	"time"
)

// A look that finds nothing halves the budget, down to none; a sleep that was
// short restores it, a long one does not.
func TestPollBudget(t *testing.T) {
	p := poller{most: 50_000, budget: 50_000}
	var seen []int64
	for range 7 {
		p.missed()
		seen = append(seen, p.limit(false))
	}
	want := []int64{25_000, 12_500, 6250, 3125, 1562, 0, 0}
	for i := range want {
		if seen[i] != want[i] {
			t.Fatalf("after misses: %v, want %v", seen, want)
		}
	}
	p.slept(50_000)
	if p.limit(false) != 0 {
		t.Error("a sleep as long as the budget restored it")
	}
	p.slept(49_999)
	if p.limit(false) != 50_000 {
		t.Errorf("a short sleep did not restore the budget: %d", p.limit(false))
	}
}

// Off is off, whatever happens.
func TestPollOff(t *testing.T) {
	var p poller
	p.slept(1)
	p.missed()
	p.took(10)
	if p.limit(false) != 0 || p.limit(true) != 0 {
		t.Error("a poller without a budget looks")
	}
}

// With requests in flight the device's own latency bounds the look, and a
// device slower than the budget is not looked out for.
func TestPollHeedsTheDevice(t *testing.T) {
	p := poller{most: 50_000, budget: 50_000}
	p.took(8000)
	if p.limit(true) != 10_000 || p.limit(false) != 50_000 {
		t.Errorf("limits %d in flight, %d idle; want 10000 and 50000", p.limit(true), p.limit(false))
	}
	for range 100 {
		p.took(int64(10 * time.Millisecond))
	}
	if p.limit(true) != 0 {
		t.Errorf("it looks %d ns out for a device of 10 ms", p.limit(true))
	}
	if p.limit(false) != 50_000 {
		t.Error("a slow device forbids looking out for the guest")
	}
}

// Where as many loops are busy as there are processors, looking takes from
// those who work.
func TestPollHeedsOthers(t *testing.T) {
	p := poller{most: 50_000, budget: 50_000}
	busyLoops.Add(processors)
	defer busyLoops.Add(-processors)
	if got := p.limit(false); got != crowdedPoll {
		t.Errorf("limit %d among as many busy loops as processors, want %d", got, crowdedPoll)
	}
}
