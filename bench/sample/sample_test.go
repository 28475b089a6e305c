package sample

import (
	"testing"
	"time"
)

func TestMedianAndSpread(t *testing.T) {
	for _, c := range []struct {
		r                 Rounds
		median, low, high float64
	}{
		{nil, 0, 0, 0},
		{Rounds{3}, 3, 3, 3},
		{Rounds{9, 1, 5}, 5, 1, 9},
		{Rounds{4, 1, 9, 2}, 3, 1, 9},
	} {
		low, high := c.r.Spread()
		if m := c.r.Median(); m != c.median || low != c.low || high != c.high {
			t.Errorf("%v: median %v spread %v–%v, want %v %v–%v", c.r, m, low, high, c.median, c.low, c.high)
		}
	}
	r := Rounds{9, 1, 5}
	if r.Median(); r[0] != 9 {
		t.Error("Median reorders the rounds")
	}
}

func TestBucketsHoldTheirValues(t *testing.T) {
	last := -1
	for _, ns := range []uint64{0, 1, 31, 32, 33, 63, 64, 65, 127, 128, 1000, 1 << 20, 1<<20 + 1<<16, 1<<40 - 1} {
		b := bucket(ns)
		if b < last {
			t.Errorf("bucket(%d) = %d, below the bucket %d of a smaller value", ns, b, last)
		}
		last = b
		low := lowest(b)
		if low > ns || ns-low > ns>>subBits {
			t.Errorf("value %d is in bucket %d, which starts at %d", ns, b, low)
		}
	}
	if b := bucket(1 << 62); b != last || b != len(Latency{}.buckets)-1 {
		t.Errorf("the longest duration is in bucket %d of %d", b, len(Latency{}.buckets))
	}
}

func TestPercentiles(t *testing.T) {
	var a, b Latency
	for i := 1; i <= 50; i++ {
		a.Add(time.Duration(i))
		b.Add(time.Duration(i + 50))
	}
	a.Merge(&b)
	for p, want := range map[float64]time.Duration{0: 1, 50: 51, 99: 100, 100: 100} {
		got := a.Percentile(p)
		if got > want || want-got > want>>subBits {
			t.Errorf("percentile %v = %d, want %d to 1/32", p, got, want)
		}
	}
	if got := new(Latency).Percentile(50); got != 0 {
		t.Errorf("percentile of nothing = %d", got)
	}
}

func TestAddDoesNotAllocate(t *testing.T) {
	l := new(Latency)
	if n := testing.AllocsPerRun(100, func() { l.Add(12345) }); n != 0 {
		t.Errorf("Add allocates %v times", n)
	}
}
