package block_test

import (
	"bytes"
	"fmt"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/platter-storage/platter/block"
	bt "github.com/platter-storage/platter/block/blocktest"
)

// window is a node that passes requests on with skip added, and publishes the
// limits it is told to.
type window struct {
	info block.Info
	file *block.Child
	skip int64
}

// stack puts a window over a user's node and returns a user of it.
func stack(t testing.TB, below *bt.Client, skip int64, l *block.Limits) *bt.Client {
	t.Helper()
	n := &window{file: below.Child, skip: skip}
	n.info = block.Info{Driver: "window", WriteFlags: below.Child.Info().WriteFlags, ZeroFlags: below.Child.Info().ZeroFlags}
	n.info.Abilities.Mapper = n
	n.info.FollowSize(below.Child.Info(), skip)
	n.info.SetLimits(l)
	return bt.NewClient(t, bt.Edge(t, bt.Attach(t, below.Child.Instance().Env(), n, "window")))
}

func (n *window) Info() *block.Info { return &n.info }

func (n *window) Preadv(rq *block.Req, off int64, v block.Vec, fl block.Flags) error {
	return n.file.Preadv(rq, n.skip+off, v, fl)
}

func (n *window) Pwritev(rq *block.Req, off int64, v block.Vec, fl block.Flags) error {
	return n.file.Pwritev(rq, n.skip+off, v, fl)
}

func (n *window) WriteZeroes(rq *block.Req, off, l int64, fl block.Flags) error {
	return n.file.WriteZeroes(rq, n.skip+off, l, fl)
}

func (n *window) Discard(rq *block.Req, off, l int64) error { return n.file.Discard(rq, n.skip+off, l) }
func (n *window) Flush(rq *block.Req) error                 { return n.file.Flush(rq) }

func (n *window) BlockStatus(rq *block.Req, off, l int64) (block.Extent, error) {
	return n.file.BlockStatus(rq, n.skip+off, l)
}

func (n *window) Truncate(rq *block.Req, size int64, pre block.Prealloc) error {
	return n.file.Truncate(rq, n.skip+size, pre)
}

func (n *window) Close() error { return nil }

func (n *window) Map(rq *block.Req, op block.Op, off int64, v block.Vec, fl block.Flags) (block.Mapping, bool) {
	return n.file.Map(rq, op, n.skip+off, v, fl)
}

func (n *window) Done(block.Op, uint64, error) {}

// drawLimits draws any legal set.
func drawLimits(t *rapid.T, name string) *block.Limits {
	pow := func(most int, what string) uint32 { return 1 << rapid.IntRange(0, most).Draw(t, name+what) }
	l := block.ByteLimits()
	l.ReadAlign, l.WriteAlign, l.MinMem = pow(16, " read"), pow(16, " write"), pow(16, " memory")
	l.SegmentAlign = min(pow(16, " segment"), l.ReadAlign, l.WriteAlign)
	l.OptMem = block.OptMemFor(l.MinMem)
	l.ZeroAlign, l.DiscardAlign = pow(20, " zero"), pow(20, " discard")
	l.MaxSegments = uint16(rapid.IntRange(1, block.MaxElements).Draw(t, name+" segments"))
	atLeast := func(least uint32, what string) uint32 {
		if n := rapid.Uint32Range(0, 1<<20).Draw(t, name+what); n != 0 {
			return least + n
		}
		return 0
	}
	l.MaxTransfer = atLeast(max(l.ReadAlign, l.WriteAlign, l.MinMem), " transfer")
	l.OptTransfer = atLeast(0, " optimum transfer")
	l.MaxZero = int64(atLeast(max(l.ZeroAlign, l.WriteAlign), " most zero"))
	l.MaxDiscard = int64(atLeast(l.DiscardAlign, " most discard"))
	return l
}

