package block_test

import (
	"testing"

	"github.com/platter-storage/platter/block"
	bt "github.com/platter-storage/platter/block/blocktest"
)

// benchmark runs f over two nodes that do nothing.
func benchmark(b *testing.B, f func(c *block.Child, rq *block.Req) error) {
	n := &sink{}
	n.info.Abilities.Mapper = n
	n.info.SetLimits(blocks())
	n.info.SetSize(16 << 20)
	c := stack(b, bt.NewClient(b, bt.Edge(b, bt.Attach(b, bt.NewEnv(b), n, "sink"))), 4096, blocks())
	b.ReportAllocs()
	for b.Loop() {
		rq := c.Queue.Begin()
		err := f(c.Child, rq)
		c.Queue.End(rq, block.OpRead, 4096, err)
		if err != nil {
			b.Fatal(err)
		}
	}
}

// What the edges of two nodes cost a request, in each lane and way.
func BenchmarkEdges(b *testing.B) {
	v := block.Vec{bt.Memory(b, 4096)}
	odd := block.Vec{bt.AtAddress(b, 4096, 1)}
	sector := block.Vec{v[0][:512]}
	b.Run("fast lane", func(b *testing.B) {
		benchmark(b, func(c *block.Child, rq *block.Req) error {
			if _, ok := c.Map(rq, block.OpRead, 0, v, 0); !ok {
				b.Fatal("declined")
			}
			err, _ := c.Finish(rq, 4096, 4096, nil)
			return err
		})
	})
	b.Run("direct write", func(b *testing.B) {
		benchmark(b, func(c *block.Child, rq *block.Req) error { return c.Pwritev(rq, 0, v, 0) })
	})
	b.Run("bounced write", func(b *testing.B) {
		benchmark(b, func(c *block.Child, rq *block.Req) error { return c.Pwritev(rq, 0, odd, 0) })
	})
	b.Run("sector", func(b *testing.B) {
		benchmark(b, func(c *block.Child, rq *block.Req) error { return c.Pwritev(rq, 512, sector, 0) })
	})
}
