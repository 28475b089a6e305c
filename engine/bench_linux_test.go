package engine

import (
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/platter-storage/platter/internal/rawio"
)

func cpu() time.Duration {
	var ru syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &ru)
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

func benchFile(b *testing.B, dir string, flags FileFlags) *File {
	f, err := os.CreateTemp(dir, "bench")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.Remove(f.Name()); f.Close() })
	buf := make([]byte, 1<<20)
	for i := range buf {
		buf[i] = byte(i * 7)
	}
	for range 256 {
		f.Write(buf)
	}
	f.Sync()
	return openAgain(b, f.Name(), flags)
}

func BenchmarkShared(b *testing.B) {
	files := []struct {
		name  string
		dir   string
		flags FileFlags
	}{
		{"direct", b.TempDir(), Direct | Registrable},
	}
	type way struct {
		name   string
		kind   Kind
		inline int32
	}
	ways := []way{{"preadv", Inline, 1}, {"uring", Uring, 0}, {"uring4", Uring, 4}, {"aio", Native, 0}}
	for _, fl := range files {
		f := benchFile(b, fl.dir, fl.flags)
		for _, depth := range []int{1, 2, 4, 8, 16, 32} {
			for _, w := range ways {
				b.Run(fmt.Sprintf("%s/%d/%s", fl.name, depth, w.name), func(b *testing.B) {
					s, err := newShared(w.kind, Config{Depth: 128, Workers: 32}, w.inline)
					if err != nil {
						b.Fatal(err)
					}
					defer s.Close()
					benchDo(b, s, f, depth)
				})
			}
		}
	}
}

func benchDo(b *testing.B, s *Shared, f *File, depth int) {
	var wg sync.WaitGroup
	start, c0 := time.Now(), cpu()
	b.ResetTimer()
	for g := range depth {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(g)))
			io := &rawio.IO{Vec: [][]byte{aligned(4096)}}
			p := NewParker()
			for range (b.N + depth - 1) / depth {
				io.Off = int64(rng.IntN(65536)) << 12
				if err := s.Do(f, io, p); err != nil || io.N != 4096 {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	el, c := time.Since(start), cpu()-c0
	b.ReportMetric(float64(c.Nanoseconds())/1e3/float64(b.N), "cpu-us/op")
	b.ReportMetric(float64(el.Nanoseconds())/1e3/float64(b.N)*float64(depth), "lat-us")
}
