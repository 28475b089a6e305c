package file

import (
	"bytes"
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/platter-storage/platter/block"
)

func (e *edge) writeFUA(off int64, b []byte) error {
	return e.do(block.OpWrite, int64(len(b)), func(rq *block.Req) error { return e.Pwritev(rq, off, block.Vec{b}, block.FUA) })
}

func (e *edge) zero(off, n int64, fl block.Flags) error {
	return e.do(block.OpZero, n, func(rq *block.Req) error { return e.WriteZeroes(rq, off, n, fl) })
}

func (e *edge) discardRange(off, n int64) error {
	return e.do(block.OpDiscard, n, func(rq *block.Req) error { return e.Discard(rq, off, n) })
}

func TestDurabilityByCacheMode(t *testing.T) {
	for _, c := range []struct {
		cache           string
		plain, fua      bool // whether a write is durable when it completes
		zeroSyncs       int  // flushes that a write zeroes makes
		flushes, fuaWay int  // flushes of a flush, and of a FUA write
	}{
		{"none", false, true, 0, 1, 0},
		{"writeback", false, true, 0, 1, 0},
		{"writethrough", true, true, 1, 1, 0},
		{"directsync", true, true, 1, 1, 0},
		{"unsafe", false, false, 0, 0, 0},
	} {
		t.Run(c.cache, func(t *testing.T) {
			f := fake512()
			m := cacheModes[c.cache]
			e := fakeEdge(t, f, config{cacheName: c.cache, direct: m.direct, sync: m.sync, noFlush: m.noFlush})
			b := aligned(t, 512, 0)
			check := func(what string, err error, syncs int) {
				t.Helper()
				if err != nil || f.syncs != syncs {
					t.Errorf("%s: error %v, %d flushes, want %d", what, err, f.syncs, syncs)
				}
				f.syncs = 0
			}
			check("write", e.write(0, b), 0)
			check("FUA write", e.writeFUA(512, b), c.fuaWay)
			if f.writes[0].durable != c.plain || f.writes[1].durable != c.fua {
				t.Errorf("writes are durable: %v and, with FUA, %v; want %v and %v", f.writes[0].durable, f.writes[1].durable, c.plain, c.fua)
			}
			check("write zeroes", e.zero(8192, 4096, 0), c.zeroSyncs)
			check("flush", e.flush(), c.flushes)
		})
	}
}

// TestFUAWhereTheKernelHasNoFlag: the write and a flush, found out once.
func TestFUAWhereTheKernelHasNoFlag(t *testing.T) {
	f := fake512()
	e := fakeEdge(t, f, config{})
	refused := 0
	f.faults = func(w bool, off, n int64) (int, error, bool) {
		if !w || e.n.noDsync.Load() {
			return 0, nil, false
		}
		refused++
		return 0, syscall.EOPNOTSUPP, true
	}
	b := pattern(aligned(t, 512, 0), 8)
	for i := range int64(3) {
		if err := e.writeFUA(512*i, b); err != nil {
			t.Fatal(err)
		}
	}
	if refused != 1 || f.syncs != 3 || len(f.writes) != 3 {
		t.Errorf("%d refused writes, %d flushes, %d writes; want 1, 3, 3", refused, f.syncs, len(f.writes))
	}
	if _, ok := e.n.Map(nil, block.OpWrite, 0, block.Vec{b}, block.FUA); ok {
		t.Error("the fast lane took a FUA write that needs a flush")
	}
	if _, ok := e.n.Map(nil, block.OpWrite, 0, block.Vec{b}, 0); !ok {
		t.Error("the fast lane declined a plain write")
	}
}

// TestFailedFlushStaysFailedUntilReopened: what was written before it is in
// doubt, so none may succeed until a person has reopened the disk.
func TestFailedFlushStaysFailedUntilReopened(t *testing.T) {
	f := fake512()
	e := fakeEdge(t, f, config{})
	b := aligned(t, 512, 0)
	f.syncErr = syscall.EIO
	if err := e.flush(); !errors.Is(err, syscall.EIO) {
		t.Errorf("flush: %v, want EIO", err)
	}
	f.syncErr = nil
	if err := e.flush(); !errors.Is(err, syscall.EIO) {
		t.Errorf("flush after a failed one: %v, want EIO", err)
	}
	if err := e.writeFUA(0, b); !errors.Is(err, syscall.EIO) {
		t.Errorf("FUA after a failed flush: %v, want EIO", err)
	}
	if err := e.read(0, b); err != nil {
		t.Errorf("read: %v", err)
	}
	again := fakeEdge(t, f, config{})
	if err := again.flush(); err != nil {
		t.Errorf("flush after reopening: %v", err)
	}
	// Running out of space loses nothing.
	f.syncErr = syscall.ENOSPC
	if err := again.flush(); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("flush: %v, want ENOSPC", err)
	}
	f.syncErr = nil
	if err := again.flush(); err != nil {
		t.Errorf("flush when there is space again: %v", err)
	}
}