// The limits of a node over two others are the stricter of each field, and
// legal whenever those are.
func TestA7MergedLimits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawLimits(t, "a"), drawLimits(t, "b")
		for _, l := range []*block.Limits{a, b} {
			if err := l.Validate(); err != nil {
				t.Fatal(err)
			}
		}
		m := block.Merge(a, b)
		if err := m.Validate(); err != nil {
			t.Fatalf("merging %+v and %+v: %v", a, b, err)
		}
		for name, x := range map[string][3]uint32{
			"read": {a.ReadAlign, b.ReadAlign, m.ReadAlign}, "write": {a.WriteAlign, b.WriteAlign, m.WriteAlign},
			"segment": {a.SegmentAlign, b.SegmentAlign, m.SegmentAlign}, "memory": {a.MinMem, b.MinMem, m.MinMem},
			"optimum memory": {a.OptMem, b.OptMem, m.OptMem}, "zero": {a.ZeroAlign, b.ZeroAlign, m.ZeroAlign},
			"discard": {a.DiscardAlign, b.DiscardAlign, m.DiscardAlign}, "transfer": {a.OptTransfer, b.OptTransfer, m.OptTransfer},
		} {
			if x[2] != max(x[0], x[1]) {
				t.Fatalf("%s: %d and %d make %d", name, x[0], x[1], x[2])
			}
		}
		if m.MaxSegments != min(a.MaxSegments, b.MaxSegments) || a.MaxTransfer == 0 && b.MaxTransfer == 0 && m.MaxTransfer != 0 {
			t.Fatalf("merged maxima: %+v", m)
		}
		if x := block.Merge(b, a); fmt.Sprint(x.MaxTransfer, x.MaxZero, x.MaxDiscard) != fmt.Sprint(m.MaxTransfer, m.MaxZero, m.MaxDiscard) {
			t.Fatal("merging depends on the order")
		}
	})
}

// A node of 512-byte sectors over one of 4 KiB blocks, with their merged
// limits: requests arrive below as they need to.
func TestA7StackOfTwo(t *testing.T) {
	e, below := emulate(t, bt.EmulatorConfig{Limits: blocks()})
	top := stack(t, below, 0, block.Merge(sectors(), blocks()))
	b := bt.Pattern(bt.AtAddress(t, 8192, 512), 1)
	must(t, top.Write(4096, 0, b))
	must(t, top.Write(512, 0, b[:512]))
	expectOps(t, e, "write 4096+8192", "read 0+4096", "write 0+4096")
	expectContent(t, e, 4096, b)
	expectTook(t, top, block.PathBounceMem, "bounced", 0)
}

// trace is one request of a random sequence.
type trace struct {
	write    bool
	off      int64
	n        int
	mem      int
	segments []int
}

func drawTrace(t *rapid.T) trace {
	unit := rapid.SampledFrom([]int{1, 64, 512, 4096}).Draw(t, "unit")
	x := trace{
		write: rapid.Bool().Draw(t, "write"),
		off:   int64(rapid.IntRange(0, 64<<10/unit).Draw(t, "off") * unit),
		n:     rapid.IntRange(1, max(32<<10/unit, 1)).Draw(t, "n") * unit,
		mem:   rapid.SampledFrom([]int{0, 0, 4096, 512, 256, 4, 1}).Draw(t, "mem"),
	}
	cut := rapid.SampledFrom([]int{1, 4, 512, 4096}).Draw(t, "cut")
	for left := x.n; left > cut && len(x.segments) < 8; left -= x.segments[len(x.segments)-1] {
		x.segments = append(x.segments, min(rapid.IntRange(1, 8).Draw(t, "segment")*cut, left))
	}
	return x
}

// bounces runs the requests on storage with limits l and returns the counts of
// all ways they took.
func (x traces) bounces(t testing.TB, l *block.Limits) [block.NumPaths]uint64 {
	_, c := emulate(t, bt.EmulatorConfig{Limits: l})
	mem := bt.Memory(t, 128<<10)
	for _, r := range x {
		v := bt.Cut(mem[r.mem:r.mem+r.n], r.segments...)
		if r.write {
			must(t, c.Write(r.off, 0, v...))
		} else {
			must(t, c.Read(r.off, v...))
		}
	}
	return c.Group.Stats().Paths
}

type traces []trace

// What we align our own memory to never decides whether a request is bounced:
// the same requests take the same ways whatever it is.
func TestA3OptimumMemoryNeverBounces(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		xs := traces(rapid.SliceOfN(rapid.Custom(drawTrace), 1, 20).Draw(rt, "requests"))
		for _, l := range []*block.Limits{sectors(), blocks()} {
			high := *l
			high.OptMem = 65536
			t.Run("", func(t *testing.T) {
				if a, b := xs.bounces(t, l), xs.bounces(t, &high); a != b {
					rt.Fatalf("with optimum 4096 %v, with 65536 %v", a, b)
				}
			})
		}
	})
}

