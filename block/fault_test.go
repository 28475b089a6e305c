package block_test

import (
	"bytes"
	"errors"
	"sync"
	"syscall"
	"testing"

	"github.com/platter-storage/platter/block"
	bt "github.com/platter-storage/platter/block/blocktest"
	"github.com/platter-storage/platter/internal/inject"
)

// poison leaves 0xEE in every bounce buffer.
func poison(t testing.TB, c *bt.Client) {
	t.Helper()
	must(t, c.Do(block.OpWrite, func(rq *block.Req) error {
		var bufs [][]byte
		for range 8 {
			b := buffer(t, rq, 1<<20)
			for i := range b {
				b[i] = 0xEE
			}
			bufs = append(bufs, b)
		}
		for i := len(bufs) - 1; i >= 0; i-- {
			rq.Release(bufs[i])
		}
		return nil
	}))
}

// randomFaults makes a few requests of each kind fail, in each way.
func randomFaults(e *bt.Emulator) {
	for _, f := range []*bt.Fault{
		{Rule: inject.Rule{Ops: bt.OpBit(block.OpRead), Chance: 0.01}, Err: syscall.EIO},
		{Rule: inject.Rule{Ops: bt.OpBit(block.OpWrite), Chance: 0.01}, Err: syscall.EIO},
		{Rule: inject.Rule{Ops: bt.OpBit(block.OpWrite), Chance: 0.02}, Err: syscall.ENOSPC, Torn: 4096},
		{Rule: inject.Rule{Ops: bt.OpBit(block.OpZero), Chance: 0.05}, Err: syscall.EIO, Torn: 4096},
		{Rule: inject.Rule{Ops: bt.OpBit(block.OpDiscard) | bt.OpBit(block.OpStatus), Chance: 0.05}, Err: syscall.EIO},
		{Rule: inject.Rule{Ops: bt.OpBit(block.OpFlush), Chance: 0.1, Nth: 3}, Err: syscall.ENOSPC},
		{Rule: inject.Rule{Chance: 0.02}, DelayNs: 50_000},
	} {
		e.Inject(f)
	}
}

// A bounced or padded read that fails shows nothing of our memory: what of the
// caller's was not read stays his.
func TestF10FailedReadShowsNothingOfOurs(t *testing.T) {
	for _, bad := range []int64{0, 1 << 20, 2 << 20, 3<<20 - 1} {
		e, c := emulate(t, bt.EmulatorConfig{Limits: sectors(), Size: 4 << 20})
		poison(t, c)
		f := fail(e, block.OpRead, bad, 1, syscall.EIO)
		f.Torn = 512
		b := bt.AtAddress(t, 3<<20, 1)
		for i := range b {
			b[i] = 0x77
		}
		if err := c.Read(0, b); !errors.Is(err, syscall.EIO) {
			t.Errorf("unreadable at %d: %v", bad, err)
		}
		if i := bytes.IndexByte(b, 0xEE); i >= 0 {
			t.Errorf("unreadable at %d: byte %d is the bounce buffer's", bad, i)
		}
		if i := bytes.IndexByte(b[max(bad&^(1<<20-1), 0):], 0); i >= 0 {
			t.Errorf("unreadable at %d: of the piece that failed byte %d was copied", bad, i)
		}
	}
}

// An error on one element fails the whole request once, with its own errno,
// and no other request.
func TestF10ErrorOnOneElement(t *testing.T) {
	l := sectors()
	l.MaxSegments = 2
	e, c := emulate(t, bt.EmulatorConfig{Limits: l})
	f := fail(e, block.OpWrite, 8192, 512, syscall.ENXIO)
	b := bt.Memory(t, 16384)
	var be *block.Error
	err := c.Write(0, 0, bt.Cut(b, repeat(2048, 8)...)...)
	if !errors.Is(err, syscall.ENXIO) || !errors.As(err, &be) || be.Off != 0 || be.Len != 16384 {
		t.Errorf("the error is %v", err)
	}
	if f.Fired() != 1 {
		t.Errorf("the bad block was tried %d times", f.Fired())
	}
	must(t, c.Write(0, 0, b[:8192]))
	must(t, c.Read(8192, b[:512]))
}

