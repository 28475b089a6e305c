package block_test

import (
	"errors"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/platter-storage/platter/block"
	bt "github.com/platter-storage/platter/block/blocktest"
)

// settle gives goroutines time to reach where they wait. Where it is too short
// a test still passes, but for another reason.
func settle() { time.Sleep(20 * time.Millisecond) }

// waitFor fails the test if f does not return soon.
func waitFor(t testing.TB, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatalf("%s hangs", what)
	}
}

// drained runs f between drain and undrain.
func drain(c *bt.Client) {
	_ = c.Do(block.OpFlush, func(rq *block.Req) error { c.Child.Instance().Drain(rq); return nil })
}

// A drain waits for requests that are stuck in the storage, in either lane,
// and is done as soon as they are. Meanwhile nothing new gets in.
func TestDrainWaitsForStalledRequests(t *testing.T) {
	for _, fast := range []bool{false, true} {
		e, c := emulate(t, bt.EmulatorConfig{Limits: sectors(), Fast: true})
		s := e.Stall(block.OpRead, 0, 512, 1)
		mem := bt.Memory(t, 512)
		read := make(chan error, 1)
		go func() {
			if !fast {
				read <- c.Read(0, mem)
				return
			}
			ok, err := c.ReadFast(0, mem)
			if !ok {
				err = errors.New("the fast lane declined")
			}
			read <- err
		}()
		s.Held()
		var drained atomic.Bool
		done := make(chan struct{})
		go func() { drain(c); drained.Store(true); close(done) }()
		settle()
		if drained.Load() {
			t.Errorf("fast %v: drained with a request in flight", fast)
		}
		write := make(chan error, 1)
		go func() { write <- c.Write(4096, 0, make([]byte, 512)) }()
		settle()
		s.Release()
		waitFor(t, "drain", func() { <-done })
		must(t, <-read)
		if n := e.Count(block.OpWrite); n != 0 {
			t.Errorf("fast %v: a write got in during a drain", fast)
		}
		c.Child.Instance().Undrain()
		must(t, <-write)
	}
}

// Drains nest: requests get in after the last has ended.
func TestDrainsNest(t *testing.T) {
	_, c := emulate(t, bt.EmulatorConfig{})
	in := c.Child.Instance()
	drain(c)
	waitFor(t, "a drain of a drained node", func() { drain(c) })
	in.Undrain()
	read := make(chan error, 1)
	go func() { read <- c.Read(0, make([]byte, 1)) }()
	select {
	case err := <-read:
		t.Errorf("a read got in while a drain lasted: %v", err)
		read <- nil
	case <-time.After(20 * time.Millisecond):
	}
	in.Undrain()
	waitFor(t, "read after the last drain", func() { must(t, <-read) })
}

// Closing waits like a drain, and needs all edges closed.
func TestCloseNeedsEdgesClosed(t *testing.T) {
	e := bt.NewEmulator(t, bt.EmulatorConfig{Size: 4096})
	in := block.NewInstance(e, "disk", bt.NewEnv(t))
	child, err := in.NewChild("user", block.RoleRoot, block.PermAll, block.PermAll)
	must(t, err)
	c := bt.NewClient(t, child)
	closing := func() error { return c.Do(block.OpFlush, in.Close) }
	if err := closing(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("closing with an edge: %v", err)
	}
	child.Close()
	must(t, closing())
	must(t, closing())
	if _, err := in.NewChild("late", block.RoleRoot, block.PermRead, block.PermAll); !errors.Is(err, syscall.ESHUTDOWN) {
		t.Errorf("an edge to a closed node: %v", err)
	}
}

// Truncate runs alone: it waits for writes in flight, and later ones wait for
// it. The emulator asserts it.
func TestTruncateAgainstWritesInFlight(t *testing.T) {
	e, c := emulate(t, bt.EmulatorConfig{Limits: sectors(), Fast: true})
	s := e.Stall(block.OpWrite, 0, 0, 2)
	done := make(chan error, 8)
	one, two := bt.Memory(t, 512), bt.Memory(t, 512)
	go func() { done <- c.Write(0, 0, one) }()
	go func() {
		_, err := c.WriteFast(4096, 0, two)
		done <- err
	}()
	s.Held()
	s.Held()
	go func() { done <- c.Truncate(512 << 10) }()
	settle()
	go func() { done <- c.Write(8192, 0, make([]byte, 512)) }()
	go func() { done <- c.Flush() }()
	settle()
	if e.Count(block.OpTruncate) != 0 {
		t.Error("truncate did not wait")
	}
	s.Release()
	waitFor(t, "truncate", func() {
		for range 5 {
			must(t, <-done)
		}
	})
	if n := c.Child.Size(); n != 512<<10 {
		t.Errorf("size %d", n)
	}
}

