package file

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/block"
)

func (e *edge) status(t testing.TB, off, n int64) block.Extent {
	t.Helper()
	var x block.Extent
	err := e.do(block.OpStatus, n, func(rq *block.Req) (err error) {
		x, err = e.BlockStatus(rq, off, n)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func (e *edge) truncate(size int64, pre block.Prealloc) error {
	return e.do(block.OpTruncate, 0, func(rq *block.Req) error { return e.Truncate(rq, size, pre) })
}

// allocated is the space that a file takes, in bytes.
func allocated(t testing.TB, path string) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

// fileSystems are folders on file systems that keep holes.
var fileSystems = []storage{tempStorage, tmpfsStorage, onMount("ext4", 4096), onMount("xfs", 512), onMount("btrfs", 4096)}

// TestZeroAndDiscardOnFileSystems: what reads as zeroes, what keeps its space,
// what gives it back; and never a longer file.
func TestZeroAndDiscardOnFileSystems(t *testing.T) {
	for _, s := range fileSystems {
		for _, cache := range []string{"none", "writeback"} {
			t.Run(s.name+", "+cache, func(t *testing.T) {
				const size = 1<<20 + 676
				path := s.path(t, size)
				e := openEdge(t, path, "cache="+cache)
				model := pattern(aligned(t, size, 0), 3)
				if err := errors.Join(e.write(0, model), e.flush()); err != nil {
					t.Fatal(err)
				}
				full := allocated(t, path)
				step := func(what string, off, n int64, err error) {
					t.Helper()
					if err != nil {
						t.Fatalf("%s: %v", what, err)
					}
					clear(model[off : off+n])
					got := aligned(t, size, 0)
					if err := e.read(0, got); err != nil || !bytes.Equal(got, model) {
						t.Errorf("%s: %v, or other content", what, err)
					}
					if fi, err := os.Stat(path); err != nil || fi.Size() != size {
						t.Errorf("%s: the file has %d bytes, want %d", what, fi.Size(), size)
					}
				}
				step("zero", 4096, 65536, e.zero(4096, 65536, 0))
				step("zero, unaligned", 100001, 70000, e.zero(100001, 70000, 0))
				step("zero to the end", size-5000, 5000, e.zero(size-5000, 5000, 0))
				if now := allocated(t, path); now < full-4096 {
					t.Errorf("zeroing gave space back: %d, was %d", now, full)
				}
				step("zero and unmap", 262144, 131072, e.zero(262144, 131072, block.MayUnmap))
				if now := allocated(t, path); now > full-131072+8192 {
					t.Errorf("unmapping gave no space back: %d, was %d", now, full)
				}
				step("discard", 524288, 131072, e.discardRange(524288, 131072))
				step("discard to the end", 983040, size-983040, e.discardRange(983040, size-983040))
				if now := allocated(t, path); now > full-2*131072+8192 {
					t.Errorf("discarding gave no space back: %d, was %d", now, full)
				}
			})
		}
	}
}

// TestDiscardIgnore keeps space and content.
func TestDiscardIgnore(t *testing.T) {
	path := makeDisk(t, t.TempDir(), 1<<20, "")
	e := openEdge(t, path, "discard=ignore")
	data := pattern(aligned(t, 1<<20, 0), 3)
	if err := errors.Join(e.write(0, data), e.flush()); err != nil {
		t.Fatal(err)
	}
	full := allocated(t, path)
	got := aligned(t, 1<<20, 0)
	if err := errors.Join(e.discardRange(0, 1<<20), e.read(0, got)); err != nil || !bytes.Equal(got, data) {
		t.Errorf("discard: %v, or the content has gone", err)
	}
	if err := e.zero(0, 1<<19, block.MayUnmap); err != nil || allocated(t, path) < full {
		t.Errorf("write zeroes: %v, or space has gone: %d, was %d", err, allocated(t, path), full)
	}
}

// TestZeroAndDiscardOnDevices through the page cache and past it: what is read
// afterwards is never what the page cache still had.
func TestZeroAndDiscardOnDevices(t *testing.T) {
	for _, sector := range []int{512, 4096} {
		for _, cache := range []string{"none", "writeback"} {
			t.Run(fmt.Sprintf("%d, %s", sector, cache), func(t *testing.T) {
				e := openEdge(t, loopDevice(t, 4<<20, sector), "cache="+cache)
				if e.n.info.Driver != "host_device" {
					t.Errorf("driver %s", e.n.info.Driver)
				}
				got := aligned(t, 4<<20, 0)
				if err := e.read(0, got); err != nil { // fills the page cache
					t.Fatal(err)
				}
				for _, r := range []struct {
					off, n int64
					fl     block.Flags
				}{{8192, 65536, 0}, {131072, 262144, block.MayUnmap}, {1<<20 + 100, 9999, 0}, {2 << 20, 4096, block.NoFallback}} {
					if err := e.zero(r.off, r.n, r.fl); err != nil {
						t.Errorf("zero %+v: %v", r, err)
					}
					if err := e.read(r.off, got[:r.n]); err != nil || !bytes.Equal(got[:r.n], make([]byte, r.n)) {
						t.Errorf("zero %+v: %v, or it does not read as zeroes", r, err)
					}
				}
				if err := e.discardRange(3<<20, 1<<19); err != nil {
					t.Errorf("discard: %v", err)
				}
				if x := e.status(t, 0, 4<<20); x.Len != 4<<20 || !x.Data || x.Zero || !x.EOF {
					t.Errorf("status of a device: %+v, want data from start to end", x)
				}
				if err := e.truncate(8<<20, block.PreallocOff); !block.IsNotSupported(err) {
					t.Errorf("making a device larger: %v", err)
				}
				if err := e.truncate(4<<20, block.PreallocOff); err != nil {
					t.Errorf("leaving a device as large as it is: %v", err)
				}
			})
		}
	}
}

func TestBlockStatusOnFileSystems(t *testing.T) {
	for _, s := range fileSystems {
		t.Run(s.name, func(t *testing.T) {
			const size = 1<<20 + 100
			path := s.path(t, size)
			e := openEdge(t, path, "cache=none")
			if err := e.zero(0, size, block.MayUnmap); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(e.write(65536, pattern(aligned(t, 65536, 0), 1)), e.write(size-100, pattern(aligned(t, 100, 0), 1)), e.flush()); err != nil {
				t.Fatal(err)
			}
			for _, c := range []struct {
				off, n int64
				want   block.Extent
			}{
				{0, size, block.Extent{Len: 65536, Zero: true}},
				{4096, size - 4096, block.Extent{Len: 61440, Zero: true, Host: 4096}},
				{5000, 1000, block.Extent{Len: 1000, Zero: true, Host: 5000}},
				{65536, size - 65536, block.Extent{Len: 65536, Data: true, Host: 65536}},
				{100000, size - 100000, block.Extent{Len: 131072 - 100000, Data: true, Host: 100000}},
				{131072, size - 131072, block.Extent{Len: 1<<20 - 131072, Zero: true, Host: 131072}},
				{1 << 20, 100, block.Extent{Len: 100, Data: true, EOF: true, Host: 1 << 20}},
			} {
				for range 2 { // asked of the file system, then of the cache
					c.want.Allocated, c.want.HostFile = true, path
					if got := e.status(t, c.off, c.n); got != c.want {
						t.Errorf("at %d: %+v, want %+v", c.off, got, c.want)
					}
				}
			}
		})
	}
}

func TestTruncate(t *testing.T) {
	for _, s := range fileSystems {
		for _, cache := range []string{"none", "writeback"} {
			t.Run(s.name+", "+cache, func(t *testing.T) {
				path := s.path(t, 100000)
				e := openEdge(t, path, "cache="+cache)
				model := pattern(aligned(t, 100000, 0), 3)
				if err := e.write(0, model); err != nil {
					t.Fatal(err)
				}
				for _, c := range []struct {
					size int64
					pre  block.Prealloc
				}{
					{150001, block.PreallocOff}, {90000, block.PreallocOff}, {90001, block.PreallocFull}, {1 << 20, block.PreallocFalloc},
					{1<<20 + 8192, block.PreallocFull}, {0, block.PreallocOff}, {70000, block.PreallocOff},
				} {
					if err := e.truncate(c.size, c.pre); err != nil {
						t.Fatalf("to %d, %v: %v", c.size, c.pre, err)
					}
					was := int64(len(model))
					model = append(model[:min(was, c.size)], make([]byte, max(c.size-was, 0))...)
					fi, err := os.Stat(path)
					if err != nil || fi.Size() != c.size || e.Size() != c.size {
						t.Errorf("to %d: the file has %d, the node %d", c.size, fi.Size(), e.Size())
					}
					if c.pre != block.PreallocOff && allocated(t, path) < c.size-was {
						t.Errorf("to %d, %v: %d bytes are allocated", c.size, c.pre, allocated(t, path))
					}
					got := aligned(t, int(c.size)+1, 0)[:c.size]
					if err := e.read(0, got); err != nil || !bytes.Equal(got, model) {
						t.Errorf("to %d: %v, or other content", c.size, err)
					}
					if c.size > 0 { // and its end can be written
						b := pattern(aligned(t, 777, 0), int(c.size))
						copy(model[c.size-777:], b)
						if err := e.write(c.size-777, b); err != nil {
							t.Errorf("to %d: writing its end: %v", c.size, err)
						}
					}
				}
			})
		}
	}
}

func TestTruncateRefusals(t *testing.T) {
	path := makeDisk(t, t.TempDir(), 100000, "")
	e := openEdge(t, path, "cache=none")
	if err := e.truncate(200000, block.PreallocMetadata); !block.IsNotSupported(err) {
		t.Errorf("metadata: %v", err)
	}
	if err := e.truncate(50000, block.PreallocFull); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("shrinking with preallocation: %v", err)
	}
	if err := e.truncate(1<<60, block.PreallocOff); !errors.Is(err, syscall.EFBIG) || !strings.Contains(err.Error(), "file system") {
		t.Errorf("beyond what the file system has: %v", err)
	}
	// More than there is room for: the size goes back.
	if err := e.truncate(1<<42, block.PreallocFalloc); !errors.Is(err, syscall.ENOSPC) || e.Size() != 100000 {
		t.Errorf("falloc of 4 TiB: %v, size %d", err, e.Size())
	}
	if fi, err := os.Stat(path); err != nil || fi.Size() != 100000 {
		t.Errorf("the file has %d bytes, want 100000 as before", fi.Size())
	}
}

func TestCreate(t *testing.T) {
	env, log := testEnv(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "a.img")
	if err := tryCreate(t, env, 1<<20, filename(path)); err != nil {
		t.Fatal(err)
	}
	if n := allocated(t, path); n != 4096 {
		t.Errorf("a new disk takes %d bytes, want 4096: the first block, for trial reads", n)
	}
	if err := tryCreate(t, env, 1<<20, filename(path)); !errors.Is(err, syscall.EEXIST) || !strings.Contains(err.Error(), "overwrite=on") {
		t.Errorf("over one that is there: %v", err)
	}
	if err := os.WriteFile(path, pattern(make([]byte, 2<<20), 1), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := tryCreate(t, env, 500, filename(path)+",overwrite=on"); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || !bytes.Equal(text, make([]byte, 500)) {
		t.Errorf("overwritten: %d bytes, or not zeroes", len(text))
	}
	// One that is in use is not emptied.
	e := openEdge(t, path, "")
	if err := tryCreate(t, env, 4096, filename(path)+",overwrite=on"); !errors.Is(err, syscall.EAGAIN) || e.Size() != 500 {
		t.Errorf("over one in use: %v", err)
	}
	for _, c := range []struct {
		opts string
		size int64
		want int64 // at least this is allocated
	}{{"preallocation=falloc", 1 << 20, 1 << 20}, {"preallocation=full", 1<<20 + 1, 1<<20 + 1}, {"extent-size-hint=0", 0, 0}, {"nocow=on", 4096, 4096}} {
		p := filepath.Join(dir, c.opts)
		if err := tryCreate(t, env, c.size, filename(p)+","+c.opts); err != nil {
			t.Errorf("%s: %v", c.opts, err)
			continue
		}
		if fi, err := os.Stat(p); err != nil || fi.Size() != c.size || allocated(t, p) < c.want {
			t.Errorf("%s: %d bytes, %d allocated", c.opts, fi.Size(), allocated(t, p))
		}
	}
	if !strings.Contains(log.text(), "nocow=on has no effect") {
		t.Errorf("nothing says that ext4 has no such thing: %s", log.text())
	}
	// What fails is not left behind.
	p := filepath.Join(dir, "too-large")
	if err := tryCreate(t, env, 1<<42, filename(p)+",preallocation=falloc"); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("4 TiB: %v", err)
	}
	if _, err := os.Stat(p); !errors.Is(err, os.ErrNotExist) {
		t.Error("a disk that could not be made was left behind")
	}
	if err := tryCreate(t, env, 4096, filename(filepath.Join(dir, "no/folder"))); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("in no folder: %v", err)
	}
}

func TestCreateHints(t *testing.T) {
	env, _ := testEnv(t)
	cow := filepath.Join(mounted(t, "btrfs", 4096), "a.img")
	if err := tryCreate(t, env, 1<<20, filename(cow)+",nocow=on"); err != nil {
		t.Fatal(err)
	}
	if out := run(t, "lsattr", cow); !strings.Contains(strings.Fields(out)[0], "C") {
		t.Errorf("nocow=on on btrfs: %s", out)
	}
	hint := filepath.Join(mounted(t, "xfs", 512), "a.img")
	if err := tryCreate(t, env, 1<<20, filename(hint)); err != nil {
		t.Fatal(err)
	}
	if out := run(t, "xfs_io", "-r", "-c", "extsize", hint); !strings.Contains(out, "1048576") {
		t.Errorf("extent size hint on XFS: %s", out)
	}
}

func TestCreateOnADevice(t *testing.T) {
	env, _ := testEnv(t)
	dev := loopDevice(t, 1<<20, 512)
	if err := tryCreate(t, env, 1<<20, filename(dev)); !errors.Is(err, syscall.EEXIST) {
		t.Errorf("without overwrite: %v", err)
	}
	if err := tryCreate(t, env, 2<<20, filename(dev)+",overwrite=on"); err == nil || !strings.Contains(err.Error(), "larger device") {
		t.Errorf("too large: %v", err)
	}
	if err := tryCreate(t, env, 1<<20, filename(dev)+",overwrite=on"); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(dev)
	if err != nil || !bytes.Equal(text[:4096], make([]byte, 4096)) || bytes.Equal(text[4096:8192], make([]byte, 4096)) {
		t.Errorf("%v: want the first block zeroed, and it alone", err)
	}
}

// TestFileLargerThanADisk: it is served as far as a disk can reach, and that is
// said, not silent.
func TestFileLargerThanADisk(t *testing.T) {
	path := filepath.Join(tmpfsDir(t), "huge")
	for size, told := range map[int64]bool{block.MaxSize: false, block.MaxSize + 1: true, 1<<63 - 1: true} {
		if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, size)); err != nil {
			t.Fatal(err)
		}
		env, log := testEnv(t)
		n, err := tryOpen(t, env, true, filename(path))
		if err != nil {
			t.Fatal(err)
		}
		why := strings.Join(n.explain(), "\n")
		if n.info.Size() != block.MaxSize || strings.Contains(log.text(), "larger than a disk") != told || strings.Contains(why, "only the first") != told {
			t.Errorf("of %d bytes %d are served; log: %s; explanation: %s", size, n.info.Size(), log.text(), why)
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}
}
