package throttle

import (
	"math"
	"sync"
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

// Limits are all limits of a group: in total, of reads and of writes.
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

// meter spaces units out (the generic cell rate algorithm): due is when the
// next unit would come if all came at the rate, and units may come ahead of that
// by as much as is saved up.
type meter struct {
	dir     int  // Total, Reads or Writes
	bytes   bool // units are bytes, else requests
	perUnit float64
	ahead   float64
	due     float64 // on the environment's clock; all times are in nanoseconds
}

// start is when units could begin. What is more than a burst may begin when all
// is saved up.
func (m *meter) start(units, now float64) float64 {
	return max(m.due, now) + min(units*m.perUnit, m.ahead) - m.ahead
}

func (m *meter) take(units, at float64) { m.due = max(m.due, at) + units*m.perUnit }

// Bucket admits requests as its limits allow. Those who wait have their turn in
// the order in which they asked: each is given its time when it asks.
type Bucket struct {
	mu     sync.Mutex
	limits Limits
	meters []meter
}

// NewBucket makes a bucket that is full.
func NewBucket(l Limits) *Bucket {
	b := &Bucket{}
	b.Set(l)
	return b
}

// Set changes the limits. Who waits already keeps the time that was given.
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

// appendMeters turns a limit into meters: one for the rate in the long run, and
// one for the rate of a burst that lasts.
func appendMeters(ms []meter, dir int, bytes bool, l Limit) []meter {
	if l.Avg == 0 {
		return ms
	}
	add := func(rate, burst int64) {
		per := 1e9 / float64(rate)
		ms = append(ms, meter{dir: dir, bytes: bytes, perUnit: per, ahead: per * float64(max(burst, 1))})
	}
	if l.Max == 0 {
		add(l.Avg, l.Avg/10)
		return ms
	}
	add(l.Avg, l.Max*l.MaxLength)
	if l.MaxLength > 1 {
		add(l.Max, l.Max/10)
	}
	return ms
}

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

// startLocked is when a request could begin.
func (b *Bucket) startLocked(dir int, n int64, now float64) float64 {
	at := now
	for i := range b.meters {
		if m := &b.meters[i]; m.dir == Total || m.dir == dir {
			at = max(at, m.start(b.units(m, n), now))
		}
	}
	return at
}

func (b *Bucket) takeLocked(dir int, n int64, at float64) {
	for i := range b.meters {
		if m := &b.meters[i]; m.dir == Total || m.dir == dir {
			m.take(b.units(m, n), at)
		}
	}
}

// TryTake admits a request of n bytes now, or not at all. It does not wait, not
// even for another who asks.
func (b *Bucket) TryTake(dir int, n, nowNs int64) bool {
	if !b.mu.TryLock() {
		return false
	}
	defer b.mu.Unlock()
	now := float64(nowNs)
	if b.startLocked(dir, n, now) > now {
		return false
	}
	b.takeLocked(dir, n, now)
	return true
}

// Take admits a request of n bytes after waitNs nanoseconds.
func (b *Bucket) Take(dir int, n, nowNs int64) (waitNs int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	at := b.startLocked(dir, n, float64(nowNs))
	b.takeLocked(dir, n, at)
	return int64(min(math.Ceil(at-float64(nowNs)), math.MaxInt64/2))
}

// Refund takes back a request that was admitted and did not happen.
func (b *Bucket) Refund(dir int, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.meters {
		if m := &b.meters[i]; m.dir == Total || m.dir == dir {
			m.due -= b.units(m, n) * m.perUnit
		}
	}
}
