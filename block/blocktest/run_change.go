package blocktest

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"syscall"

	"github.com/platter-storage/platter/block"
)

// testEnd: requests that end at the size are served whatever the size is.
func (s *suite) testEnd() {
	size := s.Child.Size()
	for _, n := range []int64{1, 100, 512, 4096, 4097, 70001} {
		data := Pattern(make([]byte, n), uint64(n))
		s.must(s.Write(size-n, 0, data))
		if s.opts.Forgets {
			clear(data)
		}
		got := make([]byte, n)
		s.must(s.Read(size-n, got))
		if !bytes.Equal(got, data) {
			s.Errorf("the last %d bytes are not what was written", n)
		}
		s.must(s.Zero(size-n/2, n/2, 0))
		clear(data[n-n/2:])
		s.must(s.Read(size-n, got))
		if !bytes.Equal(got, data) {
			s.Errorf("after zeroing the last %d bytes they, or those before, are wrong", n/2)
		}
		s.must(s.Discard(size-n, n))
	}
	if s.Child.Size() != size {
		s.Errorf("writing the end made the size %d, it was %d", s.Child.Size(), size)
	}
}

// testVisibility: a completed write is seen through every edge and queue, in
// both lanes.
func (s *suite) testVisibility() {
	other := NewClient(s, Edge(s, s.Child.Instance()))
	b, got := make([]byte, 4096), make([]byte, 4096)
	for i := range uint64(32) {
		Pattern(b, i)
		from, to := s.Client, other
		if i%2 == 1 {
			from, to = other, s.Client
		}
		ok, err := false, error(nil)
		if i%4 < 2 {
			ok, err = from.WriteFast(8192, 0, b)
		}
		if !ok && err == nil {
			err = from.Write(8192, 0, b)
		}
		s.must(err)
		ok = false
		if i%8 < 4 {
			ok, err = to.ReadFast(8192, got)
		}
		if !ok && err == nil {
			err = to.Read(8192, got)
		}
		s.must(err)
		if !s.opts.Forgets && !bytes.Equal(got, b) {
			s.Fatalf("write %d is not seen through another edge", i)
		}
	}
}

func (s *suite) testDurability() {
	want := s.fill(1)
	s.must(s.Write(100, block.FUA, []byte("odd")))
	copy(want[100:], "odd")
	s.must(s.Write(4096, block.FUA, want[:4096]))
	copy(want[4096:], want[:4096])
	s.must(s.Zero(8192, 4096, block.FUA))
	clear(want[8192 : 8192+4096])
	s.must(s.Flush())
	if ok, err := s.WriteFast(16384, block.FUA, want[:4096]); err != nil {
		s.Fatal(err)
	} else if ok {
		copy(want[16384:], want[:4096])
	}
	s.must(s.Write(20480, block.Serialising, want[:4096]))
	copy(want[20480:], want[:4096])
	s.expect("after FUA, flush and a serialising write", want)
}

// testZero: all combinations of flags, aligned and not. NoFallback may refuse,
// and then nothing has changed.
func (s *suite) testZero() {
	for fl := block.Flags(0); fl <= block.FUA|block.MayUnmap|block.NoFallback; fl++ {
		want := s.fill(uint64(fl) + 1)
		for _, r := range []struct{ off, n int64 }{
			{0, 4096}, {4096, 65536}, {65536, 131072}, {1, 1}, {511, 2}, {513, 100}, {5000, 60000}, {65535, 65538}, {0, s.size},
		} {
			err := s.Zero(r.off, r.n, fl)
			switch {
			case err == nil:
				clear(want[r.off : r.off+r.n])
			case fl&block.NoFallback == 0:
				s.Fatalf("write zeroes with %q: %v", fl, err)
			case !block.IsNotSupported(err):
				s.Fatalf("write zeroes with %q: %v, want success or ENOTSUP", fl, err)
			}
			s.expect(fmt.Sprintf("write zeroes with %q of %d bytes at %d (%v)", fl, r.n, r.off, err), want)
		}
	}
}

// testDiscard: it never fails, and leaves what is outside its range alone.
func (s *suite) testDiscard() {
	for _, r := range []struct{ off, n int64 }{{0, 65536}, {1, 1}, {511, 3}, {4095, 131074}, {100000, 100000}, {0, s.size}} {
		old := s.fill(uint64(r.off) + 7)
		s.must(s.Discard(r.off, r.n))
		got := s.content()
		for i, x := range got {
			inside := int64(i) >= r.off && int64(i) < r.off+r.n
			switch {
			case inside && s.opts.AnyAfterDiscard, s.opts.Forgets, x == old[i], inside && x == 0:
			default:
				s.Fatalf("after discarding %d bytes at %d: byte %d is %#x, it was %#x", r.n, r.off, i, x, old[i])
			}
		}
	}
}

// testTruncate: growth reads as zeroes, also after shrinking; a node that
// cannot resize says so and keeps its size.
func (s *suite) testTruncate() {
	size := s.Child.Size()
	if s.Child.Perm()&block.PermResize == 0 {
		s.expectError(s.Truncate(size), block.OpTruncate, syscall.EPERM)
		return
	}
	s.expectError(s.Truncate(-1), block.OpTruncate, syscall.EINVAL)
	s.expectError(s.Truncate(block.MaxSize+1), block.OpTruncate, syscall.EFBIG)
	tail := Pattern(make([]byte, 100000), 3)
	s.must(s.Write(size-100000, 0, tail))
	switch err := s.Truncate(size - 50001); {
	case block.IsNotSupported(err):
		if s.Child.Size() != size {
			s.Errorf("the resize was refused (%v), and the size is %d", err, s.Child.Size())
		}
		return
	case errors.Is(err, syscall.EINVAL): // an unaligned size
		s.must(s.Truncate(size - 65536))
	default:
		s.must(err)
	}
	cut := s.Child.Size()
	s.expectError(s.Read(cut, make([]byte, 1)), block.OpRead, syscall.EINVAL)
	s.must(s.Truncate(size + 65536))
	if n := s.Child.Size(); n != size+65536 {
		s.Fatalf("size %d after growing to %d", n, size+65536)
	}
	got := make([]byte, 165536)
	s.must(s.Read(size-100000, got))
	kept := cut - (size - 100000)
	if !s.opts.Forgets && !bytes.Equal(got[:kept], tail[:kept]) {
		s.Error("resizing lost what was before the end")
	}
	if !allZero(got[kept:]) {
		s.Error("what the disk grew by does not read as zeroes")
	}
}

// testGuestMemory: memory that changes during a write gives each byte its old
// or its new value, and nothing breaks.
func (s *suite) testGuestMemory() {
	mem := Memory(s, 65536+1)
	for round := range 8 {
		old, young := byte(0x11), byte(0x22)
		for i := range mem {
			mem[i] = old
		}
		var wg sync.WaitGroup
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := len(mem) - 1; i >= 0; i-- {
				mem[i] = young
			}
		}()
		v := Cut(mem[round%2:][:65536], 4096, 512, 100)
		off := int64(round) * 1000
		s.must(s.Write(off, 0, v...))
		wg.Wait()
		got := make([]byte, 65536)
		s.must(s.Read(off, got))
		for i, x := range got {
			if x != old && x != young && !s.opts.Forgets {
				s.Fatalf("byte %d is %#x, memory held %#x and then %#x", i, x, old, young)
			}
		}
	}
}
