package file

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/platter-storage/platter/block"
)

// BenchmarkRead is random reads of 4 KiB by the blocking methods, from any
// number of goroutines, on the temporary folder's file system and in memory.
func BenchmarkRead(b *testing.B) {
	for _, s := range []storage{tempStorage, tmpfsStorage} {
		const size = 256 << 20
		path := makeDisk(b, b.TempDir(), size, "preallocation=full")
		if s.name == tmpfsStorage.name {
			path = makeDisk(b, tmpfsDir(b), size, "preallocation=full")
		}
		for _, m := range []string{"aio=auto,cache=none", "aio=io_uring,cache=none", "aio=threads,cache=none", "aio=auto,cache=writeback", "aio=io_uring,cache=writeback"} {
			for _, depth := range []int{1, 4, 32} {
				b.Run(fmt.Sprintf("%s/%s/%d", s.name, m, depth), func(b *testing.B) {
					e := openEdge(b, path, m)
					var next atomic.Uint64
					b.SetParallelism(max(depth/2, 1))
					b.ReportAllocs()
					work := func(more func() bool) {
						buf := block.Vec{aligned(b, 4096, 0)}
						rnd := rand.New(rand.NewPCG(next.Add(1), 1))
						for more() {
							rq := e.q.Begin()
							err := e.Preadv(rq, rnd.Int64N(size/4096)*4096, buf, 0)
							e.q.End(rq, block.OpRead, 4096, err)
							if err != nil {
								b.Error(err)
							}
						}
					}
					if depth == 1 {
						n := 0
						work(func() bool { n++; return n <= b.N })
						return
					}
					b.RunParallel(func(pb *testing.PB) { work(pb.Next) })
				})
			}
		}
	}
}
