package vhostuser

import (
	"bytes"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/block/blocktest"
	export "github.com/platter-storage/platter/export/vhostuser"
	"github.com/platter-storage/platter/internal/rawio"
)

// batch is requests of the fast lane that are submitted together.
type batch struct {
	ios  []*block.IO
	done chan *block.IO
}

func newBatch(n, size int) *batch {
	b := &batch{done: make(chan *block.IO, n)}
	for range n {
		b.ios = append(b.ios, &block.IO{Vec: [][]byte{make([]byte, size/2), make([]byte, size/2)}, Done: func(io *block.IO) { b.done <- io }})
	}
	return b
}

// run submits all and waits for all.
func (b *batch) run(l block.Leaf, kind rawio.Kind) (failed int, err error) {
	for i, io := range b.ios {
		io.Kind, io.Off = kind, int64(i)*8192
	}
	l.Submit(b.ios)
	for range b.ios {
		if io := <-b.done; io.Err != nil || io.N != int(block.Vec(io.Vec).Len()) {
			failed, err = failed+1, io.Err
		}
	}
	return failed, err
}

// A batch goes down and comes back, more of it than there is room for, and
// allocates nothing.
func TestBatches(t *testing.T) {
	for name, vals := range map[string]block.Values{"indirect": nil, "few chunks": {"memory": "1M", "queues": "1"}, "small ring": {"queue-size": "4", "queues": "1"}} {
		t.Run(name, func(t *testing.T) {
			env := blocktest.NewEnv(t)
			s := serve(t, memDisk(t, env, "4M"), export.Config{})
			in := blocktest.Open(t, env, s.with(vals), nil)
			m, ok := in.Info().Abilities.Mapper.Map(nil, block.OpRead, 0, nil, 0)
			if !ok || m.Kind != block.MapFile {
				t.Fatalf("mapping %+v, %v", m, ok)
			}
			b := newBatch(100, 8192)
			for i, io := range b.ios {
				blocktest.Pattern(io.Vec[0], uint64(2*i))
				blocktest.Pattern(io.Vec[1], uint64(2*i+1))
			}
			if n, err := b.run(m.Leaf, rawio.Write); n > 0 {
				t.Fatalf("%d writes failed: %v", n, err)
			}
			for _, io := range b.ios {
				clear(io.Vec[0])
				clear(io.Vec[1])
			}
			if n, err := b.run(m.Leaf, rawio.Read); n > 0 {
				t.Fatalf("%d reads failed: %v", n, err)
			}
			want := make([]byte, 4096)
			for i, io := range b.ios {
				if !bytes.Equal(io.Vec[1], blocktest.Pattern(want, uint64(2*i+1))) {
					t.Fatalf("request %d read other data than was written", i)
				}
			}
			if avg := testing.AllocsPerRun(20, func() { b.run(m.Leaf, rawio.Read) }); avg != 0 {
				t.Errorf("%v allocations for 100 requests", avg)
			}
			s.stop()
			if n, err := b.run(m.Leaf, rawio.Read); n != 100 || err != syscall.ENOTCONN {
				t.Errorf("without a server %d of 100 failed with %v", n, err)
			}
		})
	}
}

// Memory of a caller that is gone fails the request, in each lane and each
// direction, and nothing else.
func TestCallersMemoryGoes(t *testing.T) {
	env := blocktest.NewEnv(t)
	s := serve(t, memDisk(t, env, "1M"), export.Config{})
	in := blocktest.Open(t, env, s.with(block.Values{"memory": "1M", "queues": "1"}), nil)
	c := blocktest.NewClient(t, blocktest.Edge(t, in))
	gone := goneMemory(t, 65536)
	m, _ := in.Info().Abilities.Mapper.Map(nil, block.OpRead, 0, nil, 0)
	for range 50 { // more than there are places and chunks
		if err := c.Write(0, 0, gone); block.Errno(err) != syscall.EFAULT {
			t.Fatalf("a write of memory that is gone: %v", err)
		}
		if err := c.Read(0, gone); block.Errno(err) != syscall.EFAULT {
			t.Fatalf("a read to memory that is gone: %v", err)
		}
		b := newBatch(2, 8192)
		b.ios[0].Vec = [][]byte{gone}
		for _, kind := range []rawio.Kind{rawio.Write, rawio.Read} {
			if n, err := b.run(m.Leaf, kind); n != 1 || err != syscall.EFAULT {
				t.Fatalf("%d of 2 failed, with %v", n, err)
			}
		}
	}
	if err := c.Read(0, make([]byte, 1<<20)); err != nil {
		t.Error(err)
	}
}

// goneMemory is a mapping of a file that was cut short.
func goneMemory(t *testing.T, n int) []byte {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "guest"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(int64(n)); err != nil {
		t.Fatal(err)
	}
	b, err := unix.Mmap(int(f.Fd()), 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(b) })
	if err := f.Truncate(0); err != nil {
		t.Fatal(err)
	}
	return b
}
