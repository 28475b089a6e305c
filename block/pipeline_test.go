package block_test

import (
	"bytes"
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/platter-storage/platter/block"
	bt "github.com/platter-storage/platter/block/blocktest"
	"github.com/platter-storage/platter/internal/inject"
)

// limits are byte limits with what f sets.
func limits(f func(l *block.Limits)) *block.Limits {
	l := block.ByteLimits()
	f(l)
	return l
}

// sectors are the limits of direct I/O on 512-byte sectors, blocks on 4 KiB
// ones with memory at 512.
func sectors() *block.Limits {
	return limits(func(l *block.Limits) {
		l.ReadAlign, l.WriteAlign, l.SegmentAlign, l.MinMem = 512, 512, 512, 512
	})
}

func blocks() *block.Limits {
	return limits(func(l *block.Limits) {
		l.ReadAlign, l.WriteAlign, l.SegmentAlign, l.MinMem = 4096, 4096, 512, 512
	})
}

// emulate makes storage of 1 MiB, unless cfg says otherwise, and a user of it.
func emulate(t testing.TB, cfg bt.EmulatorConfig) (*bt.Emulator, *bt.Client) {
	return emulateIn(t, bt.NewEnv(t), cfg)
}

func emulateIn(t testing.TB, env *block.Env, cfg bt.EmulatorConfig) (*bt.Emulator, *bt.Client) {
	t.Helper()
	if cfg.Size == 0 {
		cfg.Size = 1 << 20
	}
	e := bt.NewEmulator(t, cfg)
	return e, bt.NewClient(t, bt.Edge(t, bt.Attach(t, env, e, "disk")))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// took is how many requests of the client went the way p.
func took(c *bt.Client, p block.Path) uint64 { return c.Group.Stats().Path(p) }

func expectTook(t testing.TB, c *bt.Client, p block.Path, name string, want uint64) {
	t.Helper()
	if got := took(c, p); got != want {
		t.Errorf("%s: %d requests, want %d", name, got, want)
	}
}

func expectContent(t testing.TB, e *bt.Emulator, off int64, want []byte) {
	t.Helper()
	if got := e.Part(off, int64(len(want))); !bytes.Equal(got, want) {
		t.Errorf("the %d bytes at %d are not what was written", len(want), off)
	}
}

// ops are the calls that reached the storage, by operation and range.
func ops(e *bt.Emulator) (s []string) {
	for _, c := range e.Calls() {
		s = append(s, fmt.Sprintf("%s %d+%d", c.Op, c.Off, c.Len))
	}
	return s
}

func expectOps(t testing.TB, e *bt.Emulator, want ...string) {
	t.Helper()
	if got := ops(e); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the storage was asked\n%q\nwant\n%q", got, want)
	}
}

// fail makes requests of an operation that touch the range fail.
func fail(e *bt.Emulator, op block.Op, off, n int64, errno syscall.Errno) *bt.Fault {
	return e.Inject(&bt.Fault{Rule: inject.Rule{Ops: bt.OpBit(op), Off: off, Len: n}, Err: errno})
}

// Memory at 512 is what the storage asks for: it is not bounced because 4096
// would be faster. At 256 it is, once, and for its address.
func TestA1MemoryAtTheMinimumIsNotBounced(t *testing.T) {
	e, c := emulate(t, bt.EmulatorConfig{Limits: sectors()})
	for i, write := range []bool{true, false} {
		b := bt.AtAddress(t, 4096, 512)
		if write {
			bt.Pattern(b, 1)
			must(t, c.Write(8192, 0, b))
			expectContent(t, e, 8192, b)
		} else {
			must(t, c.Read(8192, b))
			expectContent(t, e, 8192, b)
		}
		expectTook(t, c, block.PathBounceMem, "bounced with memory at 512", uint64(i))
		b = bt.AtAddress(t, 4096, 256)
		if write {
			bt.Pattern(b, 2)
			must(t, c.Write(8192, 0, b))
		} else {
			must(t, c.Read(8192, b))
		}
		expectContent(t, e, 8192, b)
		expectTook(t, c, block.PathBounceMem, "bounced with memory at 256", uint64(i+1))
	}
	expectTook(t, c, block.PathBounceLen, "bounced for length", 0)
	expectTook(t, c, block.PathRMW, "read, modified and written", 0)
}

