package block_test

import (
	"context"
	"errors"
	"syscall"
	"testing"

	"github.com/platter-storage/platter/block"
	bt "github.com/platter-storage/platter/block/blocktest"
)

// buffer is a buffer of a request without a context.
func buffer(t testing.TB, rq *block.Req, n int) []byte {
	t.Helper()
	b, err := rq.Buffer(n)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A request whose context ends leaves the wait that it is in, whatever it waits
// for; who waits behind it goes on, and nothing is left behind.
func TestRequestsThatWaitEndWithTheirContext(t *testing.T) {
	const block1 = 4096
	write := func(off int64, n int, fl block.Flags) func(c *bt.Client, rq *block.Req) error {
		return func(c *bt.Client, rq *block.Req) error {
			return c.Child.Pwritev(rq, off, block.Vec{bt.Memory(t, n)}, fl)
		}
	}
	for _, c := range []struct {
		what    string
		held    func(c *bt.Client, rq *block.Req) error // it is stuck in the storage
		stalled block.Op
		waits   func(c *bt.Client, rq *block.Req) error
		behind  func(c *bt.Client, rq *block.Req) error // waits for the one that gives up, or is nil
	}{
		{"a write behind a serialising one", write(0, block1, block.Serialising), block.OpWrite, write(0, block1, 0), nil},
		{"a read behind a serialising write", write(0, block1, block.Serialising), block.OpWrite,
			func(c *bt.Client, rq *block.Req) error {
				return c.Child.Preadv(rq, 0, block.Vec{bt.Memory(t, block1)}, 0)
			}, nil},
		{"a serialising write behind another", write(0, block1, block.Serialising), block.OpWrite, write(0, block1, block.Serialising), nil},
		{"a serialising write behind an ordinary one", write(0, block1, 0), block.OpWrite, write(0, 2*block1, block.Serialising), write(block1, block1, 0)},
		{"a truncation", write(0, block1, 0), block.OpWrite,
			func(c *bt.Client, rq *block.Req) error { return c.Child.Truncate(rq, 1<<20, block.PreallocOff) }, write(block1, block1, 0)},
		{"a discard", write(0, block1, block.Serialising), block.OpWrite,
			func(c *bt.Client, rq *block.Req) error { return c.Child.Discard(rq, 0, block1) }, nil},
		{"a block status", write(0, block1, block.Serialising), block.OpWrite,
			func(c *bt.Client, rq *block.Req) error { _, err := c.Child.BlockStatus(rq, 0, block1); return err }, nil},
		{"a flush behind another", func(c *bt.Client, rq *block.Req) error { return c.Child.Flush(rq) }, block.OpFlush,
			func(c *bt.Client, rq *block.Req) error { return c.Child.Flush(rq) }, nil},
	} {
		e, cl := emulate(t, bt.EmulatorConfig{Limits: blocks()})
		s := e.Stall(c.stalled, 0, 0, 1)
		run := func(f func(c *bt.Client, rq *block.Req) error, ctx context.Context) chan error {
			ended := make(chan error, 1)
			go func() {
				ended <- cl.Do(block.OpWrite, func(rq *block.Req) error {
					if ctx != nil {
						rq.SetContext(ctx)
					}
					return f(cl, rq)
				})
			}()
			return ended
		}
		held := run(c.held, nil)
		s.Held()
		ctx, cancel := context.WithCancel(context.Background())
		waits := run(c.waits, ctx)
		settle()
		var behind chan error
		if c.behind != nil {
			behind = run(c.behind, nil)
			settle()
		}
		cancel()
		waitFor(t, c.what, func() {
			if err := <-waits; !errors.Is(err, context.Canceled) || block.Errno(err) != syscall.ECANCELED {
				t.Errorf("%s: %v, want that it was given up", c.what, err)
			}
		})
		if behind != nil {
			waitFor(t, "who waits behind "+c.what, func() { must(t, <-behind) })
		}
		s.Release()
		must(t, <-held)
		waitFor(t, "everything after "+c.what, func() {
			must(t, cl.Truncate(1<<20))
			must(t, cl.Flush())
			must(t, cl.Write(0, block.FUA, bt.Memory(t, block1)))
		})
	}
}

// The same of a buffer. The one who came later gets his.
func TestWaitForABufferEndsWithTheContext(t *testing.T) {
	env := bt.NewEnvLimit(t, 1<<20)
	_, c := emulateIn(t, env, bt.EmulatorConfig{})
	must(t, c.Do(block.OpRead, func(rq *block.Req) error {
		b := buffer(t, rq, 1<<20)
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() {
			ended <- c.Do(block.OpRead, func(rq *block.Req) error {
				rq.SetContext(ctx)
				_, err := rq.Buffer(4096)
				return err
			})
		}()
		for env.Buffers.Stats().Waiting == 0 {
			settle()
		}
		cancel()
		waitFor(t, "a wait for a buffer", func() {
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("%v, want that it was given up", err)
			}
		})
		rq.Release(b)
		return nil
	}))
	// Grants and cancellations meet: each buffer is given back, and each token
	// belongs to its own wait.
	done := make(chan error, 4)
	for range cap(done) {
		go func() {
			for range 500 {
				err := c.Do(block.OpRead, func(rq *block.Req) error {
					ctx, cancel := context.WithCancel(context.Background())
					rq.SetContext(ctx)
					go cancel()
					b, err := rq.Buffer(1 << 20)
					if err == nil {
						rq.Release(b)
					}
					if errors.Is(err, context.Canceled) {
						err = nil
					}
					return err
				})
				if err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	waitFor(t, "waits that are cancelled", func() {
		for range cap(done) {
			must(t, <-done)
		}
	})
	if s := env.Buffers.Stats(); s.InUse != 0 || s.Waiting != 0 {
		t.Errorf("left behind: %d bytes in use, %d waiting", s.InUse, s.Waiting)
	}
}

// A flush that gave up before the storage below was asked is no failed flush:
// nothing is lost, and those who share it run it themselves.
func TestFlushThatGaveUpIsNotAFailedOne(t *testing.T) {
	_, below := emulate(t, bt.EmulatorConfig{})
	c := stack(t, below, 0, block.ByteLimits())
	drain(below) // flushes wait here, below the window
	ctx, cancel := context.WithCancel(context.Background())
	leader, follower := make(chan error, 1), make(chan error, 1)
	go func() {
		leader <- c.Do(block.OpFlush, func(rq *block.Req) error { rq.SetContext(ctx); return c.Child.Flush(rq) })
	}()
	settle()
	go func() { follower <- c.Flush() }()
	settle()
	cancel()
	waitFor(t, "the flush", func() {
		if err := <-leader; !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want that it was given up", err)
		}
	})
	settle()
	below.Child.Instance().Undrain()
	waitFor(t, "the flush that shares", func() { must(t, <-follower) })
	must(t, c.Flush())
	must(t, c.Write(0, block.FUA, make([]byte, 512)))
}
