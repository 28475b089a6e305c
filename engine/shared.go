package engine

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/platter-storage/platter/internal/rawio"
)

// Limits of Shared.
const (
	// MaxLoops is how many queues one Shared has at most.
	MaxLoops = 4
	// loopFill is how many requests a loop has before the next one is used:
	// few busy loops make larger batches than many.
	loopFill = 64
)

// inlineCalls is how many goroutines may be within Do before the next one goes
// through a queue. A call on the caller's own thread costs less while they are
// few, a shared queue when they are many; about eight cost the same.
const inlineCalls = 8

// Shared is an engine for any number of goroutines: a few loops, each with a
// queue on a thread of its own, or a set of worker threads, or none of it for
// files that never block. It is safe for concurrent use.
type Shared struct {
	kind    Kind
	reason  string
	doing   atomic.Int32 // goroutines within Do
	inline  int32        // of them, how many may call the kernel themselves
	loops   []*loop
	workers *workers
}

// NewShared makes an engine of the kind that was asked for. cfg.Depth is
// for each of its queues, cfg.Owner is not used.
func NewShared(kind Kind, cfg Config) (*Shared, error) {
	return newShared(kind, cfg, inlineCalls)
}

// newShared is NewShared with a number of inline calls for rings.
func newShared(kind Kind, cfg Config, inline int32) (*Shared, error) {
	cfg, err := cfg.checked()
	if err != nil {
		return nil, err
	}
	s := &Shared{kind: kind, inline: inline}
	switch kind {
	case Inline:
		s.reason = "inline: calls on the caller's thread, for files that never block"
	case Threads:
		s.inline = int32(cfg.Workers)
		s.workers = newWorkers(cfg.Workers, cfg.Depth, finish)
		s.reason = fmt.Sprintf("threads: up to %d calls on the callers' threads, and %d worker threads", s.inline, cfg.Workers)
	default:
		for range min(max(runtime.GOMAXPROCS(0)/4, 1), MaxLoops) {
			l, err := startLoop(kind, cfg)
			if err != nil {
				_ = s.Close()
				return nil, err
			}
			s.loops = append(s.loops, l)
		}
		s.reason = fmt.Sprintf("%d loops of %s; up to %d calls on the callers' threads", len(s.loops), s.loops[0].reason, s.inline)
	}
	return s, nil
}

// Kind is the engine's kind.
func (s *Shared) Kind() Kind { return s.kind }

// Reason is a sentence for people: which abilities this engine has.
func (s *Shared) Reason() string { return s.reason }

// Submit takes a batch of requests to f and never blocks: all of it goes to
// one queue, and what finds no room there follows in order as completions
// come. Done is called on a goroutine of the engine's, with no lock held, and
// may Submit; the Inline engine has none, and calls Done before Submit
// returns. A goroutine with a single request and nothing else to do should Do
// it: that costs two wake-ups less.
func (s *Shared) Submit(f *File, ios []*rawio.IO) {
	switch {
	case s.workers != nil:
		s.workers.pushAll(ios, f)
	case s.loops != nil:
		s.pick().submit(ios, f)
	default:
		c := callers.Get().(*caller)
		for _, io := range ios {
			begin(io)
			c.call(io, f)
			finish(io)
		}
		callers.Put(c)
	}
}

var callers = sync.Pool{New: func() any { return new(caller) }}

// pick is the first loop that is not full of work, or else the least loaded.
func (s *Shared) pick() *loop {
	best := s.loops[0]
	for _, l := range s.loops {
		n := l.load.Load()
		if n < loopFill {
			return l
		}
		if n < best.load.Load() {
			best = l
		}
	}
	return best
}

// Parker is where a goroutine waits for a request of Do or Queued.
// One goroutine at a time; it is meant to be kept with the request.
type Parker struct {
	caller caller
	ended  chan struct{}
	done   func(*rawio.IO)
	one    [1]*rawio.IO
}

// NewParker makes one.
func NewParker() *Parker {
	p := &Parker{ended: make(chan struct{}, 1)}
	p.done = func(*rawio.IO) { p.ended <- struct{}{} }
	return p
}

// Do runs io and waits for it, and returns io.Err. It uses io.Done. While few
// goroutines are within Do, each calls the kernel itself, because nothing is
// cheaper; from then on they share queues. What lies in the page cache is
// copied from there at once.
func (s *Shared) Do(f *File, io *rawio.IO, p *Parker) error {
	if f.flags&Direct == 0 && io.Kind == rawio.Read && p.caller.now(io, f) {
		return io.Err
	}
	if s.kind == Inline {
		return p.call(f, io)
	}
	if s.doing.Add(1) <= s.inline {
		_ = p.call(f, io)
	} else if f.flags&Direct != 0 || !p.caller.now(io, f) {
		_ = s.Queued(f, io, p)
	}
	s.doing.Add(-1)
	return io.Err
}

// Queued is Do for who wants a queue to carry the request whatever it costs.
func (s *Shared) Queued(f *File, io *rawio.IO, p *Parker) error {
	io.Done, p.one[0] = p.done, io
	s.Submit(f, p.one[:])
	<-p.ended
	return io.Err
}

func (p *Parker) call(f *File, io *rawio.IO) error {
	begin(io)
	p.caller.call(io, f)
	io.Engine = 0
	return io.Err
}

// Forget makes every queue let go of f, before its descriptor is closed, and
// waits until they have.
func (s *Shared) Forget(f *File) {
	if f.flags&Registrable == 0 {
		return
	}
	for _, l := range s.loops {
		l.forget(f)
	}
}

// Close waits for everything in flight. Nothing may be submitted any more.
func (s *Shared) Close() error {
	var err error
	for _, l := range s.loops {
		if e := l.close(); err == nil {
			err = e
		}
	}
	if s.workers != nil {
		s.workers.close()
	}
	return err
}