// Every buffer of ours is aligned to the pool's setting, 65536 as on systems
// with such pages included, whatever its size and however many a request
// holds; and what the edge hands to a node is aligned as the node prefers.
func TestA2BuffersAreAligned(t *testing.T) {
	for _, align := range []uintptr{4096, 65536} {
		env := bt.NewEnvAligned(t, int(align))
		_, c := emulateIn(t, env, bt.EmulatorConfig{})
		for n := 1; n <= 1<<20; n = n*2 + 1 {
			must(t, c.Do(block.OpRead, func(rq *block.Req) error {
				one := buffer(t, rq, n)
				two := buffer(t, rq, n)
				if a := bt.Address(one) | bt.Address(two); a%align != 0 || len(one) != n || len(two) != n {
					t.Errorf("buffers of %d bytes with alignment %d: at %#x and %#x", n, align, bt.Address(one), bt.Address(two))
				}
				rq.Release(two)
				rq.Release(one)
				return nil
			}))
		}
	}
	for _, opt := range []uint32{4096, 16384, 65536} {
		l := sectors()
		l.OptMem = opt
		e, c := emulate(t, bt.EmulatorConfig{Limits: l})
		e.WatchMemory(opt)
		for _, n := range []int{1, 512, 700, 5000, 70000, 300000} {
			b := make([]byte, n)
			must(t, c.Read(1, b))
			must(t, c.Read(512, bt.AtAddress(t, n&^511+512, 1)))
			must(t, c.Write(512, 0, bt.AtAddress(t, n&^511+512, 1)))
		}
	}
}

// The pool has room for one request at a time: all the others wait their turn,
// and none waits for ever, though unaligned writes need room for two ends.
func TestF12SmallPool(t *testing.T) {
	env := bt.NewEnvLimit(t, 1<<20)
	e, c := emulateIn(t, env, bt.EmulatorConfig{Limits: blocks(), Size: 72 << 20})
	manyLarge(t, e, c)
	expectTook(t, c, block.PathBounceWait, "waited for a buffer", largeRequests-1)
	expectLarge(t, e.Content())
}

// The same where a node in between makes every request unaligned for the one
// below: the edge above holds a buffer while the one below needs another.
func TestF12SmallPoolInAStack(t *testing.T) {
	env := bt.NewEnvLimit(t, 1<<20)
	e, below := emulateIn(t, env, bt.EmulatorConfig{Limits: blocks(), Size: 72 << 20})
	middle := stack(t, below, 512, sectors())
	top := stack(t, middle, 512, sectors())
	manyLarge(t, e, top)
	expectLarge(t, e.Content()[1024:])
}

// largeRequests share no block.
const (
	largeRequests = 64
	largeStride   = 1<<20 + 8192
)

// manyLarge writes 1 MiB requests, misaligned in memory and offset, at once:
// the first sticks until all others wait for its buffer.
func manyLarge(t *testing.T, e *bt.Emulator, c *bt.Client) {
	t.Helper()
	s := e.Stall(block.OpRead, 0, 0, 1)
	done := make(chan error, largeRequests)
	for i := range largeRequests {
		mem := bt.Pattern(bt.AtAddress(t, 1<<20, 1), uint64(i))
		go func() { done <- c.Write(int64(i)*largeStride+1, 0, mem) }()
	}
	s.Held()
	for c.Queue.Env().Buffers.Stats().Waiting < largeRequests-1 {
		time.Sleep(time.Millisecond)
	}
	s.Release()
	limit := time.After(time.Minute)
	for range largeRequests {
		select {
		case err := <-done:
			must(t, err)
		case <-limit:
			t.Fatal("the requests wait for each other's buffers")
		}
	}
}

func expectLarge(t *testing.T, content []byte) {
	t.Helper()
	want := make([]byte, 1<<20)
	for i := range largeRequests {
		bt.Pattern(want, uint64(i))
		off := i*largeStride + 1
		if !bytes.Equal(content[off:off+1<<20], want) {
			t.Errorf("request %d is not what was written", i)
		}
	}
}

// Who waits for a buffer is served in the order of asking, large before small
// that came later.
func TestF12FirstComeFirstServed(t *testing.T) {
	env := bt.NewEnvLimit(t, 1<<20)
	_, c := emulateIn(t, env, bt.EmulatorConfig{})
	var order []int
	var mu sync.Mutex
	var wg sync.WaitGroup
	must(t, c.Do(block.OpRead, func(rq *block.Req) error {
		b := buffer(t, rq, 1<<20)
		for i, n := range []int{1 << 20, 4096, 1 << 20, 4096} {
			wg.Go(func() {
				_ = c.Do(block.OpRead, func(rq *block.Req) error {
					b := buffer(t, rq, n)
					mu.Lock()
					order = append(order, i)
					mu.Unlock()
					rq.Release(b)
					return nil
				})
			})
			for env.Buffers.Stats().Waiting <= i {
				time.Sleep(time.Millisecond)
			}
		}
		rq.Release(b)
		return nil
	}))
	wg.Wait()
	// The third can only follow both small ones' end or precede it: those
	// before it are before it.
	if order[0] != 0 || order[1] != 1 {
		t.Errorf("served in the order %v", order)
	}
}
