package file

import (
	"bytes"
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/platter-storage/platter/block"
)

// TestF7NoPageIsWrittenBothWays: what reaches the storage when a file of
// unaligned size is written around its end.
func TestF7NoPageIsWrittenBothWays(t *testing.T) {
	for _, c := range []struct {
		size, from int64
		needs      needs
	}{
		{100000, 98304, needs{512, 512, 512, 512}},
		{98304 + 512, noTail, needs{512, 512, 512, 512}},
		{98304 + 512, 98304, needs{4096, 4096, 512, 512}},
		{98304, noTail, needs{4096, 4096, 512, 512}},
		{100000, noTail, needs{1, 1, 1, 1}},
		{3000, 0, needs{512, 512, 512, 512}},
		{100000, 65536, needs{65536, 65536, 512, 512}},
	} {
		f := newFake(c.needs, pattern(make([]byte, c.size), 3))
		f.dio = said(c.needs.mem, c.needs.write, c.needs.read)
		if c.needs.write == 1 {
			f.fs.magic = 0x6969
		}
		e := fakeEdge(t, f, config{})
		if from := e.n.tailFrom.Load(); from != c.from {
			t.Errorf("size %d, alignment %d: the tail begins at %d, want %d", c.size, c.needs.write, from, c.from)
		}
		model := bytes.Clone(f.content)
		for i, back := range []int64{1, 100, 511, 1000, 2999, 8192, 70000} {
			n := min(back, c.size)
			b := pattern(aligned(t, int(n), 0), i)
			copy(model[c.size-n:], b)
			if err := e.write(c.size-n, b); err != nil {
				t.Errorf("size %d, the last %d bytes: %v", c.size, n, err)
			}
		}
		if !bytes.Equal(f.content, model) || f.grown || int64(len(f.content)) != c.size {
			t.Errorf("size %d: other content, or a longer file: %d bytes", c.size, len(f.content))
		}
		for _, w := range f.writes {
			if w.cached && w.off < c.from || !w.cached && w.off+w.n > c.from && c.from != noTail {
				t.Errorf("size %d, tail from %d: a write of %d at %d, by the page cache %v", c.size, c.from, w.n, w.off, w.cached)
			}
		}
	}
}

// waitFor fails the test where f does not return soon.
func waitFor(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatalf("%s hangs", what)
	}
}

// TestTailWriteThatWaitsHoldsNobodyUp: one write to the tail is told to come
// again. Others to the tail, and a refresh, go on meanwhile, and the waiting one
// ends with its context.
func TestTailWriteThatWaitsHoldsNobodyUp(t *testing.T) {
	f := newFake(needs{512, 512, 512, 512}, pattern(make([]byte, 100000), 3))
	f.dio = said(512, 512, 512)
	e := fakeEdge(t, f, config{})
	waits := make(chan struct{}, 1)
	e.n.env.After = func(int64, func()) func() bool { waits <- struct{}{}; return func() bool { return true } }
	f.faults = func(w bool, off, n int64) (int, error, bool) { return 0, syscall.EAGAIN, w && off >= 99328 }
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- e.do(block.OpWrite, 672, func(rq *block.Req) error {
			rq.SetContext(ctx)
			return e.Pwritev(rq, 99328, block.Vec{make([]byte, 672)}, 0)
		})
	}()
	<-waits
	waitFor(t, "another write to the tail", func() {
		if err := e.write(98304, make([]byte, 512)); err != nil {
			t.Error(err)
		}
	})
	waitFor(t, "a refresh", func() {
		if err := e.n.refresh(); err != nil {
			t.Error(err)
		}
	})
	cancel()
	waitFor(t, "a write whose context has ended", func() {
		if err := <-ended; !errors.Is(err, syscall.EAGAIN) {
			t.Errorf("error %v, want the storage's", err)
		}
	})
}

// TestTailWriteStaysInsideAFileThatWasCut: while a write to the tail waits, the
// file is found shorter. It must not make it longer again.
func TestTailWriteStaysInsideAFileThatWasCut(t *testing.T) {
	f := newFake(needs{512, 512, 512, 512}, pattern(make([]byte, 100000), 3))
	f.dio = said(512, 512, 512)
	e := fakeEdge(t, f, config{})
	e.n.env.After = func(_ int64, g func()) func() bool {
		if err := errors.Join(f.setSize(50000), e.n.refresh()); err != nil {
			t.Error(err)
		}
		go g()
		return func() bool { return false }
	}
	f.faults = once(true, 0, syscall.EAGAIN)
	if err := e.write(99328, make([]byte, 672)); !errors.Is(err, syscall.EIO) {
		t.Errorf("error %v, want EIO", err)
	}
	if len(f.content) != 50000 {
		t.Errorf("the file has %d bytes, want the 50000 that it was cut to", len(f.content))
	}
}
