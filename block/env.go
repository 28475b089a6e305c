package block

import (
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/platter-storage/platter/internal/bufpool"
)

// Env is what a node may use of the world. Time, randomness and concurrency
// are given, not taken, so that a simulation can give its own.
type Env struct {
	// Now is a monotonic clock in nanoseconds.
	Now func() int64
	// Go runs f on a goroutine of its own.
	Go func(f func())
	// After runs f after ns nanoseconds unless stop is called first.
	After func(ns int64, f func()) (stop func() bool)
	// Rand is a random number.
	Rand func() uint64
	// Buffers is where bounce and padding buffers come from.
	Buffers *bufpool.Pool
	// FastLane is asked before each mapping, where set: a test declines at
	// random, so that both lanes are exercised alike.
	FastLane func() bool
	// Log is for people who operate the program.
	Log *slog.Logger

	// nested are the pools for requests that hold buffers already: the
	// first for those with one, and so on.
	nested struct {
		mu    sync.Mutex
		pools [maxHeld]atomic.Pointer[bufpool.Pool]
	}
}

// maxHeld is how many buffers one request can hold beside its first: one at
// each node of the longest chain.
const maxHeld = MaxOptionDepth

// nestedLimit bounds each nested pool in bytes: some requests' worth. Such
// memory is committed only when it is used.
const nestedLimit = 8 << 20

// pool is where a request takes its next buffer that holds some already.
func (e *Env) pool(held int) *bufpool.Pool {
	if held == 0 {
		return e.Buffers
	}
	at := &e.nested.pools[held-1]
	if p := at.Load(); p != nil {
		return p
	}
	e.nested.mu.Lock()
	defer e.nested.mu.Unlock()
	if at.Load() == nil {
		at.Store(bufpool.New(bufpool.Config{Limit: nestedLimit, Align: e.Buffers.Align()}))
	}
	return at.Load()
}

// CloseBuffers gives all buffer memory back. None may be in use.
func (e *Env) CloseBuffers() error {
	errs := []error{e.Buffers.Close()}
	for i := range e.nested.pools {
		if p := e.nested.pools[i].Swap(nil); p != nil {
			errs = append(errs, p.Close())
		}
	}
	return errors.Join(errs...)
}