// A controller that asks for 4-byte addresses gets all of them as they are.
func TestA4MemoryAtFourBytesIsNotBounced(t *testing.T) {
	l := limits(func(l *block.Limits) {
		l.ReadAlign, l.WriteAlign, l.SegmentAlign, l.MinMem = 512, 512, 4, 4
	})
	e, c := emulate(t, bt.EmulatorConfig{Limits: l})
	for at := 4; at <= 256; at *= 2 {
		b := bt.Pattern(bt.AtAddress(t, 4096, at), uint64(at))
		must(t, c.Write(0, 0, bt.Cut(b, 4, 508, 8)...))
		expectContent(t, e, 0, b)
		must(t, c.Read(0, b))
	}
	expectTook(t, c, block.PathBounceMem, "bounced for address", 0)
	expectTook(t, c, block.PathBounceLen, "bounced for length", 0)
	must(t, c.Read(0, bt.AtAddress(t, 512, 2)))
	expectTook(t, c, block.PathBounceMem, "bounced at 2", 1)
}

// A write aligned in offset and length but not in memory is bounced, and
// nothing is read for it.
func TestA6MisalignedMemoryReadsNothing(t *testing.T) {
	e, c := emulate(t, bt.EmulatorConfig{Limits: blocks()})
	b := bt.Pattern(bt.AtAddress(t, 8192, 1), 1)
	must(t, c.Write(4096, 0, b))
	expectOps(t, e, "write 4096+8192")
	expectContent(t, e, 4096, b)
	expectTook(t, c, block.PathRMW, "read, modified and written", 0)
}

// A sector written to storage of 4 KiB blocks is read, modified and written
// once, and its neighbours stay; a whole block is just written.
func TestA6SectorIsReadModifiedWritten(t *testing.T) {
	e, c := emulate(t, bt.EmulatorConfig{Limits: blocks()})
	old := bt.Pattern(make([]byte, 1<<20), 1)
	e.Fill(old)
	b := bt.Pattern(bt.Memory(t, 4096), 2)
	must(t, c.Write(4096+512, 0, b[:512]))
	copy(old[4096+512:], b[:512])
	expectContent(t, e, 0, old)
	expectOps(t, e, "read 4096+4096", "write 4096+4096")
	expectTook(t, c, block.PathRMW, "sector", 1)
	must(t, c.Write(8192, 0, b))
	expectTook(t, c, block.PathRMW, "sector and block", 1)
}

// If the read of a read-modify-write fails, the write fails with its error and
// nothing is written, whichever end it is and however long the request.
func TestA6ReadFailureWritesNothing(t *testing.T) {
	for _, n := range []int64{512, 8192, 3 << 19} {
		for _, at := range []string{"head", "tail"} {
			for _, op := range []block.Op{block.OpWrite, block.OpZero} {
				e, c := emulate(t, bt.EmulatorConfig{Size: 2 << 20, Limits: blocks(), NoZero: true})
				old := bt.Pattern(make([]byte, 2<<20), 1)
				e.Fill(old)
				off := int64(4096 + 512)
				if at == "tail" {
					off = 4096
					n |= 512
				}
				bad := off
				if at == "tail" {
					bad = off + n - 1
				}
				fail(e, block.OpRead, bad, 1, syscall.EIO)
				var err error
				if op == block.OpZero {
					err = c.Zero(off, n, 0)
				} else {
					err = c.Write(off, 0, make([]byte, n))
				}
				if !errors.Is(err, syscall.EIO) {
					t.Errorf("%s of %d bytes, %s unreadable: %v", op, n, at, err)
				}
				if k := e.Count(block.OpWrite); k != 0 {
					t.Errorf("%s of %d bytes, %s unreadable: %d writes were issued", op, n, at, k)
				}
				expectContent(t, e, 0, old)
			}
		}
	}
}

