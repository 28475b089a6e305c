package blocktest

import (
	"bytes"
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/platter-storage/platter/block"
)

// Options tell the conformance suite what a node is like.
type Options struct {
	// Forgets: what is written is not kept; reads are zeroes.
	Forgets bool
	// AnyAfterDiscard: what was discarded reads as anything, rather than as
	// before or as zeroes.
	AnyAfterDiscard bool
	// NoAllocations: reads and writes that the node takes as they stand
	// allocate nothing.
	NoAllocations bool
}

// MinSize is the least size in bytes of a node for the conformance suite.
const MinSize = 256 << 10

// suite is one test of the conformance suite at work.
type suite struct {
	*testing.T
	opts Options
	*Client
	size int64 // of the part that is used
}

// Run puts a node through the contract of block.Node and block.Child. open
// gives an edge to a fresh node of at least MinSize bytes that reads as
// anything; it may do all that the node allows, and lets others do the same.
func Run(t *testing.T, open func(t testing.TB) *block.Child, opts Options) {
	for _, c := range []struct {
		name  string
		write bool
		f     func(s *suite)
	}{
		{"info", false, (*suite).testInfo},
		{"read fills all", false, (*suite).testReadFills},
		{"range", false, (*suite).testRange},
		{"empty requests", false, (*suite).testEmpty},
		{"longest request", false, (*suite).testLongest},
		{"block status", false, (*suite).testStatus},
		{"permission", false, (*suite).testPermission},
		{"drain", false, (*suite).testDrain},
		{"allocations of a read", false, (*suite).testReadAllocations},
		{"shapes", true, (*suite).testShapes},
		{"end of the disk", true, (*suite).testEnd},
		{"visibility", true, (*suite).testVisibility},
		{"flush and FUA", true, (*suite).testDurability},
		{"write zeroes", true, (*suite).testZero},
		{"discard", true, (*suite).testDiscard},
		{"truncate", true, (*suite).testTruncate},
		{"memory that changes", true, (*suite).testGuestMemory},
		{"allocations of a write", true, (*suite).testWriteAllocations},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSuite(t, open(t), opts)
			if !c.write || s.Child.Perm()&block.PermWrite != 0 {
				c.f(s)
			}
		})
	}
	t.Run("concurrent requests", func(t *testing.T) {
		Model(t, func(t testing.TB) []*block.Child { return []*block.Child{open(t)} },
			ModelConfig{Ops: 600, Workers: 4, Forgets: opts.Forgets, AnyAfterDiscard: opts.AnyAfterDiscard})
	})
}

func newSuite(t *testing.T, c *block.Child, opts Options) *suite {
	if c.Size() < MinSize {
		t.Fatalf("the node has %d bytes, the suite needs %d", c.Size(), MinSize)
	}
	return &suite{T: t, opts: opts, Client: NewClient(t, c), size: MinSize}
}

// must fails the test at once.
func (s *suite) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// fill writes a pattern over all that is used and returns it.
func (s *suite) fill(seed uint64) []byte {
	s.Helper()
	b := Pattern(make([]byte, s.size), seed)
	s.must(s.Write(0, 0, b))
	return b
}

// content reads all that is used.
func (s *suite) content() []byte {
	s.Helper()
	b := bytes.Repeat([]byte{0xA5}, int(s.size))
	s.must(s.Read(0, b))
	return b
}

// expect compares what is stored with want.
func (s *suite) expect(what string, want []byte) {
	s.Helper()
	if s.opts.Forgets {
		want = make([]byte, len(want))
	}
	if at := firstDifference(s.content(), want); at >= 0 {
		s.Fatalf("%s: the content is wrong from offset %d", what, at)
	}
}

