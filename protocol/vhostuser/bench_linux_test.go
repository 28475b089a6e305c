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
		env := blocktest.NewEnv(b)
		s := serve(b, blocktest.Open(b, env, block.Values{"driver": "null"}, nil), export.Config{})
		in := blocktest.Open(b, env, s.with(vals), nil)
		c := blocktest.NewClient(b, blocktest.Edge(b, in))
		buf := make([]byte, 4096)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := c.Read(4096, buf); err != nil {
					b.Fatal(err)
				}
			}
		})
		m, _ := in.Info().Abilities.Mapper.Map(nil, block.OpRead, 0, nil, 0)
		for _, n := range []int{1, 32} {
			b.Run(fmt.Sprintf("%s, batches of %d", name, n), func(b *testing.B) {
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
}
