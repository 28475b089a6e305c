package file

import (
	"bytes"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/bufpool"
)

// TestLimitsOnRealStorage: what this kernel and these file systems take.
func TestLimitsOnRealStorage(t *testing.T) {
	for _, c := range []struct {
		storage
		want want
	}{
		{tmpfsStorage, want{1, 1, 1, 1, block.OriginFileSystem}},
		{onLoop(512), want{512, 512, 512, 512, block.OriginStatx}},
		{onLoop(4096), want{4096, 4096, 512, 512, block.OriginStatx}},
		{onMount("ext4", 512), want{512, 512, 512, 512, block.OriginStatx}},
		{onMount("ext4", 4096), want{4096, 4096, 512, 512, block.OriginStatx}},
		{onMount("xfs", 512), want{512, 512, 512, 512, block.OriginStatx}},
		{onMount("xfs", 4096), want{4096, 4096, 512, 512, block.OriginStatx}},
		{onMount("btrfs", 4096), want{4096, 4096, 4096, 4096, block.OriginFileSystem}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := openEdge(t, c.path(t, 1<<20), "cache=none")
			l := e.Limits()
			if kernelBefore(fineSegments) {
				c.want.seg = c.want.write
			}
			if kernelBefore([2]int{6, 1}) && c.want.origin == block.OriginStatx {
				c.want.origin = l.Origins.WriteAlign // older kernels say it otherwise
			}
			if got := (want{l.ReadAlign, l.WriteAlign, l.MinMem, l.SegmentAlign, l.Origins.WriteAlign}); got != c.want {
				t.Errorf("%+v, want %+v\n%s", got, c.want, strings.Join(e.n.explain(), "\n"))
			}
			if e.n.limits.last.disagreement != "" {
				t.Error(e.n.limits.last.disagreement)
			}
		})
	}
}

func kernelBefore(v [2]int) bool {
	k := kernelVersion()
	return k[0] < v[0] || k[0] == v[0] && k[1] < v[1]
}

// TestTrialFindsWhatStatxSays: the trial reads alone come to the same limits.
func TestTrialFindsWhatStatxSays(t *testing.T) {
	for _, s := range []storage{tempStorage, onMount("ext4", 4096), onMount("xfs", 512), onMount("xfs", 4096), onLoop(4096)} {
		t.Run(s.name, func(t *testing.T) {
			c := config{path: s.path(t, 1<<20), locking: "off"}
			f, err := openLinux(&c, true)
			if err != nil {
				t.Fatal(err)
			}
			defer f.close()
			said, err := resolve(f, query{direct: true, device: f.dev, generation: 1})
			if err != nil {
				t.Fatal(err)
			}
			tried, err := resolve(&silent{f}, query{direct: true, device: f.dev, generation: 1})
			if err != nil {
				t.Fatal(err)
			}
			a, b := said.limits, tried.limits
			if a.WriteAlign != b.WriteAlign || a.MinMem != b.MinMem || a.SegmentAlign != b.SegmentAlign || b.Origins.WriteAlign != block.OriginTrial {
				t.Errorf("statx: %s; trial: %s\n%s", alignText(a), alignText(b), answersText(tried))
			}
		})
	}
}

// silent is a file that states nothing.
type silent struct{ source }

func (silent) statx() (statxAnswer, error)   { return statxAnswer{}, syscall.ENOSYS }
func (silent) device() (deviceAnswer, error) { return deviceAnswer{}, syscall.ENOTTY }
func (silent) xfs() (xfsAnswer, error)       { return xfsAnswer{}, syscall.ENOTTY }

// TestF2RealSparseFile: a file of holes tells nothing by trial.
func TestF2RealSparseFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sparse.img")
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 1<<20); err != nil {
		t.Fatal(err)
	}
	f, err := openLinux(&config{path: path, locking: "off"}, true)
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	res, err := resolve(&silent{f}, query{direct: true, generation: 1})
	if err != nil {
		t.Fatal(err)
	}
	if l := res.limits; l.WriteAlign != 4096 || l.MinMem != 4096 || l.Origins.WriteAlign != block.OriginDefault {
		t.Errorf("%s", alignText(l))
	}
}

