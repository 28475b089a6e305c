package blocktest

import (
	"math/rand/v2"
	"sync"
	"time"
)

// NewRand is a random source that goroutines may share.
func NewRand(seed uint64) func() uint64 {
	var mu sync.Mutex
	src := rand.NewPCG(seed, 0x9e3779b97f4a7c15)
	return func() uint64 {
		mu.Lock()
		defer mu.Unlock()
		return src.Uint64()
	}
}

func timer(ns int64, f func()) { time.AfterFunc(time.Duration(ns), f) }

// allZero reports whether b is all zeroes.
func allZero(b []byte) bool {
	for _, x := range b {
		if x != 0 {
			return false
		}
	}
	return true
}

// after is a channel that is closed in ns nanoseconds.
func after(ns int64) <-chan struct{} {
	c := make(chan struct{})
	timer(ns, func() { close(c) })
	return c
}