// Memory aligned more strictly than offsets: each block of a buffer that is
// read or written on its own must be aligned as memory is.
func TestReadModifyWriteWithMemoryStricterThanOffsets(t *testing.T) {
	for _, mem := range []uint32{4096, 16384, 65536} {
		l := sectors()
		l.MinMem, l.OptMem = mem, block.OptMemFor(mem)
		e, c := emulate(t, bt.EmulatorConfig{Limits: l, Size: 4 << 20})
		old := bt.Pattern(make([]byte, 4<<20), 1)
		e.Fill(old)
		for i, r := range []struct{ off, n int64 }{{100, 100}, {500, 100}, {700, 70000}, {1, 2 << 20}, {512, 512}} {
			b := bt.Pattern(make([]byte, r.n), uint64(i))
			must(t, c.Write(r.off, 0, b))
			copy(old[r.off:], b)
			must(t, c.Zero(r.off+r.n/3, r.n/3, 0))
			clear(old[r.off+r.n/3 : r.off+r.n/3+r.n/3])
			got := make([]byte, r.n)
			must(t, c.Read(r.off, got))
			if !bytes.Equal(got, old[r.off:r.off+r.n]) {
				t.Errorf("memory at %d: reading back %d bytes at %d", mem, r.n, r.off)
			}
		}
		expectContent(t, e, 0, old)
	}
}

// Reads of 512 over writes of 4096: a sector is read as it is and written by
// read-modify-write.
func TestA12ReadAndWriteAlignmentApart(t *testing.T) {
	l := sectors()
	l.WriteAlign = 4096
	e, c := emulate(t, bt.EmulatorConfig{Limits: l})
	b := bt.Memory(t, 512)
	must(t, c.Read(512, b))
	expectOps(t, e, "read 512+512")
	expectTook(t, c, block.PathPadded, "padded reads", 0)
	e.ForgetCalls()
	must(t, c.Write(512, 0, b))
	expectOps(t, e, "read 0+4096", "write 0+4096")
}

// 1024 elements that need padding at both ends are served: as one buffer.
func TestA13LongestVectorWithPadding(t *testing.T) {
	e, c := emulate(t, bt.EmulatorConfig{Limits: blocks(), Size: 8 << 20})
	old := bt.Pattern(make([]byte, 8<<20), 1)
	e.Fill(old)
	b := bt.Pattern(bt.Memory(t, 1024*512), 2)
	v := bt.Cut(b, repeat(512, 1024)...)
	must(t, c.Write(512, 0, v...))
	copy(old[512:], b)
	expectContent(t, e, 0, old)
	clear(b)
	must(t, c.Read(512, v...))
	if !bytes.Equal(b, old[512:512+len(b)]) {
		t.Error("reading back 1024 elements")
	}
	for _, call := range e.Calls() {
		if call.Segs != 1 {
			t.Errorf("%s of %d elements", call.Op, call.Segs)
		}
	}
	expectTook(t, c, block.PathPadded, "padded", 2)
}

func repeat(n, times int) []int {
	s := make([]int, times)
	for i := range s {
		s[i] = n
	}
	return s
}

// More elements than storage takes make more requests, each of whole blocks.
func TestTooManyElementsSplitOnBlocks(t *testing.T) {
	l := blocks()
	l.MaxSegments = 16
	e, c := emulate(t, bt.EmulatorConfig{Limits: l})
	b := bt.Pattern(bt.Memory(t, 64*1024), 1)
	must(t, c.Write(0, 0, bt.Cut(b, repeat(1024, 64)...)...))
	expectContent(t, e, 0, b)
	expectOps(t, e, "write 0+16384", "write 16384+16384", "write 32768+16384", "write 49152+16384")
	expectTook(t, c, block.PathBounceSegs, "bounced", 0)
	// Where not even one block fits the number, a copy must do, from there on.
	l2 := *l
	l2.SegmentAlign, l2.MinMem = 4, 4
	e.SetLimits(l2, true)
	e.ForgetCalls()
	must(t, c.Write(0, 0, bt.Cut(b, append(repeat(2048, 16), repeat(128, 256)...)...)...))
	expectContent(t, e, 0, b)
	expectOps(t, e, "write 0+32768", "write 32768+32768")
	expectTook(t, c, block.PathBounceSegs, "blocks of 32 elements bounced", 1)
	must(t, c.Read(0, bt.Cut(b, repeat(128, 512)...)...))
	expectContent(t, e, 0, b)
	expectTook(t, c, block.PathBounceSegs, "blocks of 32 elements bounced", 2)
}