// An error of the fast lane that the slow lane may mend is tried there, once.
// EIO is among them, because a device whose sector size changes answers so; a
// disk that fails stays failed.
func TestF10FastLaneErrors(t *testing.T) {
	for _, c := range []struct {
		name  string
		err   error
		torn  int64
		times uint64
		calls int
		errno syscall.Errno
	}{
		{"EIO always", syscall.EIO, 0, 0, 2, syscall.EIO},
		{"EIO once", syscall.EIO, 0, 1, 2, 0},
		{"ENOSPC", syscall.ENOSPC, 0, 0, 1, syscall.ENOSPC},
		{"short once", nil, 512, 1, 2, 0},
		{"EAGAIN once", syscall.EAGAIN, 0, 1, 2, 0},
		{"EINVAL once", syscall.EINVAL, 0, 1, 2, 0},
		{"EINTR once", syscall.EINTR, 0, 1, 2, 0},
		{"EINVAL always", syscall.EINVAL, 0, 0, 2, syscall.EINVAL},
	} {
		for _, op := range []block.Op{block.OpRead, block.OpWrite} {
			e, cl := emulate(t, bt.EmulatorConfig{Limits: sectors(), Fast: true})
			e.Inject(&bt.Fault{Rule: inject.Rule{Ops: bt.OpBit(op), Times: c.times}, Err: c.err, Torn: c.torn})
			b := bt.Pattern(bt.Memory(t, 4096), 1)
			var ok bool
			var err error
			if op == block.OpRead {
				ok, err = cl.ReadFast(0, b)
			} else {
				ok, err = cl.WriteFast(0, 0, b)
			}
			if !ok || c.errno == 0 && err != nil || c.errno != 0 && !errors.Is(err, c.errno) {
				t.Errorf("%s of a %s: fast %v, %v", c.name, op, ok, err)
			}
			if n := e.Count(op); n != c.calls {
				t.Errorf("%s of a %s: %d calls, want %d", c.name, op, n, c.calls)
			}
			if err == nil {
				expectContent(t, e, 0, b)
			}
			if n := took(cl, block.PathShort); n != uint64(c.calls-1) {
				t.Errorf("%s of a %s: %d finished in the slow lane", c.name, op, n)
			}
		}
	}
}

// What a torn write leaves is a prefix, and the next write mends it.
func TestF9TornWrite(t *testing.T) {
	e, c := emulate(t, bt.EmulatorConfig{Limits: blocks()})
	e.Inject(&bt.Fault{Rule: inject.Rule{Ops: bt.OpBit(block.OpWrite), Times: 1}, Err: syscall.ENOSPC, Torn: 4096})
	b := bt.Pattern(make([]byte, 8192), 1)
	if err := c.Write(100, 0, b); !errors.Is(err, syscall.ENOSPC) {
		t.Error(err)
	}
	must(t, c.Write(100, 0, b))
	expectContent(t, e, 100, b)
}

// Memory that changes under a bounced write is read once: each replica of the
// one copy agrees. Here the copy itself is compared with what two reads of it
// by the storage see.
func TestF13ChangingMemoryIsCopiedOnce(t *testing.T) {
	e, c := emulate(t, bt.EmulatorConfig{Limits: blocks()})
	twice := &readsTwice{Emulator: e}
	in := bt.Attach(t, c.Child.Instance().Env(), twice, "replicas")
	r := bt.NewClient(t, bt.Edge(t, in))
	b := bt.AtAddress(t, 65536, 1)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for x := byte(0); ; x++ {
			select {
			case <-stop:
				return
			default:
			}
			for i := 0; i < len(b); i += 64 {
				b[i] = x
			}
		}
	})
	for i := range int64(50) {
		must(t, r.Write(i*4096+1, 0, b))
	}
	close(stop)
	wg.Wait()
	if twice.differed {
		t.Error("the storage saw two contents in one write")
	}
}

// readsTwice compares what it sees of a write's memory with what it sees then.
type readsTwice struct {
	*bt.Emulator
	differed bool
}

func (n *readsTwice) Pwritev(rq *block.Req, off int64, v block.Vec, fl block.Flags) error {
	one, two := make([]byte, v.Len()), make([]byte, v.Len())
	v.CopyOut(one, 0)
	if err := n.Emulator.Pwritev(rq, off, v, fl); err != nil {
		return err
	}
	v.CopyOut(two, 0)
	n.differed = n.differed || !bytes.Equal(one, two)
	return nil
}

// Discard and write zeroes have granularities of their own. The unaligned ends
// of a discard are left alone, those of write zeroes are written.
func TestF16ZeroAndDiscardAlignment(t *testing.T) {
	l := sectors()
	l.ZeroAlign, l.DiscardAlign, l.MaxZero, l.MaxDiscard = 16384, 65536, 32768, 131072
	e, c := emulate(t, bt.EmulatorConfig{Limits: l, ZeroFlags: block.MayUnmap})
	must(t, c.Discard(512, 400000))
	expectOps(t, e, "discard 65536+131072", "discard 196608+131072", "discard 327680+65536")
	e.ForgetCalls()
	must(t, c.Discard(1, 65536))
	expectOps(t, e)
	must(t, c.Zero(512, 65536, block.MayUnmap))
	expectOps(t, e, "write 512+15872", "write zeroes 16384+32768", "write zeroes 49152+16384", "write 65536+512")
	e.ForgetCalls()
	must(t, c.Zero(100, 16384, 0))
	expectOps(t, e, "read 0+512", "read 16384+512", "write 0+512", "write 16384+512", "write 512+15872")
	e.ForgetCalls()
	for _, r := range [][2]int64{{512, 16384}, {100, 16384}, {0, 512}} {
		if err := c.Zero(r[0], r[1], block.NoFallback); !block.IsNotSupported(err) {
			t.Errorf("write zeroes without fallback of %d bytes at %d: %v", r[1], r[0], err)
		}
	}
	expectOps(t, e)
	e.ForgetCalls()
	must(t, c.Zero(0, 16384, block.NoFallback))
	expectOps(t, e, "write zeroes 0+16384")
}