// TestA5SegmentsOnRealStorage: 512+3584 at offset 0 of 4096-byte sectors.
func TestA5SegmentsOnRealStorage(t *testing.T) {
	e := openEdge(t, loopDevice(t, 1<<20, 4096), "cache=none")
	b := pattern(aligned(t, 16384, 0), 17)
	if err := e.write(0, b[:512], b[8192:8192+3584]); err != nil {
		t.Fatal(err)
	}
	got := aligned(t, 16384, 0)
	if err := e.read(0, got[4096:4096+512], got[:3584]); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got[4096:4096+512], b[:512]) || !bytes.Equal(got[:3584], b[8192:8192+3584]) {
		t.Error("what was read is not what was written")
	}
	s := e.q.Stats()
	bounced := s.Paths[bits.TrailingZeros(uint(block.PathBounceLen))] + s.Paths[bits.TrailingZeros(uint(block.PathBounceMem))]
	if bounced != 0 && !kernelBefore(fineSegments) {
		t.Errorf("%d bounces, want none", bounced)
	}
}

// TestF3LoopDeviceChangesItsSectors: the real thing, under load.
func TestF3LoopDeviceChangesItsSectors(t *testing.T) {
	dev := loopDevice(t, 1<<20, 512)
	e := openEdge(t, dev, "cache=none,locking=off")
	if a := e.Limits().WriteAlign; a != 512 {
		t.Fatalf("write alignment %d at first", a)
	}
	f, err := os.OpenFile(dev, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	setSectors := func(n int) {
		if err := unix.IoctlSetInt(int(f.Fd()), unix.LOOP_SET_BLOCK_SIZE, n); err != nil {
			t.Errorf("LOOP_SET_BLOCK_SIZE %d: %v", n, err)
		}
	}
	const rounds = 60
	var wg sync.WaitGroup
	half := make(chan struct{})
	for w := range 4 {
		b := aligned(t, 512, 512)
		wg.Go(func() {
			for i := range rounds {
				if w == 0 && i == rounds/2 {
					close(half)
				}
				if err := e.write(int64(w)*512, pattern(b, w+i)); err != nil {
					t.Errorf("writer %d, round %d: %v", w, i, err)
					return
				}
			}
		})
	}
	<-half
	setSectors(4096)
	wg.Wait()
	b := aligned(t, 512, 512)
	if err := e.write(8*512, pattern(b, 200)); err != nil {
		t.Fatal(err)
	}
	if l := e.Limits(); l.WriteAlign != 4096 || l.Generation != 2 {
		t.Errorf("write alignment %d, generation %d; want 4096 and 2", l.WriteAlign, l.Generation)
	}
	setSectors(512)
	if err := e.n.refresh(); err != nil || e.Limits().WriteAlign != 512 {
		t.Errorf("back to 512: %v, write alignment %d", err, e.Limits().WriteAlign)
	}
	got := aligned(t, 512, 0)
	// Write zeroes is the first to meet the new sectors.
	setSectors(4096)
	if err := e.zero(9*512, 512, 0); err != nil || e.Limits().ZeroAlign != 4096 {
		t.Errorf("write zeroes under the new sectors: %v, zero alignment %d", err, e.Limits().ZeroAlign)
	}
	if err := e.read(9*512, got); err != nil || !bytes.Equal(got, make([]byte, 512)) {
		t.Errorf("what was zeroed: %v, or it does not read as zeroes", err)
	}
	for w := range 4 {
		if err := e.read(int64(w)*512, got); err != nil || !bytes.Equal(got, pattern(b, w+rounds-1)) {
			t.Errorf("sector %d: %v, last write lost", w, err)
		}
	}
}

// TestA6EightWritersOfOneBlock: none of their writes is lost.
func TestA6EightWritersOfOneBlock(t *testing.T) {
	e := openEdge(t, loopDevice(t, 1<<20, 4096), "cache=none")
	const rounds = 300
	var wg sync.WaitGroup
	for w := range 8 {
		b, got := aligned(t, 512, 0), aligned(t, 512, 0)
		wg.Go(func() {
			for i := range rounds {
				off := int64(w) * 512
				if err := e.write(off, pattern(b, w*31+i)); err != nil {
					t.Errorf("writer %d: %v", w, err)
					return
				}
				if err := e.read(off, got); err != nil || !bytes.Equal(got, b) {
					t.Errorf("writer %d, round %d: %v, its write is lost", w, i, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestA9DeviceRequestsForAMiB: memory from our allocator is not cut more than
// the device's limits ask, nor is memory that does not begin on a page cut in
// the middle of a block.
func TestA9DeviceRequestsForAMiB(t *testing.T) {
	dev := loopDevice(t, 8<<20, 512)
	e := openEdge(t, dev, "cache=none")
	name := filepath.Base(dev)
	w := &bufpool.Waiter{}
	if !e.n.env.Buffers.Get(w, 1<<20) {
		t.Fatal("no buffer")
	}
	defer e.n.env.Buffers.Put(w.Buf)
	limit := int(attr("/sys/block/"+name+"/queue", "max_sectors_kb")) << 10
	pages, segments := 1<<20/os.Getpagesize(), int(e.Limits().MaxSegments)
	whole := (1<<20 + limit - 1) / limit
	for _, c := range []struct {
		what string
		b    []byte
		most int // where no two pages are neighbours in memory
	}{
		{"our memory", w.Buf, max(whole, (pages+segments-1)/segments)},
		{"memory at 512 past a page", aligned(t, 1<<20, 512), max(whole, (pages+segments-1)/(segments-1))},
	} {
		before := deviceWrites(t, name)
		if err := e.write(0, c.b); err != nil {
			t.Fatal(err)
		}
		if n := deviceWrites(t, name) - before; n > c.most {
			t.Errorf("1 MiB from %s took %d device requests, want at most %d", c.what, n, c.most)
		}
	}
}

// deviceWrites is the number of writes that a device has completed.
func deviceWrites(t *testing.T, name string) int {
	t.Helper()
	text, err := os.ReadFile("/sys/block/" + name + "/stat")
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.Fields(string(text))[4])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestF7UnalignedSizeNeverGrows: writes to the tail of files of every odd
// size, on storage with large and small sectors.
func TestF7UnalignedSizeNeverGrows(t *testing.T) {
	for _, s := range []storage{tempStorage, onMount("ext4", 4096), onMount("xfs", 512), onMount("btrfs", 4096), tmpfsStorage} {
		for _, odd := range []int64{1, 511, 512, 676, 4095} {
			for _, cache := range []string{"none", "directsync"} {
				size := 1000000&^4095 + odd
				t.Run(fmt.Sprintf("%s, %d, %s", s.name, size, cache), func(t *testing.T) {
					path := s.path(t, size)
					tailTest(t, openEdge(t, path, "cache="+cache), path, size)
				})
			}
		}
	}
}

// tailTest writes around the end of e's file and compares with a model.
func tailTest(t *testing.T, e *edge, path string, size int64) {
	t.Helper()
	model := make([]byte, size)
	for i, r := range []struct{ off, n int64 }{
		{size - 1, 1}, {size - 100, 100}, {size - 512, 512}, {size - 5000, 5000}, {size - 70000, 70000}, {size - 4096, 2000}, {0, 512}, {size &^ 511, size & 511},
	} {
		r.off, r.n = max(r.off, 0), min(r.n, size-max(r.off, 0))
		b := pattern(aligned(t, int(r.n)+1, i)[:r.n], i*7+1)
		copy(model[r.off:], b)
		if err := e.write(r.off, b); err != nil {
			t.Fatalf("write of %d at %d: %v", r.n, r.off, err)
		}
		got := aligned(t, int(r.n)+1, 0)[:r.n]
		if err := e.read(r.off, got); err != nil || !bytes.Equal(got, b) {
			t.Fatalf("read of %d at %d: %v, or not what was written", r.n, r.off, err)
		}
	}
	if err := e.flush(); err != nil {
		t.Fatal(err)
	}
	all := aligned(t, int(size), 0)
	if err := e.read(0, all); err != nil || !bytes.Equal(all, model) {
		t.Errorf("reading it all: %v, or not what was written", err)
	}
	onDisk, err := os.ReadFile(path)
	if err != nil || int64(len(onDisk)) != size || !bytes.Equal(onDisk, model) {
		t.Errorf("the file has %d bytes, want %d; %v, or other content", len(onDisk), size, err)
	}
}

// TestF7DirectAndCachedWritersSideBySide: writers to the tail page and to the
// pages before it at the same time; nothing is lost and nothing grows.
func TestF7DirectAndCachedWritersSideBySide(t *testing.T) {
	for _, s := range []storage{tempStorage, onMount("ext4", 4096), onMount("btrfs", 4096)} {
		t.Run(s.name, func(t *testing.T) {
			const size = 64<<10 + 676
			path := s.path(t, size)
			e := openEdge(t, path, "cache=none")
			var wg sync.WaitGroup
			for w := range 4 {
				b, got := aligned(t, 300, w), aligned(t, 300, w)
				off := int64(size - 1200 + w*300) // two pages
				wg.Go(func() {
					for i := range 150 {
						if err := e.write(off, pattern(b, w*50+i)); err != nil {
							t.Errorf("writer %d: %v", w, err)
							return
						}
						if err := e.read(off, got); err != nil || !bytes.Equal(got, b) {
							t.Errorf("writer %d, round %d: %v, its write is lost", w, i, err)
							return
						}
					}
				})
			}
			wg.Wait()
			if fi, err := os.Stat(path); err != nil || fi.Size() != size {
				t.Errorf("size %d, want %d", fi.Size(), size)
			}
		})
	}
}

// TestFileIsRemovedOrCutWhileOpen: the open file lives on; what was cut off is
// an error, not zeroes.
func TestFileIsRemovedOrCutWhileOpen(t *testing.T) {
	path := makeDisk(t, t.TempDir(), 1<<20, "")
	e := openEdge(t, path, "cache=none")
	b := pattern(aligned(t, 4096, 0), 5)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(e.write(4096, b), e.flush(), e.read(4096, b)); err != nil {
		t.Errorf("after it was removed: %v", err)
	}
	if err := unix.Ftruncate(e.n.sys.(*linuxFile).fd, 100000); err != nil {
		t.Fatal(err)
	}
	if err := e.read(1<<19, b); !errors.Is(err, syscall.EIO) || e.Size() != 100000 {
		t.Errorf("after it was cut to 100000: %v, size %d", err, e.Size())
	}
	if err := e.read(100000-4096, b); err != nil {
		t.Errorf("its new end: %v", err)
	}
}

// TestWritesToAFileThatWasCut: until the cut is noticed a write past the new end
// makes the file longer, which no call can avoid, but never longer than the disk
// is. A flush notices it, and from then on there is nothing past the end.
func TestWritesToAFileThatWasCut(t *testing.T) {
	for _, cache := range []string{"none", "writeback"} {
		for _, size := range []int64{1 << 20, 100000} {
			path := makeDisk(t, t.TempDir(), size, "")
			e := openEdge(t, path, "cache="+cache)
			now := int64(5e9)
			e.n.env.Now = func() int64 { return now }
			length := func() int64 {
				fi, err := os.Stat(path)
				if err != nil {
					t.Fatal(err)
				}
				return fi.Size()
			}
			b, last := pattern(aligned(t, 4096, 0), 5), (size-4096)&^4095
			if err := os.Truncate(path, 8192); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(e.write(16384, b), e.write(last, aligned(t, int(size-last), 0))); err != nil || length() != size {
				t.Errorf("cache=%s: writes to a cut file: %v, and it has %d bytes, want %d at most", cache, err, length(), size)
			}
			if err := os.Truncate(path, 8192); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(e.zero(16384, 4096, 0), e.discardRange(32768, 4096), e.flush()); err != nil || length() != 8192 {
				t.Errorf("cache=%s: zeroing, discard and flush: %v, and the file has %d bytes, want 8192", cache, err, length())
			}
			if e.Size() != 8192 || !strings.Contains(e.log.text(), "shorter under us") {
				t.Errorf("cache=%s: a flush did not notice: the disk has %d bytes; log: %s", cache, e.Size(), e.log.text())
			}
			if err := e.write(16384, b); !errors.Is(err, syscall.EINVAL) || length() != 8192 {
				t.Errorf("cache=%s: a write past the noticed end: %v, and the file has %d bytes, want 8192", cache, err, length())
			}
		}
	}
}

// TestF4ThePathLeadsElsewhere: the file was replaced, or another file system is
// mounted over its folder. A refresh says so, once; the open file is served.
func TestF4ThePathLeadsElsewhere(t *testing.T) {
	dir := tmpfsDir(t)
	path := writeFile(t, dir, "a.img", make([]byte, 8192))
	e := openEdge(t, path, "")
	steps := []struct {
		what  string
		do    func() error
		lines int
	}{
		{"nothing", func() error { return nil }, 0},
		{"removed", func() error { return os.Rename(path, path+".old") }, 0},
		{"replaced", func() error { return os.WriteFile(path, make([]byte, 4096), 0o600) }, 1},
		{"still", func() error { return nil }, 1},
		{"back", func() error { return os.Rename(path+".old", path) }, 1},
		{"mounted over", func() error {
			if err := unix.Mount("none", dir, "tmpfs", 0, ""); err != nil {
				return err
			}
			t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
			return os.WriteFile(path, make([]byte, 4096), 0o600)
		}, 2},
	}
	for _, s := range steps {
		if err := errors.Join(s.do(), e.n.refresh()); err != nil {
			t.Fatalf("%s: %v", s.what, err)
		}
		if n := strings.Count(e.log.text(), "the path leads to another file"); n != s.lines || e.Size() != 8192 {
			t.Errorf("%s: said %d times, want %d; size %d", s.what, n, s.lines, e.Size())
		}
	}
	if dev := openEdge(t, loopDevice(t, 1<<20, 512), ""); dev.n.sys.elsewhere() {
		t.Error("a device is elsewhere though nothing happened")
	}
}
