package file

import (
	"bytes"
	"os"
	"sync"
	"testing"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/race"
	"github.com/platter-storage/platter/internal/rawio"
)

// submit moves the bytes of a mapped request and waits, as an export does
// without waiting.
func submit(m block.Mapping, op block.Op, v block.Vec, fl block.Flags) (int64, error) {
	done := make(chan struct{})
	io := &rawio.IO{Kind: rawio.Read, Off: m.Off, Vec: v, Done: func(*rawio.IO) { close(done) }}
	if op == block.OpWrite {
		io.Kind, io.Sync = rawio.Write, fl&block.FUA != 0
	}
	m.Leaf.Submit([]*rawio.IO{io})
	<-done
	return int64(io.N), io.Err
}

// TestFastLaneBatches: many requests in one Submit, by every engine, with FUA
// and without; what was written is read back by the other lane.
func TestFastLaneBatches(t *testing.T) {
	for _, m := range laneModes() {
		t.Run(m, func(t *testing.T) {
			path := makeDisk(t, t.TempDir(), 1<<20, "")
			e := openEdge(t, path, m)
			data := pattern(aligned(t, 1<<20, 0), 7)
			batch(t, e, block.OpWrite, data, 0)
			got := aligned(t, 1<<20, 0)
			if err := e.read(0, got); err != nil || !bytes.Equal(got, data) {
				t.Errorf("written by the fast lane, read by the slow one: %v, or other content", err)
			}
			batch(t, e, block.OpWrite, pattern(data, 8), block.FUA)
			clear(got)
			batch(t, e, block.OpRead, got, 0)
			if !bytes.Equal(got, data) {
				t.Error("what was read is not what was written")
			}
		})
	}
}

func laneModes() []string {
	return []string{"aio=auto,cache=none", "aio=auto,cache=writeback", "aio=io_uring,cache=none", "aio=native,cache=none", "aio=threads,cache=none", "aio=threads,cache=unsafe", "aio=io_uring,cache=directsync", "aio=auto,cache=writethrough"}
}

// batch moves data in pieces of 16 KiB, two elements each, in one Submit.
func batch(t *testing.T, e *edge, op block.Op, data []byte, fl block.Flags) {
	t.Helper()
	const piece = 16 << 10
	var ios []*rawio.IO
	var wg sync.WaitGroup
	var leaf block.Leaf
	for off := int64(0); off < int64(len(data)); off += piece {
		v := block.Vec{data[off : off+4096], data[off+4096 : off+piece]}
		rq := e.q.Begin()
		m, ok := e.Map(rq, op, off, v, fl)
		if !ok {
			t.Fatalf("%v at %d was declined", op, off)
		}
		leaf = m.Leaf
		wg.Add(1)
		io := &rawio.IO{Kind: rawio.Read, Off: m.Off, Vec: v, Done: func(io *rawio.IO) {
			if err, again := e.Finish(rq, piece, int64(io.N), io.Err); err != nil || again {
				t.Errorf("%v at %d: %d bytes, %v", op, off, io.N, io.Err)
			}
			e.q.End(rq, op, piece, nil)
			wg.Done()
		}}
		if op == block.OpWrite {
			io.Kind, io.Sync = rawio.Write, fl&block.FUA != 0
		}
		ios = append(ios, io)
	}
	leaf.Submit(ios)
	wg.Wait()
}

// TestFastLaneDeclinesTheTail: what ends in the last, unaligned page.
func TestFastLaneDeclinesTheTail(t *testing.T) {
	path := makeDisk(t, t.TempDir(), 1<<20+100, "")
	e := openEdge(t, path, "cache=none")
	for _, c := range []struct {
		off, n int64
		want   bool
	}{{0, 1 << 20, true}, {1<<20 - 512, 512, true}, {1 << 20, 100, false}, {1<<20 - 4096, 4196, false}, {0, 512, true}} {
		v := block.Vec{aligned(t, int(c.n), 0)}
		for _, op := range []block.Op{block.OpRead, block.OpWrite} {
			rq := e.q.Begin()
			m, ok := e.Map(rq, op, c.off, v, 0)
			if ok != c.want {
				t.Errorf("%v of %d at %d: taken %v, want %v", op, c.n, c.off, ok, c.want)
			}
			if ok {
				n, err := submit(m, op, v, 0)
				if err, again := e.Finish(rq, c.n, n, err); err != nil || again {
					t.Errorf("%v of %d at %d: %v, again %v", op, c.n, c.off, err, again)
				}
			}
			e.q.End(rq, op, 0, nil)
		}
	}
	if fi, err := os.Stat(path); err != nil || fi.Size() != 1<<20+100 {
		t.Errorf("the file has %d bytes", fi.Size())
	}
}

