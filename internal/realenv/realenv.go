// Package realenv gives nodes the real world: the operating system's clock,
// goroutines and randomness. Simulations give their own block.Env instead.
package realenv

import (
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/bufpool"
)

// New makes an environment with a buffer pool of at most bufLimit bytes; 0 is
// the pool's default.
func New(log *slog.Logger, bufLimit int64) *block.Env {
	start := time.Now()
	return &block.Env{
		Now: func() int64 { return int64(time.Since(start)) },
		Go:  func(f func()) { go f() },
		After: func(ns int64, f func()) func() bool {
			return time.AfterFunc(time.Duration(ns), f).Stop
		},
		Rand:    rand.Uint64,
		Buffers: bufpool.New(bufpool.Config{Limit: bufLimit}),
		Log:     log,
	}
}
