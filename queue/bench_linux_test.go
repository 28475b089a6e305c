package queue

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/virtio"
)

// threadOf is the thread that the queue's loop is locked to.
func threadOf(t testing.TB, q *Queue) int {
	t.Helper()
	tid := 0
	if err := q.command(context.Background(), false, func() error { tid = unix.Gettid(); return nil }); err != nil {
		t.Fatal(err)
	}
	return tid
}

// threadNs is the processor time of a thread in nanoseconds, and how often it
// was put to run.
func threadNs(t testing.TB, tid int) (ns, runs int64) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/schedstat", tid))
	if err != nil {
		t.Fatal(err)
	}
	var waited int64
	if _, err := fmt.Sscan(string(b), &ns, &waited, &runs); err != nil {
		t.Fatal(err)
	}
	return ns, runs
}

// processNs is the processor time of all of it, the guest's side and the
// kernel's workers too.
func processNs(t testing.TB) int64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

// onDisk makes a file of size bytes that is written once, in a folder of its
// own below dir.
func onDisk(t testing.TB, dir string, size int64) string {
	t.Helper()
	d, err := os.MkdirTemp(dir, "queue")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(d) })
	name := filepath.Join(d, "disk")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 1<<20)
	for i := range b {
		b[i] = byte(i >> 9)
	}
	for off := int64(0); off < size; off += int64(len(b)) {
		if _, err := f.WriteAt(b[:min(int64(len(b)), size-off)], off); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	return name
}

func isFS(t testing.TB, dir string, magic int64) bool {
	t.Helper()
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Type == magic
}

// memDir is a folder in memory.
func memDir(t testing.TB) string {
	if !isFS(t, "/dev/shm", unix.TMPFS_MAGIC) {
		return t.TempDir()
	}
	return "/dev/shm"
}

// BenchmarkQueue is a guest that reads 4 KiB at random, so many at a time. The
// metric server-ns/op is the processor time of the queue's own thread.
func BenchmarkQueue(b *testing.B) {
	const size = 256 << 20
	for _, d := range []struct {
		name string
		text func() string
	}{
		{"null", func() string { return "driver=null,size=1G" }},
		{"mem", func() string { return "driver=mem,size=1G" }},
		{"tmpfs", func() string { return "driver=file,filename=" + onDisk(b, memDir(b), size) }},
		{"cached", func() string { return "driver=file,cache=writeback,filename=" + onDisk(b, ".", size) }},
		{"direct", func() string { return "driver=file,cache=none,linearise=never,filename=" + onDisk(b, ".", size) }},
	} {
		for _, depth := range []int{1, 32} {
			for _, poll := range []time.Duration{-1, DefaultPoll} {
				name := fmt.Sprintf("%s/depth=%d/poll=%v", d.name, depth, poll > 0)
				b.Run(name, func(b *testing.B) {
					_, c := disk(b, newEnv(), d.text(), false)
					g := newGuest(b, guestConfig{size: 128, buffer: 4096, features: virtio.FeatureEventIdx | virtio.FeatureIndirectDesc})
					q := start(b, g, Config{Child: c, Poll: poll})
					benchTransfers(b, g, q, virtio.BlkIn, depth, min(size, c.Size()))
				})
			}
		}
	}
}

// BenchmarkQueueWrite is the same with writes.
func BenchmarkQueueWrite(b *testing.B) {
	const size = 256 << 20
	for _, mode := range []string{"cache=writeback", "cache=none"} {
		for _, depth := range []int{1, 32} {
			b.Run(fmt.Sprintf("%s/depth=%d", mode, depth), func(b *testing.B) {
				_, c := disk(b, newEnv(), "driver=file,"+mode+",filename="+onDisk(b, ".", size), false)
				g := newGuest(b, guestConfig{size: 128, buffer: 4096, features: virtio.FeatureEventIdx | virtio.FeatureIndirectDesc})
				benchTransfers(b, g, start(b, g, Config{Child: c}), virtio.BlkOut, depth, size)
			})
		}
	}
}

func benchTransfers(b *testing.B, g *guest, q *Queue, op virtio.BlkOp, depth int, size int64) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	tid := threadOf(b, q)
	rng := rand.New(rand.NewPCG(7, 7))
	slots := make([]int, 0, depth)
	for k := range depth {
		slots = append(slots, k)
	}
	of := make([]int, g.layout.Size)
	from, _ := threadNs(b, tid)
	all := processNs(b)
	b.ResetTimer()
	sent, got := 0, 0
	for got < b.N {
		for len(slots) > 0 && sent < b.N {
			k := slots[len(slots)-1]
			id, ok := g.offer(k, uint32(op), uint64(rng.Int64N(size/4096))*8, 4096, 1, op == virtio.BlkOut)
			if !ok {
				b.Fatal("the ring is full")
			}
			slots = slots[:len(slots)-1]
			of[id] = k
			sent++
		}
		g.kickNow()
		id, _ := g.await()
		for ok := true; ok; {
			k := of[id]
			if g.status(k) != virtio.BlkOK {
				b.Fatalf("status %d", g.status(k))
			}
			slots = append(slots, k)
			got++
			var err error
			if id, _, ok, err = g.driver.Next(); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.StopTimer()
	to, _ := threadNs(b, tid)
	b.ReportMetric(float64(to-from)/float64(b.N), "server-ns/op")
	b.ReportMetric(float64(processNs(b)-all)/float64(b.N), "process-ns/op")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "iops")
	if testing.Verbose() {
		b.Log(strings.Split(q.Reason(), ";")[0], fmt.Sprintf("%+v", q.Stats().Counts))
	}
}
