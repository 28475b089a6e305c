package mem

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/block/blocktest"
)

func openMem(t testing.TB, size string) *blocktest.Client {
	t.Helper()
	in := blocktest.Open(t, blocktest.NewEnv(t), block.Values{"driver": "mem", "size": size}, nil)
	return blocktest.NewClient(t, blocktest.Edge(t, in))
}

func TestURI(t *testing.T) {
	for uri, want := range map[string]string{"mem:1G": "1G", "mem://64K": "64K", "mem:0": "0"} {
		if vals, err := parseURI(uri); err != nil || vals["size"] != want {
			t.Errorf("%s: %v, %v", uri, vals, err)
		}
	}
	for _, uri := range []string{"mem:", "mem://", "mem:1X"} {
		if _, err := parseURI(uri); err == nil {
			t.Errorf("%s was taken", uri)
		}
	}
}

// The largest disk opens, one byte more is refused with the limit named.
func TestMaxSize(t *testing.T) {
	cl := openMem(t, fmt.Sprint(int64(MaxSize)))
	got := make([]byte, 3)
	if err := cl.Write(MaxSize-3, 0, []byte("end")); err != nil {
		t.Fatal(err)
	}
	if err := cl.Read(MaxSize-3, got); err != nil || string(got) != "end" {
		t.Errorf("%q, %v", got, err)
	}
	_, err := blocktest.TryOpen(t, blocktest.NewEnv(t), block.Values{"driver": "mem", "size": fmt.Sprint(int64(MaxSize) + 1)}, nil, false)
	if !errors.Is(err, syscall.EFBIG) {
		t.Errorf("one byte more: %v", err)
	}
	if err := cl.Truncate(MaxSize + 1); !errors.Is(err, syscall.EFBIG) {
		t.Errorf("growing by one byte more: %v", err)
	}
}

// Growth keeps the content and reads as zeroes behind it, also where the disk
// had been that long before.
func TestTruncate(t *testing.T) {
	cl := openMem(t, "100000")
	data := bytes.Repeat([]byte("x"), 100000)
	if err := cl.Write(0, 0, data); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int64{70000, 99999, 300000, 10, 0, 5 << 20} {
		if err := cl.Truncate(size); err != nil {
			t.Fatal(err)
		}
		kept := min(size, int64(len(data)))
		want := append(bytes.Clone(data[:kept]), make([]byte, size-kept)...)
		data = want
		got := bytes.Repeat([]byte{0xA5}, int(size))
		if err := cl.Read(0, got); err != nil || !bytes.Equal(got, want) {
			t.Errorf("size %d: content is wrong, %v", size, err)
		}
	}
	if err := cl.Do(block.OpTruncate, func(rq *block.Req) error { return cl.Child.Truncate(rq, 1<<20, block.PreallocFull) }); !errors.Is(err, syscall.ENOTSUP) {
		t.Errorf("preallocation: %v", err)
	}
}

// Block status follows writes, in both lanes, and what gives memory back.
func TestStatus(t *testing.T) {
	cl := openMem(t, "1M")
	expect := func(off, n, wantLen int64, zero bool) {
		t.Helper()
		e, err := cl.Status(off, n)
		if err != nil || e.Len != wantLen || e.Zero != zero || e.Data == zero || !e.Allocated {
			t.Errorf("status of %d+%d: %+v, %v; want length %d, zero %v", off, n, e, err, wantLen, zero)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	expect(0, 1<<20, 1<<20, true)
	must(cl.Write(2*chunk-1, 0, []byte("ab")))
	expect(0, 1<<20, chunk, true)
	expect(chunk+5, 1<<20-chunk-5, 2*chunk-5, false)
	expect(3*chunk, 1<<20-3*chunk, 1<<20-3*chunk, true)
	if ok, err := cl.WriteFast(5*chunk, 0, []byte("c")); !ok || err != nil {
		t.Fatal(ok, err)
	}
	expect(5*chunk, chunk, chunk, false)
	must(cl.Zero(chunk, chunk, 0)) // keeps its space
	expect(chunk, chunk, chunk, false)
	must(cl.Zero(chunk, chunk, block.MayUnmap))
	expect(chunk, chunk, chunk, true)
	must(cl.Zero(2*chunk+1, chunk-1, block.MayUnmap)) // not the whole chunk
	expect(2*chunk, chunk, chunk, false)
	must(cl.Discard(0, 1<<20))
	expect(0, 1<<20, 1<<20, true)
}

// A chunk whose bit is clear has no data that a completed write stored,
// whatever discards and writes meet in it.
func TestStatusAgainstConcurrentDiscard(t *testing.T) {
	cl := openMem(t, "64K")
	rounds := 3000
	if testing.Short() {
		rounds = 300
	}
	for i := range rounds {
		var wg sync.WaitGroup
		wg.Go(func() {
			if i%2 == 0 {
				_ = cl.Write(100, 0, []byte{1})
			} else {
				_, _ = cl.WriteFast(100, 0, []byte{1})
			}
		})
		wg.Go(func() { _ = cl.Discard(0, chunk) })
		wg.Wait()
		e, err := cl.Status(0, chunk)
		n := cl.Child.Instance()
		if b := memOf(n); err != nil || e.Zero && b[100] != 0 {
			t.Fatalf("round %d: status says zeroes over data (%v)", i, err)
		}
	}
}

func memOf(in *block.Instance) []byte { return in.Info().Abilities.Mapper.(*node).mem }

// No path of a request allocates.
func TestAllocations(t *testing.T) {
	cl := openMem(t, "1M")
	v := block.Vec{make([]byte, 1000), make([]byte, 3096)}
	for name, f := range map[string]func(rq *block.Req) error{
		"read":  func(rq *block.Req) error { return cl.Child.Preadv(rq, 4096, v, 0) },
		"write": func(rq *block.Req) error { return cl.Child.Pwritev(rq, 4096, v, 0) },
		"zero":  func(rq *block.Req) error { return cl.Child.WriteZeroes(rq, 4096, 4096, block.MayUnmap) },
		"mapped": func(rq *block.Req) error {
			m, ok := cl.Child.Map(rq, block.OpWrite, 4096, v, 0)
			if !ok || m.Kind != block.MapMemory {
				t.Fatal("declined")
			}
			err, _ := cl.Child.Finish(rq, 4096, 4096, nil)
			return err
		},
	} {
		if n := testing.AllocsPerRun(1000, func() {
			rq := cl.Queue.Begin()
			err := f(rq)
			cl.Queue.End(rq, block.OpRead, 4096, err)
			if err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