// Requests that waited while the disk shrank are beyond its end when their
// turn comes, however they looked when they came.
func TestF17ShrinkWhileRequestsWait(t *testing.T) {
	e, c := emulate(t, bt.EmulatorConfig{Limits: blocks()})
	s := e.Stall(block.OpWrite, 0, 4096, 1)
	first, cut := make(chan error, 1), make(chan error, 1)
	go func() { first <- c.Write(0, 0, bt.Memory(t, 4096)) }()
	s.Held()
	go func() { cut <- c.Truncate(64 << 10) }()
	settle()
	late := map[string]func() error{
		"aligned write":   func() error { return c.Write(512<<10, 0, make([]byte, 4096)) },
		"unaligned write": func() error { return c.Write(512<<10+1, 0, make([]byte, 5000)) },
		"write across":    func() error { return c.Write(60<<10, 0, make([]byte, 8192)) },
		"aligned read":    func() error { return c.Read(512<<10, make([]byte, 4096)) },
		"unaligned read":  func() error { return c.Read(512<<10+1, make([]byte, 100)) },
		"write zeroes":    func() error { return c.Zero(512<<10+1, 5000, 0) },
		"discard":         func() error { return c.Discard(512<<10, 8192) },
		"status":          func() error { _, err := c.Status(512<<10, 8192); return err },
	}
	type result struct {
		name string
		err  error
	}
	done := make(chan result, len(late))
	for name, f := range late {
		go func() { done <- result{name, f()} }()
	}
	settle()
	s.Release()
	must(t, <-first)
	must(t, <-cut)
	for range late {
		if r := <-done; !errors.Is(r.err, syscall.EINVAL) {
			t.Errorf("%s beyond the new end: %v", r.name, r.err)
		}
	}
}

// A write that ended at the old, unaligned size needs padding once the disk
// has grown while it waited.
func TestF17GrowWhileTailWriteWaits(t *testing.T) {
	const size = 1<<20 - 3000
	for _, op := range []block.Op{block.OpWrite, block.OpZero} {
		e, c := emulate(t, bt.EmulatorConfig{Limits: blocks(), Size: size})
		old := bt.Pattern(make([]byte, size), 1)
		e.Fill(old)
		s := e.Stall(block.OpWrite, 0, 4096, 1)
		done := make(chan error, 3)
		go func() { done <- c.Write(0, 0, old[:4096]) }()
		s.Held()
		go func() { done <- c.Truncate(2 << 20) }()
		settle()
		off := int64(size &^ 4095)
		b := bt.Pattern(make([]byte, size-off), 2)
		go func() {
			if op == block.OpZero {
				clear(b)
				done <- c.Zero(off, size-off, 0)
			} else {
				done <- c.Write(off, 0, b)
			}
		}()
		settle()
		s.Release()
		for range 3 {
			must(t, <-done)
		}
		expectContent(t, e, off, b)
	}
}

// The disk shrinks after the fast lane has looked at the size and before the
// request is in flight: then it is not answered.
func TestF17ShrinkUnderTheFastLane(t *testing.T) {
	env := bt.NewEnv(t)
	_, c := emulateIn(t, env, bt.EmulatorConfig{Limits: sectors(), Fast: true})
	b := bt.Memory(t, 512)
	if ok, err := c.WriteFast(512<<10, 0, b); !ok || err != nil {
		t.Fatal(ok, err)
	}
	env.FastLane = func() bool {
		env.FastLane = nil
		must(t, c.Truncate(64<<10))
		return true
	}
	if ok, err := c.WriteFast(512<<10, 0, b); ok || err != nil {
		t.Errorf("the fast lane answered beyond the end: %v", err)
	}
}

