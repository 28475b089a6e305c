package file

import (
	"sync"
	"syscall"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/sys"
)

// needs is what emulated storage really demands of direct requests.
type needs struct {
	read, write, mem uint32
	seg              uint32 // length of each element
}

// fault answers a transfer in place of the storage: n bytes moved, or an error.
// ok false: the storage answers.
type fault func(write bool, off, n int64) (moved int, err error, ok bool)

// fake is a file of an emulated system: facts as a test says, content in
// memory, alignment enforced, faults on demand.
type fake struct {
	fs      fsAnswer
	fsErr   error
	dio     statxAnswer
	dioErr  error
	dev     deviceAnswer
	devErr  error
	disk    queueAnswer
	diskErr error
	xfsSays xfsAnswer
	xfsErr  error
	release [2]int
	dataAt  int64
	dataLen int64
	dataErr error
	trialIO error // what trial reads fail with, whatever their alignment
	byCache bool  // trial reads fill the page cache
	lazyMem bool  // the address of a read within one page is not looked at

	mu      sync.Mutex
	needs   needs
	content []byte
	grown   bool // a write made the file longer
	faults  fault
	syncs   int
	syncErr error
	writes  []ioSeen // in order
	reads   int
	trials  []trialRead
	zeroErr error
	zeroBy  int64 // zeroing takes whole multiples of it; 0: any range
	zeroed  int   // calls that zeroed something
	seeks   func(off int64, hole bool) (int64, error)
	locked  bool
	moved   bool // the path leads elsewhere
	lockErr error
	mount   *Mount
}

// ioSeen is a write that reached the emulated storage.
type ioSeen struct {
	off, n  int64
	durable bool
	cached  bool
}

// newFake is a 4096-byte-block file system that states nothing, on a 6.18
// kernel, with content.
func newFake(n needs, content []byte) *fake {
	return &fake{
		fs: fsAnswer{0xef53, 4096}, devErr: syscall.ENOTTY, diskErr: syscall.ENOENT, xfsErr: syscall.ENOTTY,
		release: [2]int{6, 18}, dataLen: int64(len(content)), needs: n, content: content,
	}
}

func (f *fake) fileSystem() (fsAnswer, error) { return f.fs, f.fsErr }
func (f *fake) statx() (statxAnswer, error)   { return f.dio, f.dioErr }
func (f *fake) device() (deviceAnswer, error) { return f.dev, f.devErr }
func (f *fake) queue() (queueAnswer, error)   { return f.disk, f.diskErr }
func (f *fake) xfs() (xfsAnswer, error)       { return f.xfsSays, f.xfsErr }
func (f *fake) kernel() (major, minor int)    { return f.release[0], f.release[1] }
func (f *fake) data() (off, n int64, e error) { return f.dataAt, f.dataLen, f.dataErr }
func (f *fake) isDevice() bool                { return f.devErr == nil }
func (f *fake) place() placed                 { return placed{mount: f.mount} }
func (f *fake) main() descriptor              { return (*fakeDirect)(f) }
func (f *fake) cached() descriptor            { return (*fakeCached)(f) }
func (f *fake) newLeaf(*config) block.Leaf    { return nil }
func (f *fake) durableFlag() bool             { return true }
func (f *fake) elsewhere() bool               { return f.moved }
func (f *fake) close() error                  { return nil }
func (f *fake) punch(off, n int64) error      { return f.zeroRange(off, n) }
func (f *fake) discard(off, n int64) error    { return f.zeroRange(off, n) }
func (f *fake) allocate(off, n int64) error   { return nil }

func (f *fake) startEngine(string, bool) (string, error) { return "engine: emulated", nil }
func (f *fake) lockFile(*config) (bool, string, error)   { return f.locked, "emulated", f.lockErr }

func (f *fake) seek(off int64, hole bool) (int64, error) {
	if f.seeks == nil {
		return 0, syscall.EINVAL
	}
	return f.seeks(off, hole)
}

func (f *fake) trial(t trialRead) trialOutcome {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.trials = append(f.trials, t)
	if f.trialIO != nil {
		return trialOutcome{err: f.trialIO}
	}
	var n uint32
	for _, l := range t.lens {
		n += l
		if len(t.lens) > 1 && l&(f.needs.seg-1) != 0 {
			return trialOutcome{err: syscall.EINVAL}
		}
	}
	unseen := f.lazyMem && len(t.lens) == 1 && t.lead%4096+n <= 4096
	if (uint64(t.off)|uint64(n))&uint64(f.needs.read-1) != 0 || !unseen && t.lead&(f.needs.mem-1) != 0 {
		return trialOutcome{err: syscall.EINVAL}
	}
	return trialOutcome{cached: f.byCache}
}

func (f *fake) size() (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return int64(len(f.content)), nil
}

func (f *fake) sync() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.syncs++
	return f.syncErr
}

func (f *fake) zeroRange(off, n int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.zeroBy != 0 && (off|n)%f.zeroBy != 0 {
		return syscall.EINVAL
	}
	if f.zeroErr == nil {
		f.zeroed++
		clear(f.content[off:min(off+n, int64(len(f.content)))])
	}
	return f.zeroErr
}

func (f *fake) setSize(n int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := make([]byte, n)
	copy(now, f.content)
	f.content = now
	return nil
}

// fakeDirect and fakeCached are the two ways to a fake's bytes.
type (
	fakeDirect fake
	fakeCached fake
)

func (d *fakeDirect) readv(off int64, v block.Vec) (int, error) {
	return (*fake)(d).transfer(off, v, false, false, false)
}

func (d *fakeDirect) writev(off int64, v block.Vec, durable bool) (int, error) {
	return (*fake)(d).transfer(off, v, true, durable, false)
}

func (d *fakeCached) readv(off int64, v block.Vec) (int, error) {
	return (*fake)(d).transfer(off, v, false, false, true)
}

func (d *fakeCached) writev(off int64, v block.Vec, durable bool) (int, error) {
	return (*fake)(d).transfer(off, v, true, durable, true)
}

func (f *fake) transfer(off int64, v block.Vec, write, durable, cached bool) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := v.Len()
	if f.faults != nil {
		if moved, err, ok := f.faults(write, off, n); ok {
			return f.move(off, v, int64(moved), write), err
		}
	}
	if !cached && f.misaligned(off, v, write) {
		return 0, syscall.EINVAL
	}
	if write {
		f.writes = append(f.writes, ioSeen{off, n, durable, cached})
		if off+n > int64(len(f.content)) {
			f.grown = true
		}
	} else {
		f.reads++
		n = max(min(n, int64(len(f.content))-off), 0)
	}
	return f.move(off, v, n, write), nil
}

// move copies the first n bytes of v to or from the content.
func (f *fake) move(off int64, v block.Vec, n int64, write bool) int {
	if n <= 0 {
		return 0
	}
	if write {
		if need := off + n; need > int64(len(f.content)) {
			f.content = append(f.content, make([]byte, need-int64(len(f.content)))...)
		}
		v.CopyOut(f.content[off:off+n], 0)
	} else {
		v.CopyIn(f.content[off:off+n], 0)
	}
	return int(n)
}

func (f *fake) misaligned(off int64, v block.Vec, write bool) bool {
	a := f.needs.read
	if write {
		a = f.needs.write
	}
	for i, e := range v {
		if sys.Addr(e)&uintptr(f.needs.mem-1) != 0 || len(v) > 1 && i < len(v)-1 && uint32(len(e))&(f.needs.seg-1) != 0 {
			return true
		}
	}
	return (uint64(off)|uint64(v.Len()))&uint64(a-1) != 0
}
