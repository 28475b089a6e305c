package block

import (
	"log/slog"

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
}
