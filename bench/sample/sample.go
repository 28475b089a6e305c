// Package sample sums up repeated measurements: median and spread of a few
// rounds, and percentiles of many latencies in little memory.
package sample

import (
	"math/bits"
	"slices"
	"time"
)

// Rounds are the values of one measurement, a round each.
type Rounds []float64

// Median is the middle value, or the mean of the two middle ones; 0 of none.
func (r Rounds) Median() float64 {
	if len(r) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(r))
	mid := len(s) / 2
	if len(s)%2 == 1 {
		return s[mid]
	}
	return (s[mid-1] + s[mid]) / 2
}

// Spread is the smallest and the largest value; 0, 0 of none.
func (r Rounds) Spread() (low, high float64) {
	if len(r) == 0 {
		return 0, 0
	}
	return slices.Min(r), slices.Max(r)
}

// subBits is how finely a Latency tells values apart: to 1/32, or 3 %.
const subBits = 5

// Latency counts durations in buckets whose width grows with the value, up to
// about 18 minutes; longer ones count as that.
type Latency struct {
	buckets [(40 - subBits + 1) << subBits]uint64
	n       uint64
}

// Add counts d.
func (l *Latency) Add(d time.Duration) {
	l.buckets[bucket(uint64(max(d, 0)))]++
	l.n++
}

// Merge adds what other has counted.
func (l *Latency) Merge(other *Latency) {
	for i, n := range other.buckets {
		l.buckets[i] += n
	}
	l.n += other.n
}

// Percentile is the duration that p percent of those counted do not exceed, to
// within a bucket's width; 0 if none was counted.
func (l *Latency) Percentile(p float64) time.Duration {
	if l.n == 0 {
		return 0
	}
	rank := uint64(float64(l.n) * p / 100)
	seen := uint64(0)
	for i, n := range l.buckets {
		seen += n
		if seen > rank || seen == l.n {
			return time.Duration(lowest(i))
		}
	}
	return 0
}

// bucket numbers values: exactly below 1<<subBits, and above by the position
// of the highest bit and the subBits bits after it.
func bucket(ns uint64) int {
	ns = min(ns, 1<<40-1)
	if ns < 1<<subBits {
		return int(ns)
	}
	shift := bits.Len64(ns) - subBits - 1
	return shift<<subBits + int(ns>>shift)
}

// lowest is the smallest value of a bucket.
func lowest(i int) uint64 {
	if i < 2<<subBits {
		return uint64(i)
	}
	shift := i>>subBits - 1
	return uint64(i-shift<<subBits) << shift
}
