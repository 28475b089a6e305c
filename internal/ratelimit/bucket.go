// Package ratelimit says when a request may begin, under limits to requests and
// bytes a second. An export asks it before it begins a request, and the filter
// throttle before it passes one on.
//
// Nothing is ever promised: who is told to wait is not counted, and asks again.
// So a request that is given up, that waits long, or that another limit holds
// back takes nothing from anybody.
package ratelimit

import (
	"math"
	"sync"

	"github.com/platter-storage/platter/block"
)

// Limit is one limit: so many units (requests or bytes) a second in the long
// run, and what may come at once after a time of rest.
type Limit struct {
	// Avg is the rate, in units a second; 0 is no limit.
	Avg int64
	// Max is the rate at which a burst may run, for MaxLength seconds after a
	// rest; 0 is none: then a tenth of a second's worth may come at once.
	Max       int64
	MaxLength int64
}

// MaxValue bounds rates, and what a burst may hold: units, or units a second.
const MaxValue = 1e15

// Limits are all limits of a disk or of a group: in total, of reads and of
// writes.
type Limits struct {
	Requests, Bytes [3]Limit // by direction
	// RequestSize, in bytes, makes a longer request count as several; 0 makes
	// each count as one.
	RequestSize int64
}

// The directions of Limits.
const (
	Total = iota
	Reads
	Writes
)

// How long Admit lets wait at once, in nanoseconds. The least is far below what
// is saved up without a burst, so it costs no throughput, and keeps many who
// wait for a high rate from asking all the time. The most is when changed
// limits hold for those who wait already, at the latest.
const (
	minWaitNs = 1e6
	maxWaitNs = 1e9
)

// restNs is what is saved up without a burst: a tenth of a second's worth.
const restNs = 1e8

// meter is how much one rate has given ahead of its time.
type meter struct {
	dir     int     // Total, Reads or Writes
	bytes   bool    // units are bytes, else requests
	perUnit float64 // all times are in nanoseconds
	ahead   float64 // as far may be given in advance
	given   float64 // and so far has been
}

// Bucket admits requests as its limits allow.
type Bucket struct {
	mu     sync.Mutex
	limits Limits
	meters []meter
	asked  int64 // when it was asked last, on the askers' clock
	waits  uint64
}

// NewBucket makes a bucket that is full.
func NewBucket(l Limits) *Bucket {
	b := &Bucket{}
	b.Set(l)
	return b
}

// Set changes the limits; the bucket is full then. Who waits is heard under
// the new ones when he asks again.
func (b *Bucket) Set(l Limits) {
	var ms []meter
	for dir := range l.Requests {
		ms = appendMeters(ms, dir, false, l.Requests[dir])
		ms = appendMeters(ms, dir, true, l.Bytes[dir])
	}
	b.mu.Lock()
	b.limits, b.meters = l, ms
	b.mu.Unlock()
}

// Limits are those in force.
func (b *Bucket) Limits() Limits {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.limits
}

// Waits is how often somebody was told to wait.
func (b *Bucket) Waits() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waits
}

// appendMeters turns a limit into meters: one for the rate in the long run, and
// one for the rate of a burst that lasts.
func appendMeters(ms []meter, dir int, bytes bool, l Limit) []meter {
	if l.Avg == 0 {
		return ms
	}
	long := meter{dir: dir, bytes: bytes, perUnit: 1e9 / float64(l.Avg), ahead: restNs}
	if l.Max == 0 {
		return append(ms, long)
	}
	long.ahead = long.perUnit * float64(l.Max) * float64(l.MaxLength)
	ms = append(ms, long)
	if l.MaxLength > 1 {
		ms = append(ms, meter{dir: dir, bytes: bytes, perUnit: 1e9 / float64(l.Max), ahead: restNs})
	}
	return ms
}

// Admit asks for a request of n bytes at nowNs of a monotonic clock. 0 admits it
// and counts it; otherwise it is not counted, and waitNs is after how many
// nanoseconds to ask again. A request is admitted as a whole where every limit
// that holds for it has anything left, so each can be overdrawn by one request,
// and those after it wait the longer. Flushes and block status are free. It
// waits for nobody and allocates nothing.
func (b *Bucket) Admit(op block.Op, n, nowNs int64) (waitNs int64) {
	dir, counted := direction(op)
	if !counted {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.passLocked(nowNs)
	over := 0.0
	for i := range b.meters {
		if m := &b.meters[i]; m.applies(dir) {
			over = max(over, m.given-m.ahead)
		}
	}
	if over >= 1 { // less than a nanosecond is for the rounding
		b.waits++
		return int64(min(max(math.Ceil(over), minWaitNs), maxWaitNs))
	}
	b.giveLocked(dir, n, 1)
	return 0
}

// Return takes back a request that was admitted just now and does not begin:
// whoever had it will ask for it again.
func (b *Bucket) Return(op block.Op, n int64) {
	if dir, counted := direction(op); counted {
		b.mu.Lock()
		b.giveLocked(dir, n, -1)
		b.mu.Unlock()
	}
}

// passLocked lets the time since the last question pass. What was given is kept
// relative to that, because nanoseconds since a day long ago are too many for
// the precision of a float64.
func (b *Bucket) passLocked(nowNs int64) {
	if nowNs <= b.asked {
		return // the clocks of two who ask at once
	}
	passed := float64(nowNs - b.asked)
	b.asked = nowNs
	for i := range b.meters {
		m := &b.meters[i]
		m.given = max(m.given-passed, 0)
	}
}

// giveLocked counts a request, or with a sign of -1 takes it back.
func (b *Bucket) giveLocked(dir int, n int64, sign float64) {
	for i := range b.meters {
		if m := &b.meters[i]; m.applies(dir) {
			m.given = max(m.given+sign*b.units(m, n)*m.perUnit, 0)
		}
	}
}

// direction is that of the limits that hold for op, if any do.
func direction(op block.Op) (dir int, counted bool) {
	switch op {
	case block.OpRead:
		return Reads, true
	case block.OpWrite, block.OpZero, block.OpDiscard:
		return Writes, true
	}
	return 0, false
}

func (m *meter) applies(dir int) bool { return m.dir == Total || m.dir == dir }

// units is how much of m a request of n bytes takes.
func (b *Bucket) units(m *meter, n int64) float64 {
	switch {
	case m.bytes:
		return float64(n)
	case b.limits.RequestSize > 0 && n > b.limits.RequestSize:
		return float64(n) / float64(b.limits.RequestSize)
	}
	return 1
}
