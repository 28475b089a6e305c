package file

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/platter-storage/platter/block"
)

// fakeEdge is an edge to an emulated file, opened for direct I/O as c says.
func fakeEdge(t *testing.T, f *fake, c config) *edge {
	t.Helper()
	env, log := testEnv(t)
	// Waiting takes no time in these tests.
	env.After = func(ns int64, g func()) func() bool { go g(); return func() bool { return false } }
	if c.cacheName == "" {
		c.cacheName, c.direct = "none", true
	}
	n, err := openFake(env, f, c)
	if err != nil {
		t.Fatal(err)
	}
	return connect(t, n, env, log)
}

// fake512 and fake4096 are ordinary emulated files of 1 MiB.
func fake512() *fake {
	f := newFake(needs{512, 512, 512, 512}, pattern(make([]byte, 1<<20), 3))
	f.dio = said(512, 512, 512)
	return f
}

func fake4096() *fake {
	f := newFake(needs{4096, 4096, 512, 4096}, pattern(make([]byte, 1<<20), 3))
	f.dio, f.release = said(512, 4096, 4096), [2]int{6, 12}
	return f
}

// once makes a fault that answers the first transfer in this direction.
func once(write bool, moved int, err error) fault {
	used := false
	return func(w bool, off, n int64) (int, error, bool) {
		if used || w != write {
			return 0, nil, false
		}
		used = true
		return moved, err, true
	}
}

func TestF8ShortWriteGoesOnAtAnAlignedOffset(t *testing.T) {
	f := fake4096()
	e := fakeEdge(t, f, config{})
	f.faults = once(true, 5000, nil)
	data := pattern(aligned(t, 16384, 0), 77)
	if err := e.write(8192, data[:8192], data[8192:]); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(f.content[8192:24576], data) {
		t.Error("content differs")
	}
	if want := []ioSeen{{8192 + 4096, 16384 - 4096, false, false}}; !slices.Equal(f.writes, want) {
		t.Errorf("writes after the short one: %+v, want %+v", f.writes, want)
	}
}

func TestF8NothingTakenTwiceIsNoSpace(t *testing.T) {
	f := fake512()
	e := fakeEdge(t, f, config{})
	calls := 0
	f.faults = func(w bool, off, n int64) (int, error, bool) {
		calls++
		if calls == 1 {
			return 1024, nil, true // short, then nothing any more
		}
		return 0, nil, true
	}
	err := e.write(4096, pattern(aligned(t, 4096, 0), 5))
	if !errors.Is(err, syscall.ENOSPC) || calls != 3 {
		t.Errorf("error %v after %d calls, want ENOSPC after 3", err, calls)
	}
}

func TestF9NoSpaceInTheMiddleAndAgainWhenFreed(t *testing.T) {
	f := fake512()
	e := fakeEdge(t, f, config{})
	full := true
	f.faults = func(w bool, off, n int64) (int, error, bool) {
		switch {
		case !w || !full:
			return 0, nil, false
		case off < 8192:
			return int(min(n, 8192-off)), nil, true
		}
		return 0, syscall.ENOSPC, true
	}
	data := pattern(aligned(t, 8192, 0), 41)
	if err := e.write(4096, data); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("error %v, want ENOSPC", err)
	}
	// On the write-back of read-modify-write too.
	if err := e.write(8292, data[:100]); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("error %v, want ENOSPC", err)
	}
	full = false
	if err := e.write(4096, data); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(f.content[4096:12288], data) {
		t.Error("content differs")
	}
}

func TestF6ReadAcrossAndPastTheEnd(t *testing.T) {
	for _, odd := range []int{1, 511, 512, 676, 4095} {
		f := newFake(needs{512, 512, 512, 512}, pattern(make([]byte, 8192+odd), 3))
		f.dio = said(512, 512, 512)
		e := fakeEdge(t, f, config{})
		for _, from := range []int64{0, 4096, 8192} {
			if err := e.read(from, aligned(t, 8192+odd-int(from), 1)); err != nil {
				t.Errorf("size 8192+%d, reading from %d to the end: %v", odd, from, err)
			}
		}
		// The edge lets nothing past the size; the node serves it all the
		// same, with zeroes.
		got := bytes.Repeat([]byte{0xa5}, 8192)
		rq := e.q.Begin()
		if err := e.n.Preadv(rq, 4096, block.Vec{got[:4096], got[4096:]}, 0); err != nil {
			t.Errorf("size 8192+%d: %v", odd, err)
		}
		want := append(slices.Clone(f.content[4096:]), make([]byte, 4096-odd)...)
		if !bytes.Equal(got, want) {
			t.Errorf("size 8192+%d: data and zeroes expected", odd)
		}
		if err := e.n.Preadv(rq, 16384, block.Vec{got}, 0); err != nil || !bytes.Equal(got, make([]byte, 8192)) {
			t.Errorf("size 8192+%d, wholly past the end: %v", odd, err)
		}
		e.q.End(rq, block.OpRead, 0, nil)
	}
}

