package block

import (
	"errors"
	"io"
	"log/slog"
	"sync"
	"syscall"
	"testing"
	"time"
)

// flushNode is a node that only flushes, as the test says.
type flushNode struct {
	Node
	info  Info
	mu    sync.Mutex
	calls int
	do    func(call int) error
}

func (n *flushNode) Info() *Info { return &n.info }

func (n *flushNode) Flush(*Req) error {
	n.mu.Lock()
	n.calls++
	call := n.calls
	n.mu.Unlock()
	return n.do(call)
}

func (n *flushNode) Pwritev(*Req, int64, Vec, Flags) error { return nil }

func (n *flushNode) Preadv(*Req, int64, Vec, Flags) error { return nil }

// flushUser opens n and returns what runs requests on it.
func flushUser(t *testing.T, n Node) (in *Instance, run func(f func(c *Child, rq *Req) error) error) {
	n.Info().SetLimits(ByteLimits())
	n.Info().SetSize(1 << 20)
	env := testEnv(t)
	env.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	in = NewInstance(n, "disk", env)
	c, err := in.NewChild("test", RoleRoot, PermAll, PermAll)
	if err != nil {
		t.Fatal(err)
	}
	q := NewQueue(env, NewQueueGroup())
	return in, func(f func(c *Child, rq *Req) error) error {
		rq := q.Begin()
		err := f(c, rq)
		q.End(rq, OpFlush, 0, err)
		return err
	}
}

func flush(c *Child, rq *Req) error { return c.Flush(rq) }

func writeFUA(c *Child, rq *Req) error { return c.Pwritev(rq, 0, Vec{make([]byte, 512)}, FUA) }

// awaitWaiting returns when n requests wait for a flush to end.
func awaitWaiting(in *Instance, n int) {
	for {
		in.flushes.mu.Lock()
		k := len(in.flushes.waiting)
		in.flushes.mu.Unlock()
		if k >= n {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// Flushes that come while one runs share the next: it starts after they came,
// and the one that runs may have started before what they are to make durable.
func TestFlushesShareTheNext(t *testing.T) {
	watch(t, time.Minute)
	started, release := make(chan int, 16), make(chan struct{})
	n := &flushNode{do: func(call int) error { started <- call; <-release; return nil }}
	in, run := flushUser(t, n)
	done := make(chan error, 16)
	go func() { done <- run(flush) }()
	<-started
	for i := range 10 {
		f := flush
		if i%2 == 0 {
			f = writeFUA
		}
		go func() { done <- run(f) }()
	}
	awaitWaiting(in, 10)
	close(release)
	for range 11 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if n.calls != 2 {
		t.Errorf("11 flushes made %d, want 2", n.calls)
	}
}

// The kernel reports a lost write to one of the flushes that run: another that
// ran at the same time must not answer that all is durable.
func TestFlushThatRacedALostWriteFails(t *testing.T) {
	watch(t, time.Minute)
	started, release := make(chan int, 16), make(chan struct{})
	n := &flushNode{do: func(call int) error {
		started <- call
		if call > 1 {
			return nil // the error has been reported
		}
		<-release
		return syscall.EIO
	}}
	in, run := flushUser(t, n)
	done := make(chan error, 2)
	go func() { done <- run(flush) }()
	<-started
	go func() { done <- run(flush) }()
	awaitWaiting(in, 1)
	close(release)
	for range 2 {
		if err := <-done; !errors.Is(err, syscall.EIO) {
			t.Errorf("flush: %v, want EIO", err)
		}
	}
}

// After a failed flush none succeeds any more, nor does FUA, which depends on
// the same promise; reads and plain writes go on. Running out of space, and
// not having the operation, lose nothing.
func TestFlushFailureIsRemembered(t *testing.T) {
	for errno, sticky := range map[syscall.Errno]bool{
		syscall.EIO: true, syscall.ENXIO: true, syscall.ENODEV: true,
		syscall.ENOSPC: false, syscall.EDQUOT: false, syscall.EINTR: false, syscall.EAGAIN: false, syscall.ENOTSUP: false,
	} {
		n := &flushNode{do: func(call int) error {
			if call == 1 {
				return errno
			}
			return nil
		}}
		_, run := flushUser(t, n)
		if err := run(writeFUA); !errors.Is(err, errno) {
			t.Errorf("%v: the first flush, of a FUA write: %v", errno, err)
		}
		for name, f := range map[string]func(c *Child, rq *Req) error{"flush": flush, "FUA": writeFUA} {
			if err := run(f); (err != nil) != sticky || sticky && !errors.Is(err, syscall.EIO) {
				t.Errorf("%v: %s afterwards: %v", errno, name, err)
			}
		}
		if err := run(func(c *Child, rq *Req) error { return c.Preadv(rq, 0, Vec{make([]byte, 1)}, 0) }); err != nil {
			t.Errorf("%v: read afterwards: %v", errno, err)
		}
		if err := run(func(c *Child, rq *Req) error { return c.Pwritev(rq, 0, Vec{make([]byte, 1)}, 0) }); err != nil {
			t.Errorf("%v: write afterwards: %v", errno, err)
		}
		if sticky && n.calls != 1 {
			t.Errorf("%v: the node was flushed %d times", errno, n.calls)
		}
	}
}

// fuaNode is a flushNode that writes durably by itself, the first time not.
type fuaNode struct {
	flushNode
	errno syscall.Errno
}

func (n *fuaNode) Pwritev(_ *Req, _ int64, _ Vec, f Flags) error {
	if f&FUA != 0 && n.errno != 0 {
		err := n.errno
		n.errno = 0
		return err
	}
	return nil
}

// A durable write that fails may have taken the report of a lost one with it,
// and ends durability for good. One that was refused has not, and neither has
// one whose caller's memory is gone: a virtual machine that cuts its memory
// short took the disk away from everybody who came later.
func TestDurableWriteFailureIsRemembered(t *testing.T) {
	for errno, sticky := range map[syscall.Errno]bool{
		syscall.EIO: true, syscall.ENXIO: true, syscall.EINVAL: false, syscall.EFAULT: false, syscall.EINTR: false,
	} {
		n := &fuaNode{errno: errno}
		n.do = func(int) error { return nil }
		n.info.WriteFlags = FUA
		_, run := flushUser(t, n)
		if err := run(writeFUA); !errors.Is(err, errno) {
			t.Errorf("%v: the durable write: %v", errno, err)
		}
		for name, f := range map[string]func(c *Child, rq *Req) error{"flush": flush, "FUA": writeFUA} {
			if err := run(f); (err != nil) != sticky || sticky && !errors.Is(err, syscall.EIO) {
				t.Errorf("%v: %s afterwards: %v", errno, name, err)
			}
		}
	}
}

// Many flushes and FUA writes at once end, each once.
func TestFlushStress(t *testing.T) {
	watch(t, soak(0)+time.Minute)
	n := &flushNode{do: func(int) error { return nil }}
	in, run := flushUser(t, n)
	end := time.Now().Add(soak(100 * time.Millisecond))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := 0; time.Now().Before(end); i++ {
				f := flush
				if i%3 == 0 {
					f = writeFUA
				}
				if err := run(f); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if len(in.flushes.waiting) != 0 || in.flushes.running {
		t.Error("a flush was left behind")
	}
}
