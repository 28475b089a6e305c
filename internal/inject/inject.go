// Package inject decides when a fault strikes: at which operations, where, at
// which time of several, and how likely. The filter that ships faults and the
// nodes that tests use share it.
package inject

import (
	"math"
	"sync"
)

// Rule says which requests it strikes. Its zero value strikes all.
type Rule struct {
	// Ops has a bit for each operation, 1<<op; 0 means all.
	Ops uint32
	// Off and Len bound the range that a request must touch; Len 0 means to
	// the end.
	Off, Len int64
	// Nth is the first of the requests that match to be struck, counted from
	// 1; 0 means the first.
	Nth uint64
	// Times is how many are struck; 0 means all.
	Times uint64
	// Chance is the probability in 0..1 with which one is struck that would
	// be; 0 means always.
	Chance float64

	mu    sync.Mutex
	seen  uint64
	fired uint64
}

// Strikes reports whether the rule strikes a request, and counts it. An
// operation without a range (flush) has an empty one at 0 and matches any.
func (r *Rule) Strikes(op uint8, off, n int64, rand func() uint64) bool {
	if !r.Concerns(op, off, n) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen++
	if r.seen < r.Nth || r.Times != 0 && r.fired >= r.Times {
		return false
	}
	if r.Chance != 0 && float64(rand()>>11)/(1<<53) >= r.Chance {
		return false
	}
	r.fired++
	return true
}

// Concerns reports whether the rule might strike such a request, at some time.
func (r *Rule) Concerns(op uint8, off, n int64) bool {
	return (r.Ops == 0 || r.Ops&(1<<op) != 0) && (n <= 0 || r.touches(off, n))
}

// touches compares without overflow: Off+Len may be beyond the largest int64.
func (r *Rule) touches(off, n int64) bool {
	end := int64(math.MaxInt64)
	if r.Len != 0 && r.Len < end-r.Off {
		end = r.Off + r.Len
	}
	return off < end && r.Off < off+n
}

// Fired is how many requests were struck.
func (r *Rule) Fired() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fired
}