// A disk that grows serves what it grew by at once; sizes have a largest.
func TestF17Resize(t *testing.T) {
	e, c := emulate(t, bt.EmulatorConfig{Limits: blocks()})
	must(t, c.Truncate(3<<20+100))
	must(t, c.Write(3<<20, 0, make([]byte, 100)))
	e.Info().SetSize(1 << 62)
	e.Info().SetSize(1<<63 - 1)
	if n := c.Child.Size(); n != block.MaxSize {
		t.Errorf("a size of 8 EiB less a byte became %d", n)
	}
	e.Info().SetSize(-1)
	if n := c.Child.Size(); n != 0 {
		t.Errorf("a negative size became %d", n)
	}
	e.Info().SetSize(3<<20 + 100)
	for size, errno := range map[int64]syscall.Errno{block.MaxSize + 1: syscall.EFBIG, -1: syscall.EINVAL} {
		if err := c.Truncate(size); !errors.Is(err, errno) {
			t.Errorf("truncate to %d: %v", size, err)
		}
	}
}

// At the largest size no rounding overflows.
func TestLargestSize(t *testing.T) {
	for _, align := range []uint32{1, 512, 65536} {
		l := limits(func(l *block.Limits) {
			l.ReadAlign, l.WriteAlign, l.ZeroAlign, l.DiscardAlign = align, align, 1<<31, 1<<31
		})
		n := &sink{}
		n.info.SetLimits(l)
		n.info.SetSize(block.MaxSize)
		c := bt.NewClient(t, bt.Edge(t, bt.Attach(t, bt.NewEnv(t), n, "sink")))
		for _, back := range []int64{1, 511, 513, 70000} {
			off := int64(block.MaxSize) - back
			must(t, c.Read(off, make([]byte, back)))
			must(t, c.Write(off, 0, make([]byte, back)))
			must(t, c.Zero(off, back, 0))
			must(t, c.Discard(off, back))
			if e, err := c.Status(off, back); err != nil || e.Len != back || !e.EOF {
				t.Errorf("status of the last %d bytes: %+v, %v", back, e, err)
			}
		}
		must(t, c.Zero(0, block.MaxSize, 0))
		must(t, c.Discard(1, block.MaxSize-1))
	}
}

// sink takes everything and allocates nothing.
type sink struct {
	info   block.Info
	noZero bool
	broken func()
}

func (n *sink) Info() *block.Info { return &n.info }

func (n *sink) Preadv(_ *block.Req, _ int64, v block.Vec, _ block.Flags) error {
	for _, e := range v {
		clear(e)
	}
	return nil
}

func (n *sink) Pwritev(*block.Req, int64, block.Vec, block.Flags) error {
	if n.broken != nil {
		n.broken()
	}
	return nil
}

func (n *sink) WriteZeroes(*block.Req, int64, int64, block.Flags) error {
	if n.noZero {
		return block.ErrNotSupported
	}
	return nil
}

func (n *sink) Discard(*block.Req, int64, int64) error { return nil }
func (n *sink) Flush(*block.Req) error                 { return nil }

func (n *sink) BlockStatus(_ *block.Req, _, l int64) (block.Extent, error) {
	return block.Extent{Len: l, Data: true, Allocated: true, Host: -1}, nil
}

func (n *sink) Truncate(*block.Req, int64, block.Prealloc) error { return nil }
func (n *sink) Close() error                                     { return nil }

func (n *sink) Map(*block.Req, block.Op, int64, block.Vec, block.Flags) (block.Mapping, bool) {
	return block.Mapping{Kind: block.MapZero}, true
}

func (n *sink) Done(block.Op, uint64, error) {}

// A guest's memory may go away under a copy: who recovers from that fault
// finds nothing in flight and no buffer in use.
func TestFaultInGuestMemoryLeavesNothingBehind(t *testing.T) {
	n := &sink{broken: func() { panic("memory went away") }}
	n.info.SetLimits(blocks())
	n.info.SetSize(1 << 20)
	env := bt.NewEnv(t)
	c := bt.NewClient(t, bt.Edge(t, bt.Attach(t, env, n, "sink")))
	for _, off := range []int64{0, 1} {
		for _, mem := range [][]byte{bt.Memory(t, 4096), bt.AtAddress(t, 4096, 1)} {
			err := c.Do(block.OpWrite, func(rq *block.Req) (err error) {
				defer func() { err = syscall.EFAULT; _ = recover() }()
				return c.Child.Pwritev(rq, off, block.Vec{mem}, 0)
			})
			if !errors.Is(err, syscall.EFAULT) {
				t.Error(err)
			}
		}
	}
	waitFor(t, "drain", func() { drain(c) })
	c.Child.Instance().Undrain()
	if n := env.Buffers.Stats().InUse; n != 0 {
		t.Errorf("%d bytes of buffers are in use", n)
	}
}