func TestZeroFallsBackWhereNothingZeroes(t *testing.T) {
	f := fake512()
	e := fakeEdge(t, f, config{})
	f.zeroErr = syscall.EOPNOTSUPP
	if err := e.zero(0, 8192, block.NoFallback); !block.IsNotSupported(err) || len(f.writes) != 0 {
		t.Errorf("without fallback: %v and %d writes, want ENOTSUP and none", err, len(f.writes))
	}
	if err := e.zero(0, 8192, 0); err != nil || len(f.writes) == 0 || f.content[0]|f.content[8191] != 0 {
		t.Errorf("with fallback: %v, %d writes", err, len(f.writes))
	}
	f.zeroErr = nil // remembered all the same
	before := len(f.writes)
	if err := e.zero(16384, 8192, 0); err != nil || len(f.writes) == before {
		t.Errorf("later: %v, %d writes: what is not there is asked for again", err, len(f.writes)-before)
	}
	if err := e.discardRange(0, 4096); err != nil {
		t.Errorf("discard: %v", err)
	}
}

func TestSlowZeroingIsDeclinedWithoutFallback(t *testing.T) {
	f := fake512()
	f.devErr, f.dev = nil, deviceAnswer{512, 4096, 4096, 0}
	e := fakeEdge(t, f, config{})
	if err := e.zero(0, 8192, block.NoFallback); !block.IsNotSupported(err) {
		t.Errorf("a device that the kernel would write zeroes to: %v, want ENOTSUP", err)
	}
	if err := e.zero(0, 8192, 0); err != nil || len(f.writes) != 0 {
		t.Errorf("%v, %d writes: the kernel does it better", err, len(f.writes))
	}
}

func TestZeroingErrorsAreNotSwallowed(t *testing.T) {
	f := fake512()
	e := fakeEdge(t, f, config{})
	f.zeroErr = syscall.EIO
	for _, fl := range []block.Flags{0, block.MayUnmap, block.NoFallback} {
		if err := e.zero(0, 8192, fl); !errors.Is(err, syscall.EIO) {
			t.Errorf("write zeroes with flags %q: %v, want EIO", fl, err)
		}
	}
	if err := e.discardRange(0, 8192); !errors.Is(err, syscall.EIO) {
		t.Errorf("discard: %v, want EIO", err)
	}
}

// TestZeroingIsForbidden: the filter of a container answers EPERM to fallocate.
// Then zeroes are written. Where the file may not be written, that is the error.
func TestZeroingIsForbidden(t *testing.T) {
	f := fake512()
	e := fakeEdge(t, f, config{})
	f.zeroErr = syscall.EPERM
	if err := e.zero(0, 4096, block.MayUnmap); err != nil || !bytes.Equal(f.content[:4096], make([]byte, 4096)) {
		t.Errorf("write zeroes: %v, or no zeroes", err)
	}
	if err := e.zero(8192, 4096, block.NoFallback); !block.IsNotSupported(err) {
		t.Errorf("write zeroes that may not be slow: %v, want ENOTSUP", err)
	}
	if err := e.discardRange(8192, 4096); err != nil {
		t.Errorf("discard, which is a hint: %v", err)
	}
	f.faults = func(w bool, off, n int64) (int, error, bool) { return 0, syscall.EPERM, w }
	if err := e.zero(8192, 4096, block.MayUnmap); !errors.Is(err, syscall.EPERM) {
		t.Errorf("of a file that may not be written: %v, want EPERM", err)
	}
	f.faults, f.zeroErr, f.zeroed = nil, nil, 0
	if err := e.zero(8192, 4096, 0); err != nil || f.zeroed != 1 {
		t.Errorf("allowed again: %v, %d calls; it must not be given up for good", err, f.zeroed)
	}
	if err := allocateError(syscall.EPERM); !errors.Is(err, syscall.EPERM) || !strings.Contains(err.Error(), "fallocate") {
		t.Errorf("reserving space: %v", err)
	}
}
