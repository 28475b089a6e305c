package vhostuser

import (
	"fmt"
	"testing"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/block/blocktest"
	export "github.com/platter-storage/platter/export/vhostuser"
	"github.com/platter-storage/platter/internal/rawio"
	_ "github.com/platter-storage/platter/protocol/null"
)

// What the driver costs over a server of ours that does nothing: one request at
// a time, with and without looking for its end, and batches in the fast lane.
func BenchmarkRead(b *testing.B) {
	for name, vals := range map[string]block.Values{"sleeping": {"queues": "1"}, "polling": {"queues": "1", "poll-ns": "50000"}} {
		b.Run(name, func(b *testing.B) {
			c := blocktest.NewClient(b, blocktest.Edge(b, overNull(b, vals)))
			buf := make([]byte, 4096)
			for b.Loop() {
				if err := c.Read(4096, buf); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	for _, n := range []int{1, 32} {
		b.Run(fmt.Sprintf("batches of %d", n), func(b *testing.B) {
			m, _ := overNull(b, block.Values{"queues": "1"}).Info().Abilities.Mapper.Map(nil, block.OpRead, 0, nil, 0)
			batch := newBatch(n, 4096)
			b.ReportAllocs()
			for b.Loop() {
				if bad, err := batch.run(m.Leaf, rawio.Read); bad > 0 {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/request")
		})
	}
}

// overNull is a disk that a server of ours serves and that keeps nothing.
func overNull(b *testing.B, vals block.Values) *block.Instance {
	env := blocktest.NewEnv(b)
	s := serve(b, blocktest.Open(b, env, block.Values{"driver": "null"}, nil), export.Config{})
	return blocktest.Open(b, env, s.with(vals), nil)
}
