package file

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/platter-storage/platter/block"
)

// TestF3AlignmentChangesUnderAnOpenFile, emulated: from 512 to 4096, under
// load, and back.
func TestF3AlignmentChangesUnderAnOpenFile(t *testing.T) {
	f := fake512()
	f.release = [2]int{6, 12}
	e := fakeEdge(t, f, config{})
	change := func(n needs) {
		f.mu.Lock()
		f.needs, f.dio = n, said(n.mem, n.write, n.read)
		f.mu.Unlock()
	}
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			b := pattern(make([]byte, 512), w)
			for i := range 200 {
				if w == 0 && i == 100 {
					change(needs{4096, 4096, 512, 4096})
				}
				if err := e.write(int64(w)*512, b); err != nil {
					t.Errorf("writer %d: %v", w, err)
					return
				}
			}
		})
	}
	wg.Wait()
	for w := range 8 {
		if !bytes.Equal(f.content[w*512:][:512], pattern(make([]byte, 512), w)) {
			t.Errorf("the sector of writer %d was lost", w)
		}
	}
	l := e.Limits()
	if l.WriteAlign != 4096 || l.Generation != 2 || e.n.limits.reresolved != 1 {
		t.Errorf("write alignment %d, generation %d, resolved %d times; want 4096, 2, 1", l.WriteAlign, l.Generation, e.n.limits.reresolved)
	}
	if !strings.Contains(e.log.text(), "limits have changed") {
		t.Errorf("log: %s", e.log.text())
	}
	change(needs{512, 512, 512, 512})
	if err := e.n.refresh(); err != nil {
		t.Fatal(err)
	}
	if l = e.Limits(); l.WriteAlign != 512 || l.Generation != 3 {
		t.Errorf("after refresh: write alignment %d, generation %d", l.WriteAlign, l.Generation)
	}
}

// TestF3ZeroingIsTheFirstToMeetTheNewSectors: a device whose sectors have grown
// refuses write zeroes and discard of the old ones. The edge must learn it from
// them too, not only from a read or a write.
func TestF3ZeroingIsTheFirstToMeetTheNewSectors(t *testing.T) {
	for _, cache := range []string{"none", "writeback"} {
		for _, unmap := range []block.Flags{0, block.MayUnmap} {
			f := fakeDevice(512)
			e := fakeEdge(t, f, config{cacheName: cache, direct: cache == "none"})
			f.becomes(4096)
			if cache == "writeback" {
				f.needs = needs{1, 1, 1, 1} // of reads and writes through the page cache
			}
			want := bytes.Clone(f.content)
			clear(want[512:1024])
			if err := e.zero(512, 512, unmap); err != nil || !bytes.Equal(f.content, want) {
				t.Errorf("cache=%s: write zeroes of 512 bytes: %v, content as it should be: %v", cache, err, bytes.Equal(f.content, want))
			}
			if l := e.Limits(); l.ZeroAlign != 4096 || l.Generation != 2 || e.n.limits.reresolved != 1 {
				t.Errorf("cache=%s: zero alignment %d, generation %d, resolved %d times; want 4096, 2, 1", cache, l.ZeroAlign, l.Generation, e.n.limits.reresolved)
			}
			f.becomes(65536)
			if err := e.discardRange(4096, 4096); err != nil {
				t.Errorf("cache=%s: discard: %v", cache, err)
			}
			if l := e.Limits(); l.DiscardAlign != 65536 || l.Generation != 3 {
				t.Errorf("cache=%s: discard alignment %d, generation %d; want 65536 and 3", cache, l.DiscardAlign, l.Generation)
			}
		}
	}
}

// TestF18ZeroingRefusedForNoReason: limits are not asked for with each request.
func TestF18ZeroingRefusedForNoReason(t *testing.T) {
	f := fakeDevice(512)
	e := fakeEdge(t, f, config{})
	f.zeroErr = syscall.EINVAL
	for range 5 {
		if err := e.zero(0, 4096, 0); !errors.Is(err, syscall.EINVAL) {
			t.Fatalf("error %v, want EINVAL", err)
		}
	}
	if n := e.n.limits.reresolved; n != 1 {
		t.Errorf("resolved %d times for five requests in one moment, want 1", n)
	}
}

// fakeDevice is an emulated block device of 1 MiB.
func fakeDevice(sector uint32) *fake {
	f := newFake(needs{}, pattern(make([]byte, 1<<20), 3))
	f.devErr = nil
	f.becomes(sector)
	return f
}

// becomes gives a device other sectors.
func (f *fake) becomes(sector uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.needs = needs{sector, sector, 512, sector}
	f.dio, f.dev = said(512, sector, sector), deviceAnswer{logical: sector, physical: sector}
	f.zeroBy = int64(sector)
}

// TestF18RefusedForNoReason: the limits are asked for again once, not with
// every request, and the requester gets EINVAL.
func TestF18RefusedForNoReason(t *testing.T) {
	f := fake512()
	e := fakeEdge(t, f, config{})
	now := int64(5e9)
	e.n.env.Now = func() int64 { return now }
	f.faults = func(w bool, off, n int64) (int, error, bool) { return 0, syscall.EINVAL, true }
	b := aligned(t, 4096, 0)
	for range 5 {
		if err := e.write(0, b); !errors.Is(err, syscall.EINVAL) {
			t.Fatalf("error %v, want EINVAL", err)
		}
	}
	if n := e.n.limits.reresolved; n != 1 {
		t.Errorf("resolved %d times for five requests in one moment, want 1", n)
	}
	now += resolveEveryNs
	_ = e.write(0, b)
	if n := e.n.limits.reresolved; n != 2 {
		t.Errorf("resolved %d times after a second, want 2", n)
	}
	if g := e.Limits().Generation; g != 1 {
		t.Errorf("generation %d though nothing changed", g)
	}
}