// TestLeafDressesWrites as the cache mode says.
func TestLeafDressesWrites(t *testing.T) {
	for cache, want := range map[string][2]bool{"none": {false, true}, "directsync": {true, true}, "writethrough": {true, true}, "unsafe": {false, false}} {
		e := openEdge(t, makeDisk(t, t.TempDir(), 1<<20, ""), "cache="+cache)
		for i, fua := range []bool{false, true} {
			done := make(chan struct{})
			io := &rawio.IO{Kind: rawio.Write, Sync: fua, Vec: [][]byte{aligned(t, 4096, 0)}, Done: func(*rawio.IO) { close(done) }}
			e.n.leaf.Submit([]*rawio.IO{io})
			<-done
			if io.Err != nil || io.Sync != want[i] {
				t.Errorf("cache=%s, FUA %v: durable %v, error %v", cache, fua, io.Sync, io.Err)
			}
		}
	}
}

// TestInlineFiles promise that they never wait.
func TestInlineFiles(t *testing.T) {
	e := openEdge(t, makeDisk(t, tmpfsDir(t), 1<<20, ""), "cache=none")
	if !e.n.info.Inline {
		t.Error("a file on tmpfs is not inline")
	}
	called := false
	io := &rawio.IO{Kind: rawio.Read, Vec: [][]byte{make([]byte, 512)}, Done: func(*rawio.IO) { called = true }}
	e.n.leaf.Submit([]*rawio.IO{io})
	if !called || io.N != 512 {
		t.Errorf("done within Submit: %v, %d bytes, %v", called, io.N, io.Err)
	}
	disk := openEdge(t, makeDisk(t, t.TempDir(), 1<<20, ""), "cache=none")
	if disk.n.info.Inline {
		t.Error("a file on a disk is inline")
	}
}

// TestReadsAndWritesAllocateNothing, by every engine and on the ways through
// bounce buffers and the tail as well.
func TestReadsAndWritesAllocateNothing(t *testing.T) {
	for _, m := range append(laneModes(), "aio=io_uring,cache=writeback") {
		t.Run(m, func(t *testing.T) {
			e := openEdge(t, makeDisk(t, t.TempDir(), 1<<20+100, ""), m+",linearise=never") // a change of that decision is logged
			few := block.Vec{aligned(t, 4096, 0), aligned(t, 4096, 0)}
			var many block.Vec
			for range 64 {
				many = append(many, aligned(t, 4096, 0))
			}
			crooked := block.Vec{aligned(t, 4096, 100)}
			tail := block.Vec{aligned(t, 100, 0)}
			for _, c := range []struct {
				name string
				off  int64
				v    block.Vec
			}{{"two elements", 0, few}, {"64 elements", 0, many}, {"bounced", 4096, crooked}, {"unaligned", 100, few}, {"tail", 1 << 20, tail}} {
				move := func(op block.Op) func() {
					n := c.v.Len()
					return func() {
						rq := e.q.Begin()
						var err error
						if op == block.OpRead {
							err = e.Preadv(rq, c.off, c.v, 0)
						} else {
							err = e.Pwritev(rq, c.off, c.v, 0)
						}
						e.q.End(rq, op, n, err)
						if err != nil {
							t.Fatal(err)
						}
					}
				}
				for _, op := range []block.Op{block.OpRead, block.OpWrite} {
					f := move(op)
					f()
					if n := testing.AllocsPerRun(20, f); n != 0 && !race.Enabled {
						t.Errorf("%s, %v: %v allocations", c.name, op, n)
					}
				}
			}
		})
	}
}

// TestMapAllocatesNothing: the fast lane as far as it is ours.
func TestMapAllocatesNothing(t *testing.T) {
	e := openEdge(t, makeDisk(t, t.TempDir(), 1<<20, ""), "cache=none")
	v := block.Vec{aligned(t, 4096, 0)}
	if n := testing.AllocsPerRun(1000, func() {
		rq := e.q.Begin()
		if _, ok := e.Map(rq, block.OpWrite, 8192, v, block.FUA); !ok {
			t.Fatal("declined")
		}
		if err, again := e.Finish(rq, 4096, 4096, nil); err != nil || again {
			t.Fatal(err, again)
		}
		e.q.End(rq, block.OpWrite, 4096, nil)
	}); n != 0 && !race.Enabled {
		t.Errorf("%v allocations", n)
	}
}
