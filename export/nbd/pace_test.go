package nbd

import "testing"

// paced feeds a pace with times in nanoseconds, in order.
func paced(p *pace, times ...int64) {
	for _, ns := range times {
		p.took(ns, 4096, slowRead)
	}
}

func quickOnes(n int) []int64 { return make([]int64, n) }

// One slow request is forgiven, a second before the first is earned back is
// not, and those kept from the reader double while it stays so.
func TestPaceForgivesOne(t *testing.T) {
	var p pace
	if paced(&p, 3_000_000); !p.inPlace() {
		t.Error("one slow request, and the next is kept from the reader")
	}
	paced(&p, quickOnes(3_000_000/earnedNs)...)
	if paced(&p, 3_000_000); !p.inPlace() {
		t.Error("a slow request was earned back, and the next one is not forgiven")
	}
	paced(&p, quickOnes(3_000_000/earnedNs-1)...)
	if paced(&p, 200_000); p.inPlace() {
		t.Error("two slow requests, and the next is served in place")
	}
	if p.avoid != minAvoid-1 {
		t.Errorf("%d requests are yet to be kept from the reader, not %d", p.avoid, minAvoid-1)
	}
	for p.avoid > 0 {
		p.inPlace()
	}
	if paced(&p, 200_000); p.avoid != 2*minAvoid {
		t.Errorf("%d requests are kept from the reader after the third slow one, not %d", p.avoid, 2*minAvoid)
	}
}

// A request that took a second is forgiven no later than after maxForgive.
func TestPaceForgivesInTheEnd(t *testing.T) {
	var p pace
	paced(&p, 1_000_000_000)
	paced(&p, quickOnes(maxForgive)...)
	if p.due != 0 {
		t.Errorf("%d quick requests are still due", p.due)
	}
}
