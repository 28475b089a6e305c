// Package engine carries requests for bytes of open files to the kernel, many
// at a time. There is one seam, Queue, with four engines behind it: io_uring,
// Linux AIO ("native"), worker threads, and inline (on the caller, for files
// that never block). Shared puts a few queues at the service of any number of
// goroutines.
//
// A request is a rawio.IO. Engines do not finish short transfers, do not retry
// what the kernel refused, and do not check alignment: the file above does.
package engine

import (
	"errors"
	"fmt"
	"time"

	"github.com/platter-storage/platter/internal/rawio"
)

// Limits.
const (
	MaxDepth     = 4096 // requests in flight in one queue
	DefaultDepth = 128
	MaxVec       = 1024 // elements in one request; more is EINVAL
	MaxWatch     = 16   // descriptors that one queue watches
	MaxWorkers   = 64   // worker threads of one queue or Shared

	// maxTransfer is the most that Linux moves in one call: INT_MAX less a
	// page, rounded down. A longer element is a short transfer.
	maxTransfer = 0x7ffff000
)

// Kind names an engine.
type Kind uint8

// The engines.
const (
	Uring   Kind = iota // io_uring
	Native              // Linux AIO
	Threads             // worker threads with blocking calls
	Inline              // blocking calls on the caller: for files that never block
)

// String is the name that options and messages use.
func (k Kind) String() string {
	switch k {
	case Uring:
		return "io_uring"
	case Native:
		return "native"
	case Threads:
		return "threads"
	case Inline:
		return "inline"
	}
	return fmt.Sprintf("engine kind %d", uint8(k))
}

// Owner says who uses a queue.
type Owner uint8

const (
	// AnyThread: one goroutine at a time, on whatever thread it runs.
	AnyThread Owner = iota
	// Locked: one goroutine, locked to its thread (runtime.LockOSThread),
	// which makes, uses and closes the queue. io_uring then runs without
	// interrupting that thread, and waits of up to 5 ms keep the scheduler's
	// processor: who owns such a queue reserves one (package procs).
	Locked
)

// Config describes a queue.
type Config struct {
	// Depth is how many requests may be in flight: 1 to MaxDepth, 0 means
	// DefaultDepth.
	Depth int
	Owner Owner
	// Yields: a Locked owner has reserved no processor, and gives its own
	// back whenever it waits.
	Yields bool
	// Workers is how many threads an engine of threads may use: 1 to
	// MaxWorkers, 0 means as many as Depth, to at most 16.
	Workers int
}

// Queue is a place to submit requests and to collect them again. One owner at
// a time; not safe for concurrent use, Wake apart.
type Queue interface {
	// Prep takes a request in for the next Submit. False: the queue is full,
	// Submit and Reap first. It panics if io is in flight already.
	Prep(io *rawio.IO, f *File) bool
	// Submit hands everything prepared to the kernel in one call. Requests
	// that the kernel refuses are not lost: Reap delivers them with the error,
	// and Submit returns it too.
	Submit() error
	// Reap calls Done for at most limit requests that are complete (all, if
	// limit is not positive), returns how many, and never blocks. Done may
	// Prep on this queue but must not Submit or Reap.
	Reap(limit int) int
	// Wait blocks the thread until there is something to Reap, a watched
	// descriptor has been written, or timeout has passed (negative: no limit).
	// It returns an error only if waiting is impossible.
	Wait(timeout time.Duration) error
	// Wake makes Wait return, the one under way or else the next. It is the
	// one method that any goroutine may call, until Close is called.
	Wake()
	// Watch makes Wait return, and the next Reap call fired, when fd (an
	// eventfd or a pipe) is written. The queue never reads fd. It is level at
	// first (fd readable now: fired at once) and edge after that.
	Watch(fd int, fired func()) error
	// Unwatch ends Watch: fired will not be called again.
	Unwatch(fd int)
	// NotifyFd is an eventfd that is written when there is something to Reap,
	// or -1 where there are none. It stays the queue's.
	NotifyFd() int
	// Forget makes the queue let go of f, before f's descriptor is closed. A
	// ring may otherwise hold a registered file open, with its locks.
	Forget(f *File)
	Depth() int
	// InFlight is how many requests Prep has taken and Reap not delivered.
	InFlight() int
	// Reason is a sentence for people: which abilities this queue has.
	Reason() string
	// Stats are the queue's counters.
	Stats() Stats
	// Close waits for everything in flight, calls Done for it, and frees the
	// queue. Descriptors of files stay open.
	Close() error
}

// Stats are the counters of a queue.
type Stats struct {
	Syscalls uint64 // submissions to the kernel
	Retries  uint64 // submissions repeated because the kernel was short of something
	Refused  uint64 // requests that the kernel did not take
	Stale    uint64 // completions that belong to no request: never delivered
}

// ErrUnavailable is wrapped by the errors of New where an engine does not
// exist or is not permitted.
var ErrUnavailable = errors.New("engine not available")

// New makes a queue of the kind that was asked for, and no other.
func New(kind Kind, cfg Config) (Queue, error) {
	cfg, err := cfg.checked()
	if err != nil {
		return nil, err
	}
	switch kind {
	case Uring:
		return newUring(cfg)
	case Native:
		return newNative(cfg)
	case Threads:
		return newThreads(cfg)
	case Inline:
		return newInline(cfg)
	}
	return nil, fmt.Errorf("%v: %w: there is no such engine; use io_uring, native or threads", kind, ErrUnavailable)
}

// checked fills in defaults.
func (c Config) checked() (Config, error) {
	if c.Depth == 0 {
		c.Depth = DefaultDepth
	}
	if c.Depth < 1 || c.Depth > MaxDepth {
		return c, fmt.Errorf("queue depth %d is out of range: 1 to %d", c.Depth, MaxDepth)
	}
	if c.Workers == 0 {
		c.Workers = min(c.Depth, 16)
	}
	if c.Workers < 1 || c.Workers > MaxWorkers {
		return c, fmt.Errorf("%d worker threads are out of range: 1 to %d", c.Workers, MaxWorkers)
	}
	return c, nil
}