// TestF6InvalidAtAnUnalignedEnd: past an unaligned end some file systems say
// EINVAL, others give nothing. Both mean the end, but only there.
func TestF6InvalidAtAnUnalignedEnd(t *testing.T) {
	f := fake512()
	e := fakeEdge(t, f, config{})
	f.content = f.content[:5000] // shrunk by somebody else
	f.faults = func(w bool, off, n int64) (int, error, bool) {
		if off+n > 5000 && off > 4096 {
			return 0, syscall.EINVAL, true
		}
		return 0, nil, false
	}
	err := e.read(4096, aligned(t, 4096, 0))
	if !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), "made shorter") {
		t.Errorf("error %v, want EIO that speaks of the shorter file", err)
	}
	if e.Size() != 5000 {
		t.Errorf("size %d, want the new one, 5000", e.Size())
	}
	// EINVAL inside the file is an error.
	f = fake512()
	e = fakeEdge(t, f, config{})
	f.faults = func(w bool, off, n int64) (int, error, bool) { return 0, syscall.EINVAL, true }
	if err := e.read(4096, aligned(t, 4096, 0)); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("error %v, want EINVAL", err)
	}
}

// TestF6ShortReadChangesNothingForLater: one short vectored read must not
// change how later requests go.
func TestF6ShortReadChangesNothingForLater(t *testing.T) {
	f := fake512()
	e := fakeEdge(t, f, config{})
	f.faults = once(false, 1000, nil)
	got := aligned(t, 8192, 0)
	if err := e.read(0, got[:4096], got[4096:]); err != nil || !bytes.Equal(got, f.content[:8192]) {
		t.Fatalf("short read: %v", err)
	}
	before := e.q.Stats()
	if err := e.read(8192, got[:512], got[1024:4096]); err != nil {
		t.Fatal(err)
	}
	after := e.q.Stats()
	if d := after.NodeSegments - before.NodeSegments; d != 2 {
		t.Errorf("a later vectored read went in %d elements, want 2", d)
	}
}

func TestReadThatGivesNothingInsideTheFileIsAnError(t *testing.T) {
	f := fake512()
	e := fakeEdge(t, f, config{})
	calls := 0
	f.faults = func(w bool, off, n int64) (int, error, bool) { calls++; return 0, nil, true }
	if err := e.read(0, aligned(t, 4096, 0)); !errors.Is(err, syscall.EIO) || calls != maxStalls {
		t.Errorf("error %v after %d calls, want EIO after %d", err, calls, maxStalls)
	}
}

func TestF10ErrorOfOneBlockFailsThatRequestOnly(t *testing.T) {
	f := fake512()
	e := fakeEdge(t, f, config{})
	calls := 0
	f.faults = func(w bool, off, n int64) (int, error, bool) {
		calls++
		return 0, syscall.EIO, off <= 20480 && 20480 < off+n
	}
	if err := e.read(16384, aligned(t, 8192, 0)); !errors.Is(err, syscall.EIO) || calls != 1 {
		t.Errorf("error %v after %d calls, want EIO after 1: an I/O error is not tried again", err, calls)
	}
	if err := e.read(0, aligned(t, 16384, 0)); err != nil {
		t.Errorf("another request: %v", err)
	}
}

