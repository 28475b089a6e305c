package engine

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/platter-storage/platter/internal/procs"
	"github.com/platter-storage/platter/internal/rawio"
)

// loop is a queue on a thread of its own, which others hand requests to. The
// thread alone submits and reaps: then the kernel completes requests without
// interrupting any other thread (measured against rings that every goroutine
// submits to: a third of their CPU at depth 32).
type loop struct {
	load   atomic.Int32 // requests taken and not done
	asleep atomic.Bool  // the loop is in Wait, or about to be
	waking atomic.Int32 // goroutines that wake it, or are about to: they use q
	reason string

	mu      sync.Mutex
	inbox   fifo
	forgets []forgetting
	closing bool

	// The loop's own.
	q       Queue
	backlog fifo
	ended   chan error
}

type forgetting struct {
	f    *File
	done chan struct{}
}

func startLoop(kind Kind, cfg Config) (*loop, error) {
	l := &loop{ended: make(chan error, 1)}
	cfg.Owner, cfg.Yields = Locked, !procs.Dedicated()
	started := make(chan error, 1)
	go l.run(kind, cfg, started)
	if err := <-started; err != nil {
		return nil, err
	}
	return l, nil
}

// submit puts a batch into the inbox.
func (l *loop) submit(ios []*rawio.IO, f *File) {
	l.load.Add(int32(len(ios)))
	l.mu.Lock()
	for _, io := range ios {
		post(io)
		l.inbox.push(entry{io, f})
	}
	l.mu.Unlock()
	l.wake()
}

// wake wakes the loop if it sleeps; one of those who come does. The loop may
// meanwhile have found by itself what it is woken for, be it the order to
// close: live waits for waking before the queue's descriptors are closed.
// Waking under mu would do too, but the woken thread would run into the lock.
func (l *loop) wake() {
	if !l.asleep.Load() {
		return
	}
	l.waking.Add(1)
	if l.asleep.CompareAndSwap(true, false) {
		l.q.Wake()
	}
	l.waking.Add(-1)
}

func (l *loop) run(kind Kind, cfg Config, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	q, err := New(kind, cfg)
	if err != nil {
		started <- err
		return
	}
	if !cfg.Yields {
		procs.Reserve(1)
		defer procs.Reserve(-1)
	}
	l.q, l.reason = q, q.Reason()
	started <- nil
	l.live()
}

// live serves, and closes the queue when nobody uses it any more: from the end
// of serve on asleep stays false, so that nobody new gets to wake.
func (l *loop) live() {
	l.serve()
	for l.waking.Load() > 0 {
		time.Sleep(10 * time.Microsecond)
	}
	l.ended <- l.q.Close()
}

// serve is the loop: take what has come in, submit it in one call, deliver
// what is complete, and sleep when there is neither.
func (l *loop) serve() {
	for {
		closing := l.takeIn()
		_ = l.q.Submit() // refused requests carry the error
		n := l.q.Reap(0)
		if n > 0 {
			l.load.Add(int32(-n))
			continue
		}
		if closing && l.q.InFlight() == 0 && l.backlog.n == 0 {
			return
		}
		if l.nothingNew() && l.q.Wait(-1) != nil {
			time.Sleep(time.Millisecond) // waiting is broken: go on without, slowly
		}
		l.asleep.Store(false)
	}
}

// takeIn prepares what is waiting, the oldest first, as far as there is room.
func (l *loop) takeIn() (closing bool) {
	l.prepare()
	if l.backlog.n > 0 {
		return false
	}
	l.mu.Lock()
	l.inbox, l.backlog = l.backlog, l.inbox
	forgets := l.forgets
	l.forgets = nil
	closing = l.closing
	l.mu.Unlock()
	for _, g := range forgets {
		l.q.Forget(g.f)
		close(g.done)
	}
	l.prepare()
	return closing
}

func (l *loop) prepare() {
	for l.backlog.n > 0 {
		e := l.backlog.peek()
		if !l.q.Prep(e.io, e.f) {
			return
		}
		l.backlog.pop()
	}
}

// nothingNew says that the loop may sleep. Whoever adds something after this
// look sees asleep and wakes it.
func (l *loop) nothingNew() bool {
	l.asleep.Store(true)
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.backlog.n > 0 || l.inbox.n == 0 && len(l.forgets) == 0 && !(l.closing && l.q.InFlight() == 0)
}

func (l *loop) forget(f *File) {
	done := make(chan struct{})
	l.mu.Lock()
	l.forgets = append(l.forgets, forgetting{f, done})
	l.mu.Unlock()
	l.wake()
	<-done
}

// close ends the loop when everything has been delivered.
func (l *loop) close() error {
	l.mu.Lock()
	l.closing = true
	l.mu.Unlock()
	l.wake()
	return <-l.ended
}
