package engine

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/platter-storage/platter/internal/rawio"
)

// The benchmarks read 4 KiB at random of a file of 256 MiB: on the file system
// of the temporary directory through O_DIRECT ("direct") and from the page
// cache ("cached"), and on tmpfs. They report, a request: time over all
// (ns/op), process CPU (cpu-us/op) and latency (lat-us). Run each alone and
// alternate: -bench Shared/direct/32 -benchtime 8000x -count 5.

const (
	benchSize  = 256 << 20
	benchBlock = 4096
)

type benchFile struct {
	name string
	f    *File
}

// benchFiles makes the three files.
func benchFiles(b *testing.B) []benchFile {
	files := []benchFile{
		{"direct", benchMake(b, b.TempDir(), Direct|Registrable)},
		{"cached", benchMake(b, b.TempDir(), Registrable)},
	}
	if st, err := os.Stat("/dev/shm"); err == nil && st.IsDir() {
		files = append(files, benchFile{"tmpfs", benchMake(b, "/dev/shm", Registrable)})
	}
	return files
}

func benchMake(b *testing.B, dir string, flags FileFlags) *File {
	f, err := os.CreateTemp(dir, "engine-bench")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		f.Close()
		os.Remove(f.Name())
	})
	buf := make([]byte, 1<<20)
	for i := range buf {
		buf[i] = byte(i * 7)
	}
	for range benchSize / len(buf) {
		if _, err := f.Write(buf); err != nil {
			b.Fatal(err)
		}
	}
	if err := f.Sync(); err != nil {
		b.Fatal(err)
	}
	return openAgain(b, f.Name(), flags)
}

// meter reports what b.N requests at some depth took.
type meter struct {
	start time.Time
	cpu   time.Duration
}

func processCPU() time.Duration {
	var ru syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &ru); err != nil {
		panic(err)
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

func startMeter(b *testing.B) meter {
	runtime.GC()
	b.ResetTimer()
	return meter{time.Now(), processCPU()}
}

func (m meter) report(b *testing.B, depth int) {
	wall, cpu := time.Since(m.start), processCPU()-m.cpu
	b.StopTimer()
	b.ReportMetric(float64(cpu.Nanoseconds())/1e3/float64(b.N), "cpu-us/op")
	b.ReportMetric(float64(wall.Nanoseconds())/1e3/float64(b.N)*float64(depth), "lat-us")
}

// BenchmarkShared has depth goroutines, each with one request: with a plain
// pread on its own thread, through worker threads, and through rings and AIO,
// with and without the calls that Do makes itself while goroutines are few.
func BenchmarkShared(b *testing.B) {
	ways := []struct {
		name   string
		kind   Kind
		inline int32
	}{
		{"pread", Inline, 0}, {"threads", Threads, 0}, {"aio", Native, 0}, {"io_uring", Uring, 0}, {"io_uring-mixed", Uring, inlineCalls},
	}
	for _, file := range benchFiles(b) {
		for _, depth := range []int{1, 4, 8, 32} {
			for _, w := range ways {
				b.Run(fmt.Sprintf("%s/%d/%s", file.name, depth, w.name), func(b *testing.B) {
					s, err := newShared(w.kind, Config{Workers: 32}, w.inline)
					if err != nil {
						b.Fatal(err)
					}
					defer s.Close()
					if s.workers != nil {
						s.inline = 0
					}
					benchDo(b, s, file.f, depth)
				})
			}
		}
	}
}

func benchDo(b *testing.B, s *Shared, f *File, depth int) {
	var wg sync.WaitGroup
	m := startMeter(b)
	for g := range depth {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(g)))
			io := &rawio.IO{Vec: [][]byte{aligned(benchBlock)}}
			p := NewParker()
			for range (b.N + depth - 1) / depth {
				io.Off = int64(rng.IntN(benchSize/benchBlock)) * benchBlock
				if err := s.Do(f, io, p); err != nil || io.N != benchBlock {
					b.Errorf("%d bytes, error %v", io.N, err)
				}
			}
		})
	}
	wg.Wait()
	m.report(b, depth)
}

// BenchmarkQueue is one locked owner that keeps depth requests in flight, as a
// virtqueue's loop does, without spinning.
func BenchmarkQueue(b *testing.B) {
	for _, file := range benchFiles(b) {
		for _, depth := range []int{1, 32} {
			for _, kind := range kindsHere() {
				name := fmt.Sprintf("%s/%d/%v", file.name, depth, kind)
				b.Run(name, func(b *testing.B) { benchQueue(b, kind, file.f, depth) })
			}
		}
	}
}

func benchQueue(b *testing.B, kind Kind, f *File, depth int) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	mem := aligned(depth * benchBlock)
	q, err := New(kind, Config{Depth: depth, Owner: Locked})
	if err != nil {
		b.Fatal(err)
	}
	defer q.Close()
	rng := rand.New(rand.NewPCG(1, 1))
	left := b.N
	again := func(io *rawio.IO) {
		if io.Err != nil || io.N != benchBlock {
			b.Errorf("%d bytes, error %v", io.N, io.Err)
		}
		if left > 0 {
			left--
			io.Off = int64(rng.IntN(benchSize/benchBlock)) * benchBlock
			q.Prep(io, f)
		}
	}
	m := startMeter(b)
	for i := range depth {
		again(&rawio.IO{Vec: [][]byte{mem[i*benchBlock : (i+1)*benchBlock]}, Done: again, N: benchBlock})
	}
	for q.InFlight() > 0 {
		if err := q.Submit(); err != nil {
			b.Fatal(err)
		}
		if q.Reap(0) == 0 {
			if err := q.Wait(-1); err != nil {
				b.Fatal(err)
			}
		}
	}
	m.report(b, depth)
}