func TestF11InterruptedCallsAreRepeatedWithinBounds(t *testing.T) {
	for _, c := range []struct {
		name  string
		errno syscall.Errno
		times int
		ok    bool
		calls int
	}{
		{"EINTR a few times", syscall.EINTR, 50, true, 51},
		{"EINTR to the limit", syscall.EINTR, maxInterrupts + maxWaits, true, maxInterrupts + maxWaits + 1},
		{"EINTR once more", syscall.EINTR, maxInterrupts + maxWaits + 1, false, maxInterrupts + maxWaits + 1},
		{"EAGAIN to the limit", syscall.EAGAIN, maxWaits, true, maxWaits + 1},
		{"EAGAIN once more", syscall.EAGAIN, maxWaits + 1, false, maxWaits + 1},
	} {
		for _, write := range []bool{false, true} {
			f := fake512()
			e := fakeEdge(t, f, config{})
			calls := 0
			f.faults = func(w bool, off, n int64) (int, error, bool) {
				calls++
				return 0, c.errno, calls <= c.times
			}
			move := e.read
			if write {
				move = e.write
			}
			err := move(0, aligned(t, 4096, 0))
			if (err == nil) != c.ok || calls != c.calls || err != nil && !errors.Is(err, c.errno) {
				t.Errorf("%s, write %v: error %v after %d calls, want success %v after %d", c.name, write, err, calls, c.ok, c.calls)
			}
		}
	}
}

func TestF11WaitsGrow(t *testing.T) {
	f := fake512()
	env, log := testEnv(t)
	var waits []int64
	env.After = func(ns int64, g func()) func() bool {
		waits = append(waits, ns)
		go g()
		return func() bool { return false }
	}
	n, err := openFake(env, f, config{cacheName: "none", direct: true})
	if err != nil {
		t.Fatal(err)
	}
	e := connect(t, n, env, log)
	f.faults = func(w bool, off, n int64) (int, error, bool) { return 0, syscall.EAGAIN, true }
	if err := e.read(0, aligned(t, 512, 0)); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("error %v, want EAGAIN", err)
	}
	if len(waits) != maxWaits || !slices.IsSorted(waits) || waits[0] != firstWaitNs || waits[9] != firstWaitNs<<9 {
		t.Errorf("waits %v", waits)
	}
}

// TestA10NFSWrites512AsTheyAre: one write of 512 bytes, nothing read.
func TestA10NFSWrites512AsTheyAre(t *testing.T) {
	f := newFake(needs{1, 1, 1, 1}, make([]byte, 1<<20))
	f.fs.magic, f.dio = 0x6969, said(4, 4096, 4096)
	e := fakeEdge(t, f, config{})
	if err := e.write(512, pattern(aligned(t, 512, 1), 1)); err != nil {
		t.Fatal(err)
	}
	if want := []ioSeen{{512, 512, false, false}}; !slices.Equal(f.writes, want) || f.reads != 0 {
		t.Errorf("writes %+v and %d reads, want %+v and none", f.writes, f.reads, want)
	}
}

// TestA6NeighboursAndReads: what a write costs in requests.
func TestA6NeighboursAndReads(t *testing.T) {
	f := fake4096()
	e := fakeEdge(t, f, config{})
	before := slices.Clone(f.content)
	data := pattern(aligned(t, 4096, 0), 99)
	if err := e.write(4096+512, data[:512]); err != nil {
		t.Fatal(err)
	}
	copy(before[4096+512:], data[:512])
	if !bytes.Equal(f.content, before) || f.reads != 1 || len(f.writes) != 1 {
		t.Errorf("a write of 512 in a block of 4096: %d reads, %d writes, neighbours right: %v", f.reads, len(f.writes), bytes.Equal(f.content, before))
	}
	if err := e.write(8192, data); err != nil || f.reads != 1 || len(f.writes) != 2 {
		t.Errorf("an aligned write: error %v, %d reads, %d writes", err, f.reads, len(f.writes))
	}
	if err := e.write(8192, aligned(t, 4096, 100)); err != nil || f.reads != 1 || len(f.writes) != 3 {
		t.Errorf("a write from misaligned memory: error %v, %d reads, %d writes: only a bounce was needed", err, f.reads, len(f.writes))
	}
	f.faults = once(false, 0, syscall.EIO)
	if err := e.write(512, data[:512]); !errors.Is(err, syscall.EIO) || len(f.writes) != 3 {
		t.Errorf("read of read-modify-write failed: error %v, %d writes, want EIO and no write", err, len(f.writes))
	}
}
