package block_test

import (
	"errors"
	"syscall"
	"testing"

	"github.com/platter-storage/platter/block"
	bt "github.com/platter-storage/platter/block/blocktest"
)

// Every way through the edge, errors aside, allocates nothing.
func TestB1NoAllocationOnAnyPath(t *testing.T) {
	l := blocks()
	l.MaxSegments, l.MaxTransfer, l.ZeroAlign, l.MaxZero = 4, 256<<10, 65536, 65536
	n := &sink{}
	n.info.WriteFlags = 0
	n.info.Abilities.Mapper = n
	n.info.SetLimits(l)
	n.info.SetSize(16 << 20)
	c := bt.NewClient(t, bt.Edge(t, bt.Attach(t, bt.NewEnv(t), n, "sink")))
	top := stack(t, c, 512, sectors())
	mem, odd := bt.Memory(t, 4<<20), bt.AtAddress(t, 4<<20, 1)
	write := func(off int64, fl block.Flags, v ...[]byte) func(*bt.Client, *block.Req) error {
		return func(c *bt.Client, rq *block.Req) error { return c.Child.Pwritev(rq, off, v, fl) }
	}
	read := func(off int64, v ...[]byte) func(*bt.Client, *block.Req) error {
		return func(c *bt.Client, rq *block.Req) error { return c.Child.Preadv(rq, off, v, 0) }
	}
	zero := func(off, n int64) func(*bt.Client, *block.Req) error {
		return func(c *bt.Client, rq *block.Req) error { return c.Child.WriteZeroes(rq, off, n, block.MayUnmap) }
	}
	fast := block.Vec{mem[:4096]}
	for _, x := range []struct {
		name string
		took block.Path
		f    func(c *bt.Client, rq *block.Req) error
	}{
		{"direct read", block.PathDirect, read(4096, mem[:4096])},
		{"direct write", block.PathDirect, write(4096, 0, mem[:4096])},
		{"read of 4 elements", block.PathDirect, read(0, bt.Cut(mem[:16384], repeat(4096, 4)...)...)},
		{"bounced read", block.PathBounceMem, read(4096, odd[:4096])},
		{"bounced write", block.PathBounceMem, write(4096, 0, odd[:3<<20])},
		{"bounced for length", block.PathBounceLen, write(4096, 0, mem[:1024], mem[4096:4096+512], mem[8192:8192+2560], mem[512:4096+512-700], mem[16384:16384+700])},
		{"padded read", block.PathPadded, read(1, mem[:10000])},
		{"sector", block.PathRMW, write(512, 0, mem[:512])},
		{"long unaligned write", block.PathRMW, write(513, 0, mem[:3<<20])},
		{"split for length", block.PathSplit, write(0, 0, mem[:1<<20])},
		{"split for elements", block.PathSplit, read(0, bt.Cut(mem[:65536], repeat(1024, 64)...)...)},
		{"split and bounced", block.PathBounceSegs, write(0, 0, bt.Cut(mem[:65536], append(repeat(4096, 4), repeat(512, 32)...)...)...)},
		{"FUA by flush", block.PathFlushForFUA, write(0, block.FUA, mem[:4096])},
		{"serialising write", block.PathSlow, write(0, block.Serialising, mem[:4096])},
		{"zeroes", block.PathSlow, zero(65536, 1<<20)},
		{"zeroes, unaligned", block.PathZeroFallback, zero(100, 1<<20)},
		{"zeroes, one byte", block.PathRMW, zero(100, 1)},
		{"discard", 0, func(c *bt.Client, rq *block.Req) error { return c.Child.Discard(rq, 100, 1<<20) }},
		{"flush", 0, func(c *bt.Client, rq *block.Req) error { return c.Child.Flush(rq) }},
		{"status", 0, func(c *bt.Client, rq *block.Req) error { _, err := c.Child.BlockStatus(rq, 1, 100000); return err }},
		{"fast lane", block.PathFast, func(c *bt.Client, rq *block.Req) error {
			off := int64(0)
			if c == top {
				off = 4096 - 512
			}
			if _, ok := c.Child.Map(rq, block.OpRead, off, fast, 0); !ok {
				t.Error("the fast lane declined")
				return nil
			}
			err, _ := c.Child.Finish(rq, 4096, 4096, nil)
			return err
		}},
	} {
		for where, c := range map[string]*bt.Client{"one node": c, "two nodes": top} {
			f := func() {
				rq := c.Queue.Begin()
				err := x.f(c, rq)
				c.Queue.End(rq, block.OpRead, 0, err)
				if err != nil {
					t.Fatalf("%s: %v", x.name, err)
				}
			}
			before := took(c, max(x.took, 1))
			f()
			if x.took != 0 && where == "one node" && took(c, x.took) == before {
				t.Errorf("%s did not go the way it is to show", x.name)
			}
			if n := testing.AllocsPerRun(100, f); n != 0 {
				t.Errorf("%s, %s: %v allocations", x.name, where, n)
			}
		}
	}
}

// failing is a disk whose reads all fail.
type failing struct{ sink }

func (*failing) Preadv(*block.Req, int64, block.Vec, block.Flags) error { return syscall.EIO }

// A disk that fails each request costs a queue no memory that keeps errors with
// its requests, and the error says the same.
func TestOwnErrorsAllocateNothing(t *testing.T) {
	n := &failing{}
	n.info.SetLimits(block.ByteLimits())
	n.info.SetSize(1 << 20)
	c := bt.NewClient(t, bt.Edge(t, bt.Attach(t, bt.NewEnv(t), n, "disk")))
	q := block.NewQueue(c.Child.Instance().Env(), block.NewQueueGroup())
	q.OwnErrors()
	v := block.Vec{bt.Memory(t, 4096)}
	want := c.Read(4096, v[0]).Error()
	if n := testing.AllocsPerRun(100, func() {
		rq := q.Begin()
		err := c.Child.Preadv(rq, 4096, v, 0)
		if !errors.Is(err, syscall.EIO) {
			t.Errorf("%v", err)
		}
		q.End(rq, block.OpRead, 4096, err)
	}); n != 0 {
		t.Errorf("%v allocations for a request that fails", n)
	}
	rq := q.Begin()
	if got := c.Child.Preadv(rq, 4096, v, 0); got == nil || got.Error() != want {
		t.Errorf("%v, want %s", got, want)
	}
	q.End(rq, block.OpRead, 4096, nil)
}