// Storage without write zeroes gets writes, from memory that it can take; one
// that lacks discard is not a failure.
func TestF16WithoutNativeZeroAndDiscard(t *testing.T) {
	l := blocks()
	l.MaxSegments, l.MaxTransfer = 2, 96<<10
	e, c := emulate(t, bt.EmulatorConfig{Limits: l, NoZero: true, NoDiscard: true})
	e.Fill(bytes.Repeat([]byte{1}, 1<<20))
	must(t, c.Zero(4096, 500000, block.MayUnmap))
	if !bytes.Equal(e.Content()[4096:504096], make([]byte, 500000)) || e.Content()[4095] != 1 || e.Content()[504096] != 1 {
		t.Error("zeroes are not where they belong")
	}
	must(t, c.Discard(0, 1<<20))
	expectTook(t, c, block.PathZeroFallback, "zeroes written", 1)
}

// Zeroes that are to be durable are, where zeroing has FUA and writing has not
// and the whole request was writes.
func TestZeroWithFUAByWrites(t *testing.T) {
	l := blocks()
	l.ZeroAlign = 65536
	for _, zf := range []block.Flags{0, block.FUA} {
		for _, wf := range []block.Flags{0, block.FUA} {
			e, c := emulate(t, bt.EmulatorConfig{Limits: l, WriteFlags: wf, ZeroFlags: zf})
			e.Fill(bytes.Repeat([]byte{1}, 1<<20))
			for _, r := range [][2]int64{{100, 100}, {100, 5000}, {4096, 4096}, {60000, 10000}, {100, 300000}} {
				must(t, c.Zero(r[0], r[1], block.FUA))
				if !bytes.Equal(e.Durable()[r[0]:r[0]+r[1]], make([]byte, r[1])) {
					t.Errorf("zero flags %q, write flags %q: %d zeroes at %d would be lost", zf, wf, r[1], r[0])
				}
			}
		}
	}
}

// A change of the storage's limits under load, published or found out, is no
// error to anybody, and neighbours of sectors stay.
func TestF16LimitsChangeDuringOperation(t *testing.T) {
	for _, publish := range []bool{true, false} {
		for _, fast := range []bool{true, false} {
			e, c := emulate(t, bt.EmulatorConfig{Limits: sectors(), Fast: fast})
			var wg sync.WaitGroup
			for w := range int64(4) {
				mem := bt.Memory(t, 512)
				wg.Go(func() {
					for i := range int64(300) {
						b := bt.Pattern(mem, uint64(w*1000+i))
						off := (i%64)*4096 + w*1024
						ok, err := c.WriteFast(off, 0, b)
						if !ok && err == nil {
							err = c.Write(off, 0, b)
						}
						if err != nil {
							t.Error(err)
						}
						if i == 100 && w == 0 {
							e.SetLimits(*blocks(), publish)
						}
						if i == 200 && w == 0 {
							e.SetLimits(*sectors(), true)
						}
					}
				})
			}
			wg.Wait()
			want := make([]byte, 512)
			for w := range int64(4) {
				for at := range int64(64) {
					last := 256 + at // the last i with this place
					if last >= 300 {
						last -= 64
					}
					bt.Pattern(want, uint64(w*1000+last))
					expectContent(t, e, at*4096+w*1024, want)
				}
			}
		}
	}
}

// Storage that never takes what it asks for is an error, after one more try.
func TestLimitsThatDoNotHold(t *testing.T) {
	e, c := emulate(t, bt.EmulatorConfig{Limits: sectors()})
	f := e.Inject(&bt.Fault{Err: block.ErrLimitsChanged})
	b := bt.Memory(t, 512)
	for op, err := range map[string]error{"read": c.Read(0, b), "write": c.Write(0, 0, b), "write zeroes": c.Zero(0, 512, 0)} {
		if !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v", op, err)
		}
	}
	if f.Fired() != 6 {
		t.Errorf("%d tries of 3 requests", f.Fired())
	}
	must(t, c.Discard(0, 512)) // a hint
}