// TestF18PartsOfBlocksAcceptedByTrialOnly: a kernel that took a read in parts
// of a block refuses a write in parts: from then on blocks are whole.
func TestF18PartsOfBlocksAcceptedByTrialOnly(t *testing.T) {
	f := newFake(needs{4096, 4096, 512, 512}, make([]byte, 1<<20))
	f.dio = said(512, 4096, 4096)
	e := fakeEdge(t, f, config{})
	if s := e.Limits().SegmentAlign; s != 512 {
		t.Fatalf("segment alignment %d, want 512 at first", s)
	}
	f.faults = func(w bool, off, n int64) (int, error, bool) {
		// Two elements of 512 and 3584 come as one request of 4096 from
		// unequal parts; the emulator sees only the sum, so refuse what
		// was not bounced: bounced requests have one element.
		return 0, syscall.EINVAL, w && e.Limits().SegmentAlign == 512
	}
	b := pattern(aligned(t, 8192, 0), 4)
	if err := e.write(0, b[:512], b[4096:4096+3584]); err != nil {
		t.Fatal(err)
	}
	if l := e.Limits(); l.SegmentAlign != 4096 || l.MinMem != 512 || l.Generation != 2 {
		t.Errorf("segments %d, memory %d, generation %d; want 4096, 512, 2", l.SegmentAlign, l.MinMem, l.Generation)
	}
	if !bytes.Equal(f.content[:512], b[:512]) || !bytes.Equal(f.content[512:4096], b[4096:4096+3584]) {
		t.Error("content differs")
	}
}

// TestRefusedThroughThePageCache: there is no alignment to blame.
func TestRefusedThroughThePageCache(t *testing.T) {
	f := fake512()
	e := fakeEdge(t, f, config{cacheName: "writeback"})
	f.faults = func(w bool, off, n int64) (int, error, bool) { return 0, syscall.EINVAL, true }
	if err := e.read(0, aligned(t, 512, 0)); !errors.Is(err, syscall.EINVAL) || e.n.limits.reresolved != 0 {
		t.Errorf("error %v, resolved %d times", err, e.n.limits.reresolved)
	}
}

// TestF17ShorterAndLonger: a file that others make shorter or longer.
func TestF17ShorterAndLonger(t *testing.T) {
	f := fake512()
	e := fakeEdge(t, f, config{})
	f.mu.Lock()
	f.content = f.content[:700000]
	f.mu.Unlock()
	b := aligned(t, 4096, 0)
	if err := e.read(1<<19, b); err != nil {
		t.Errorf("a read before the new end: %v", err)
	}
	if err := e.read(800000&^511, b); !errors.Is(err, syscall.EIO) {
		t.Errorf("a read past the new end: %v, want EIO: what was there is lost", err)
	}
	if e.Size() != 700000 {
		t.Errorf("size %d, want 700000", e.Size())
	}
	// The new end is unaligned: a write there must not make the file longer.
	if err := e.write(699999, b[:1]); err != nil || f.grown {
		t.Errorf("a write to the new end: %v, file longer: %v", err, f.grown)
	}
	if err := e.read(699000, b[:1000]); err != nil {
		t.Errorf("a read of the new end: %v", err)
	}
	if err := f.setSize(2 << 20); err != nil {
		t.Fatal(err)
	}
	if err := e.n.refresh(); err != nil || e.Size() != 2<<20 {
		t.Errorf("refresh: %v, size %d", err, e.Size())
	}
	if err := e.write(2<<20-512, b[:512]); err != nil {
		t.Errorf("a write to the end of what was added: %v", err)
	}
}

func TestMeets(t *testing.T) {
	l := &block.Limits{ReadAlign: 512, WriteAlign: 4096, SegmentAlign: 512, MinMem: 512}
	at := func(lead, n int) []byte { return aligned(t, n, lead) }
	for _, c := range []struct {
		off   int64
		v     block.Vec
		write bool
		want  bool
	}{
		{512, block.Vec{at(0, 512)}, false, true},
		{512, block.Vec{at(0, 512)}, true, false},
		{4096, block.Vec{at(512, 512), at(0, 3584)}, true, true},
		{4096, block.Vec{at(4, 4096)}, true, false},
		{4096, block.Vec{at(0, 100), at(0, 3996)}, true, false},
		{8192, block.Vec{at(0, 1808)}, true, true}, // to the end
		{8192, block.Vec{at(0, 1800)}, true, false},
		{0, block.Vec{at(0, 512), {}, at(0, 512)}, false, true},
	} {
		if got := meets(l, 10000, c.off, c.v, c.write); got != c.want {
			t.Errorf("offset %d, %d bytes in %d elements, write %v: %v", c.off, c.v.Len(), len(c.v), c.write, got)
		}
	}
}
