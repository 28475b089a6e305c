package block

import (
	"sync"
	"testing"
)

// Every latency falls into the bucket whose bounds are around it, the last one
// takes what is longer.
func TestHistogramBuckets(t *testing.T) {
	for _, ns := range []int64{-1, 0, 255, 256, 319, 320, 511, 512, 1000, 1 << 20, 1<<20 + 1, 1<<36 - 1} {
		i := histBucket(ns)
		if ns >= HistUpper(i) || i > 0 && ns < HistUpper(i-1) {
			t.Errorf("%d ns is in bucket %d, which ends at %d", ns, i, HistUpper(i))
		}
	}
	if i := histBucket(1 << 36); i != HistBuckets-1 {
		t.Errorf("2^36 ns is in bucket %d of %d", i, HistBuckets)
	}
	if i := histBucket(1<<63 - 1); i != HistBuckets-1 {
		t.Errorf("the longest time is in bucket %d of %d", i, HistBuckets)
	}
	for i := 1; i < HistBuckets; i++ {
		if HistUpper(i) <= HistUpper(i-1) || histBucket(HistUpper(i-1)) != i {
			t.Errorf("bucket %d: from %d to %d", i, HistUpper(i-1), HistUpper(i))
		}
	}
}

// A bucket counts on where 32 bits would begin again at 0.
func TestHistogramDoesNotWrap(t *testing.T) {
	env := testEnv(t)
	g := NewQueueGroup()
	q := NewQueue(env, g)
	q.c.hist[OpRead][0].Store(1<<32 - 1)
	q.c.hist[OpRead][0].Add(1)
	q.Close()
	if n := g.Stats().Hist[OpRead][0]; n != 1<<32 {
		t.Errorf("2^32 requests are counted as %d", n)
	}
}

func TestQuantile(t *testing.T) {
	var s Stats
	if s.Quantile(OpRead, 0.5) != 0 {
		t.Error("no requests have a latency")
	}
	s.Hist[OpRead][histBucket(1000)] = 90
	s.Hist[OpRead][histBucket(1<<20)] = 10
	for q, ns := range map[float64]int64{0: 1000, 0.5: 1000, 0.9: 1000, 0.91: 1 << 20, 0.999: 1 << 20, 1: 1 << 20} {
		if got, want := s.Quantile(OpRead, q), HistUpper(histBucket(ns)); got != want {
			t.Errorf("quantile %v is %d, want %d", q, got, want)
		}
	}
}

// What a queue counted stays when it has ended, also while others count.
func TestQueuesThatEndKeepTheirCounts(t *testing.T) {
	env, g := testEnv(t), NewQueueGroup()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				q := NewQueue(env, g)
				rq := q.Begin()
				rq.Took(PathSplit | PathFast)
				q.End(rq, OpWrite, 512, errNegative)
				q.Close()
				q.Close()
			}
		})
	}
	wg.Wait()
	s := g.Stats()
	if s.Requests[OpWrite] != 400 || s.Bytes[OpWrite] != 400*512 || s.Errors[OpWrite] != 400 || s.Path(PathSplit) != 400 || s.Path(PathFast) != 400 || s.Path(PathRMW) != 0 {
		t.Errorf("400 requests are counted as %d, %d bytes, %d errors, ways %v", s.Requests[OpWrite], s.Bytes[OpWrite], s.Errors[OpWrite], s.Paths)
	}
	if len(g.live) != 0 {
		t.Errorf("%d queues are live", len(g.live))
	}
}

// A queue has MaxReqs request objects and not one more; those that come back
// are used again.
func TestQueueObjectsAreBounded(t *testing.T) {
	q := NewQueue(testEnv(t), NewQueueGroup())
	var out []*Req
	for range MaxReqs {
		rq := q.Begin()
		if rq == nil {
			t.Fatalf("none left after %d", len(out))
		}
		out = append(out, rq)
	}
	if q.Begin() != nil {
		t.Error("one more than MaxReqs")
	}
	q.End(out[7], OpRead, 0, nil)
	if rq := q.Begin(); rq != out[7] {
		t.Error("the object that came back was not used again")
	}
}

// Every way and operation has a name of its own.
func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for i := range NumPaths {
		if n := PathName(i); n == "" || seen[n] {
			t.Errorf("way %d is called %q", i, n)
		}
		seen[PathName(i)] = true
	}
	for op := range NumOps {
		if op.String() == "" || op.String() == "unknown" {
			t.Errorf("operation %d has no name", op)
		}
	}
}