// 1 MiB of ours makes the fewest requests; 1 MiB that straddles pages on
// storage of 256 segments is split on blocks, into parts of one size, never
// 1023 and 8 sectors.
func TestA9LargeRequestsSplitEvenly(t *testing.T) {
	l := sectors()
	l.MaxTransfer = 256 << 10
	e, c := emulate(t, bt.EmulatorConfig{Limits: l, Size: 4 << 20})
	must(t, c.Do(block.OpWrite, func(rq *block.Req) error {
		buf := buffer(t, rq, 1<<20)
		defer rq.Release(buf)
		bt.Pattern(buf, 1)
		return c.Child.Pwritev(rq, 0, block.Vec{buf}, 0)
	}))
	expectOps(t, e, "write 0+262144", "write 262144+262144", "write 524288+262144", "write 786432+262144")

	few := blocks()
	few.MaxSegments = 256
	e, c = emulate(t, bt.EmulatorConfig{Limits: few, Size: 4 << 20})
	b := bt.Pattern(bt.AtAddress(t, 1<<20, 512), 2)
	must(t, c.Write(0, 0, b))
	expectContent(t, e, 0, b)
	calls := e.Calls()
	if len(calls) != 2 {
		t.Errorf("%d requests, want 2: %q", len(calls), ops(e))
	}
	for _, call := range calls {
		if call.Len%4096 != 0 || call.Len < 256<<10 || call.Len/4096+1 > 256 {
			t.Errorf("a part of %d bytes", call.Len)
		}
	}
	e.ForgetCalls()
	must(t, c.Write(0, 0, bt.Memory(t, 1<<20)))
	expectOps(t, e, "write 0+1048576")
}

// Empty elements carry nothing: neither their address nor their number counts.
func TestF14EmptyElements(t *testing.T) {
	l := sectors()
	l.MaxSegments = 4
	e, c := emulate(t, bt.EmulatorConfig{Limits: l})
	b := bt.Pattern(bt.Memory(t, 4096), 1)
	odd := bt.AtAddress(t, 1, 1)[:0]
	must(t, c.Write(0, 0, odd, b[:512], odd, b[512:], nil))
	must(t, c.Write(4096, 0, odd, b[:512], odd, odd, odd, odd, b[512:], nil))
	must(t, c.Read(0, odd, b, odd))
	expectContent(t, e, 0, b)
	expectContent(t, e, 4096, b)
	expectTook(t, c, block.PathBounceMem, "bounced for an empty element's address", 0)
	for _, call := range e.Calls() {
		if call.Len != 4096 {
			t.Errorf("%s of %d bytes", call.Op, call.Len)
		}
	}
}

// Elements of odd lengths, one of them empty, over storage that counts both.
func TestF14OddElements(t *testing.T) {
	e, c := emulate(t, bt.EmulatorConfig{Limits: blocks()})
	b := bt.Pattern(bt.Memory(t, 5000), 1)
	must(t, c.Write(3, 0, bt.Cut(b, 0, 1, 0, 999, 0, 3000)...))
	expectContent(t, e, 3, b)
}

// A read passes no flag on: none means anything to a read.
func TestReadPassesNoFlags(t *testing.T) {
	e, c := emulate(t, bt.EmulatorConfig{})
	must(t, c.Do(block.OpRead, func(rq *block.Req) error {
		return c.Child.Preadv(rq, 0, block.Vec{make([]byte, 512)}, block.FUA|block.MayUnmap|block.Serialising)
	}))
	if fl := e.Calls()[0].Flags; fl != 0 {
		t.Errorf("the storage got a read with flags %q", fl)
	}
}