func firstDifference(a, b []byte) int {
	if bytes.Equal(a, b) {
		return -1
	}
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

func (s *suite) testInfo() {
	info := s.Child.Info()
	if info.Driver == "" || info.Limits() == nil {
		s.Fatalf("info is incomplete: driver %q, limits %v", info.Driver, info.Limits())
	}
	if err := info.Limits().Validate(); err != nil {
		s.Error(err)
	}
	if s.Child.Info() != info {
		s.Error("info is another one each time")
	}
	if fl := info.WriteFlags &^ block.FUA; fl != 0 {
		s.Errorf("write flags %q: only fua means anything to a write", fl)
	}
	if fl := info.ZeroFlags &^ (block.FUA | block.MayUnmap); fl != 0 {
		s.Errorf("write zeroes flags %q: the edge passes only fua and may-unmap by declaration", fl)
	}
}

// testReadFills: two reads of the same bytes into memory with different
// content give the same, in each lane: nothing is left alone.
func (s *suite) testReadFills() {
	for _, c := range []struct{ off, n int64 }{{0, s.size}, {4096, 4096}, {512, 512}, {1, 1}, {777, 5000}, {s.size - 1, 1}} {
		var got [4][]byte
		for i := range got {
			got[i] = bytes.Repeat([]byte{byte(0x11 << i)}, int(c.n))
			if i%2 == 0 {
				s.must(s.Read(c.off, got[i]))
			} else if ok, err := s.ReadFast(c.off, got[i]); err != nil {
				s.Fatal(err)
			} else if !ok {
				s.must(s.Read(c.off, got[i]))
			}
			if at := firstDifference(got[i], got[0]); at >= 0 {
				s.Errorf("read of %d bytes at %d: byte %d differs from read to read", c.n, c.off, at)
			}
		}
	}
}

// expectError checks that an error is a *block.Error about the operation, with
// an errno inside.
func (s *suite) expectError(err error, op block.Op, errno syscall.Errno) {
	s.Helper()
	var be *block.Error
	var no syscall.Errno
	switch {
	case err == nil:
		s.Errorf("%s succeeded, want %v", op, errno)
	case !errors.As(err, &be) || be.Op != op || be.Node == "":
		s.Errorf("%s: the error %v does not say operation and node", op, err)
	case !errors.As(err, &no) || no != errno:
		s.Errorf("%s: %v, want an error with %v", op, err, errno)
	}
}

func (s *suite) testRange() {
	size, b := s.Child.Size(), make([]byte, 2)
	before := s.content()
	for _, off := range []int64{size - 1, size, size + 1, -1, -1 << 63, 1<<63 - 1, 1<<63 - 2} {
		s.expectError(s.Read(off, b), block.OpRead, syscall.EINVAL)
		if s.Child.Perm()&block.PermWrite == 0 {
			continue
		}
		s.expectError(s.Write(off, 0, b), block.OpWrite, syscall.EINVAL)
		s.expectError(s.Zero(off, 2, 0), block.OpZero, syscall.EINVAL)
		s.expectError(s.Discard(off, 2), block.OpDiscard, syscall.EINVAL)
	}
	if s.Child.Perm()&block.PermWrite != 0 {
		s.expectError(s.Zero(0, -1, 0), block.OpZero, syscall.EINVAL)
		s.expectError(s.Zero(1, 1<<63-1, 0), block.OpZero, syscall.EINVAL)
		s.expectError(s.Discard(1, 1<<63-1), block.OpDiscard, syscall.EINVAL)
	}
	for _, off := range []int64{-1, size, size + 1} {
		_, err := s.Status(off, 1)
		s.expectError(err, block.OpStatus, syscall.EINVAL)
	}
	if s.Child.Size() != size || !bytes.Equal(s.content(), before) {
		s.Error("a request beyond the end changed the size or the content")
	}
}

func (s *suite) testEmpty() {
	before, size := s.content(), s.Child.Size()
	for _, off := range []int64{0, 1, size} {
		s.must(s.Read(off))
		s.must(s.Read(off, nil, []byte{}))
		if s.Child.Perm()&block.PermWrite != 0 {
			s.must(s.Write(off, block.FUA))
			s.must(s.Write(off, 0, []byte{}))
			s.must(s.Zero(off, 0, block.NoFallback))
			s.must(s.Discard(off, 0))
		}
	}
	if !bytes.Equal(s.content(), before) {
		s.Error("a request of no length changed the content")
	}
}

// testLongest: one byte more than the longest request is refused, whatever the
// size.
func (s *suite) testLongest() {
	one := make([]byte, 1<<20)
	var v block.Vec
	for v.Len() < block.MaxRequest-1<<20 {
		v = append(v, one)
	}
	v = append(v, one[:block.MaxRequest-v.Len()], one[:1])
	s.expectError(s.Read(0, v...), block.OpRead, syscall.EINVAL)
	if ok, err := s.ReadFast(0, v...); ok || err != nil {
		s.Errorf("the fast lane took it: %v", err)
	}
}

// testStatus walks the disk: each answer starts where the last ended, and what
// is said to be zeroes is.
func (s *suite) testStatus() {
	if s.Child.Perm()&block.PermWrite != 0 {
		s.must(s.Zero(0, s.size, block.MayUnmap))
		s.must(s.Write(70000, 0, []byte("not zero")))
	}
	data := s.content()
	for _, step := range []int64{s.size, 4096, 1000} {
		for off := int64(0); off < s.size; {
			n := min(step, s.size-off)
			e, err := s.Status(off, n)
			s.must(err)
			if e.Len < 1 || e.Len > n {
				s.Fatalf("status of %d bytes at %d: length %d", n, off, e.Len)
			}
			if e.EOF != (off+e.Len == s.Child.Size()) {
				s.Errorf("status at %d: eof is %v", off, e.EOF)
			}
			if e.Zero && !allZero(data[off:off+e.Len]) {
				s.Errorf("status says zeroes over data in %d bytes at %d", e.Len, off)
			}
			if e.Depth < 0 {
				s.Errorf("status at %d: depth %d", off, e.Depth)
			}
			off += e.Len
		}
	}
}

// testPermission: an edge without a permission cannot do what takes it.
func (s *suite) testPermission() {
	c, err := s.Child.Instance().NewChild("reader", block.RoleRoot, block.PermRead, block.PermAll)
	s.must(err)
	defer c.Close()
	before := s.content()
	r := &Client{Child: c, Queue: s.Queue, Group: s.Group}
	want := syscall.EPERM
	if s.Child.Info().ReadOnly {
		want = syscall.EROFS
		if _, err := s.Child.Instance().NewChild("writer", block.RoleRoot, block.PermWrite, block.PermAll); !errors.Is(err, syscall.EROFS) {
			s.Errorf("an edge for writing to a node opened read-only: %v", err)
		}
	}
	s.expectError(r.Write(0, 0, []byte("x")), block.OpWrite, want)
	s.expectError(r.Zero(0, 4096, 0), block.OpZero, want)
	s.expectError(r.Discard(0, 4096), block.OpDiscard, want)
	s.expectError(r.Truncate(s.size), block.OpTruncate, want)
	if ok, _ := r.WriteFast(0, 0, before[:4096]); ok {
		s.Error("the fast lane took a write without permission")
	}
	if err := r.Flush(); err != nil {
		s.Errorf("flush by a reader: %v", err)
	}
	if !bytes.Equal(s.content(), before) {
		s.Error("a reader changed the content")
	}
}

// testDrain: nothing gets in until the drain ends, in either lane, and then
// everything does.
func (s *suite) testDrain() {
	in, b := s.Child.Instance(), make([]byte, 4096)
	s.must(s.Do(block.OpFlush, func(rq *block.Req) error { in.Drain(rq); return nil }))
	if ok, err := s.ReadFast(0, b); ok || err != nil {
		s.Errorf("the fast lane answered a drained node: %v", err)
	}
	done := make(chan error, 2)
	go func() { done <- s.Read(0, b) }()
	go func() { done <- s.Flush() }()
	select {
	case err := <-done:
		s.Errorf("a request ended on a drained node: %v", err)
		done <- nil
	case <-after(20e6):
	}
	in.Undrain()
	s.must(<-done)
	s.must(<-done)
}

// measure asserts that f, which ran before, allocates nothing.
func (s *suite) measure(what string, op block.Op, n int64, f func(rq *block.Req) error) {
	s.Helper()
	if !s.opts.NoAllocations {
		return
	}
	if avg := testing.AllocsPerRun(200, func() {
		rq := s.Queue.Begin()
		err := f(rq)
		s.Queue.End(rq, op, n, err)
		if err != nil {
			s.Fatal(err)
		}
	}); avg != 0 {
		s.Errorf("%s of %d bytes: %v allocations", what, n, avg)
	}
}

func (s *suite) testReadAllocations() {
	for _, v := range s.shapes() {
		s.measure("read", block.OpRead, v.Len(), func(rq *block.Req) error { return s.Child.Preadv(rq, 65536, v, 0) })
	}
}

func (s *suite) testWriteAllocations() {
	for _, v := range s.shapes() {
		s.measure("write", block.OpWrite, v.Len(), func(rq *block.Req) error { return s.Child.Pwritev(rq, 65536, v, 0) })
	}
}

// shapes are vectors: aligned, misaligned in address, length and number.
func (s *suite) shapes() map[string]block.Vec {
	many := make([]int, 1500)
	for i := range many {
		many[i] = 8
	}
	return map[string]block.Vec{
		"one block":             {Memory(s, 4096)},
		"16 pages":              Cut(Memory(s, 65536), 4096, 4096, 4096, 4096, 4096, 4096, 4096, 4096),
		"at 512":                {AtAddress(s, 8192, 512)},
		"at 1":                  {AtAddress(s, 8192, 1)},
		"sectors":               Cut(Memory(s, 4096), 512, 1024, 512),
		"odd cuts":              Cut(Memory(s, 8192), 1, 4095, 3, 511),
		"odd length":            {Memory(s, 5001)},
		"one byte":              {Memory(s, 1)},
		"empty elements":        {nil, Memory(s, 4096)[:1000], {}, Memory(s, 3096), nil},
		"1501 elements":         Cut(Memory(s, 16384), many...),
		"1501 elements and odd": Cut(Memory(s, 16383), many...),
	}
}

// testShapes writes and reads each shape of vector at aligned and unaligned
// offsets, in both lanes.
func (s *suite) testShapes() {
	want := s.fill(1)
	seed := uint64(2)
	for name, v := range s.shapes() {
		for _, off := range []int64{0, 4096, 512, 1, 65536 - 1} {
			n := v.Len()
			seed++
			data := Pattern(make([]byte, n), seed)
			v.CopyIn(data, 0)
			ok, err := false, error(nil)
			if seed%2 == 0 {
				ok, err = s.WriteFast(off, 0, v...)
			}
			if !ok && err == nil {
				err = s.Write(off, 0, v...)
			}
			s.must(err)
			copy(want[off:], data)
			s.expect(fmt.Sprintf("after writing %s at %d", name, off), want)
			s.readBack(name, off, v, want)
		}
	}
}

func (s *suite) readBack(name string, off int64, v block.Vec, want []byte) {
	s.Helper()
	n := v.Len()
	if s.opts.Forgets {
		want = make([]byte, len(want))
	}
	for lane := range 2 {
		v.CopyIn(bytes.Repeat([]byte{0x5A}, int(n)), 0)
		ok := false
		if lane == 0 {
			var err error
			ok, err = s.ReadFast(off, v...)
			s.must(err)
		}
		if !ok {
			s.must(s.Read(off, v...))
		}
		got := make([]byte, n)
		v.CopyOut(got, 0)
		if at := firstDifference(got, want[off:off+n]); at >= 0 {
			s.Fatalf("reading %s at %d: wrong from byte %d", name, off, at)
		}
	}
}
