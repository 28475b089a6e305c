package file

import (
	"errors"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"

	"github.com/platter-storage/platter/block"
)

// holes makes a fake whose every byte is a hole until it is written, and counts
// the questions put to it.
func holes(f *fake) (asked *int) {
	asked = new(int)
	var mu sync.Mutex
	f.seeks = func(off int64, hole bool) (int64, error) {
		mu.Lock()
		defer mu.Unlock()
		*asked++
		f.mu.Lock()
		defer f.mu.Unlock()
		for ; off < int64(len(f.content)); off += 4096 {
			if f.written(off) != hole {
				return off, nil
			}
		}
		if hole {
			return int64(len(f.content)), nil
		}
		return 0, syscall.ENXIO
	}
	return asked
}

// written reports whether a write has touched the block at off. Called with mu
// held.
func (f *fake) written(off int64) bool {
	for _, w := range f.writes {
		if w.off < off+4096 && off < w.off+w.n {
			return true
		}
	}
	return false
}

func TestStatusIsCachedAndForgotten(t *testing.T) {
	f := fake512()
	f.locked = true
	asked := holes(f)
	e := fakeEdge(t, f, config{})
	b := aligned(t, 4096, 0)
	check := func(what string, off int64, data bool, questions int) {
		t.Helper()
		before := *asked
		x := e.status(t, off, 4096)
		if x.Data != data || x.Zero == data || *asked-before != questions {
			t.Errorf("%s: at %d: %+v after %d questions, want data %v after %d", what, off, x, *asked-before, data, questions)
		}
	}
	check("all holes", 0, false, 1)
	check("the same hole", 65536, false, 0)
	if err := e.write(65536, b); err != nil {
		t.Fatal(err)
	}
	check("written", 65536, true, 2)
	check("before it", 0, false, 1)
	check("before it, once more", 4096, false, 0)
	check("written, still known", 65536, true, 0)
	if err := e.write(65536, b); err != nil { // no news
		t.Fatal(err)
	}
	check("before it, after a write to data", 8192, false, 0)
	if err := e.discardRange(65536, 4096); err != nil {
		t.Fatal(err)
	}
	check("after a discard", 8192, false, 1)
	if err := e.truncate(1<<20+4096, block.PreallocOff); err != nil {
		t.Fatal(err)
	}
	check("after a change of size", 8192, false, 1)
}

// TestStatusWithoutLocksKeepsNoHoles: another program may write there.
func TestStatusWithoutLocksKeepsNoHoles(t *testing.T) {
	f := fake512()
	asked := holes(f)
	e := fakeEdge(t, f, config{})
	for range 3 {
		e.status(t, 0, 4096)
	}
	if *asked != 3 {
		t.Errorf("%d questions for three looks, want 3", *asked)
	}
}

// TestStatusOvertakenByAWrite: a look-up that found a hole is overtaken by a
// write, which completes; whoever asks after that must not be told of the hole.
func TestStatusOvertakenByAWrite(t *testing.T) {
	f := fake512()
	f.locked = true
	asked := holes(f)
	e := fakeEdge(t, f, config{})
	b := aligned(t, 4096, 0)
	plain := f.seeks
	f.seeks = func(off int64, hole bool) (int64, error) {
		x, err := plain(off, hole)
		f.seeks = plain
		// The answer is on its way; now the write happens. It goes to the
		// node: at the edge this very status request is in flight.
		rq := e.q.Begin()
		if werr := e.n.Pwritev(rq, 8192, block.Vec{b}, 0); werr != nil {
			t.Error(werr)
		}
		e.q.End(rq, block.OpWrite, 4096, nil)
		return x, err
	}
	e.status(t, 0, 1<<20)
	if x := e.status(t, 8192, 4096); !x.Data {
		t.Errorf("a block that was written is reported as %+v", x)
	}
	// The same by the fast lane.
	*asked = 0
	f.seeks = func(off int64, hole bool) (int64, error) {
		x, err := plain(off, hole)
		f.seeks = plain
		m, ok := e.n.Map(nil, block.OpWrite, 16384, block.Vec{b}, 0)
		if !ok {
			t.Error("the fast lane declined")
		}
		if _, werr := f.transfer(m.Off, block.Vec{b}, true, false, false); werr != nil {
			t.Error(werr)
		}
		e.n.Done(block.OpWrite, m.Cookie, nil)
		return x, err
	}
	e.status(t, 12288, 1<<19)
	if x := e.status(t, 16384, 4096); !x.Data {
		t.Errorf("a block that was written by the fast lane is reported as %+v", x)
	}
}

// TestStatusUnderConcurrentChanges on a real file: each worker owns a part,
// changes it by both lanes, and looks at everybody's.
func TestStatusUnderConcurrentChanges(t *testing.T) {
	for _, cache := range []string{"none", "writeback"} {
		const workers, part = 6, 256 << 10
		path := makeDisk(t, t.TempDir(), workers*part, "")
		e := openEdge(t, path, "cache="+cache)
		var wg sync.WaitGroup
		for w := range workers {
			b := pattern(aligned(t, 65536, 0), w)
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(uint64(w), 1))
				for range 150 {
					off := int64(w*part + rnd.IntN(part/4096)*4096)
					n := min(int64(1+rnd.IntN(16))*4096, int64((w+1)*part)-off)
					switch rnd.IntN(5) {
					case 0, 1:
						if err := e.write(off, b[:n]); err != nil {
							t.Error(err)
						}
						e.mustBeData(t, off, n)
					case 2:
						if err := e.writeFast(off, b[:n]); err != nil {
							t.Error(err)
						}
						e.mustBeData(t, off, n)
					case 3:
						if err := e.zero(off, n, block.MayUnmap); err != nil {
							t.Error(err)
						}
					case 4:
						e.status(t, int64(rnd.IntN(workers*part)), 100000)
					}
				}
			})
		}
		wg.Wait()
	}
}

// mustBeData fails the test where any of a range that was just written is said
// to be zero.
func (e *edge) mustBeData(t testing.TB, off, n int64) {
	t.Helper()
	for end := off + n; off < end; {
		x := e.status(t, off, end-off)
		if x.Zero || !x.Data {
			t.Errorf("just written, and reported as %+v at %d", x, off)
		}
		off += x.Len
	}
}

// writeFast writes by the fast lane, and by the slow one where that says so.
func (e *edge) writeFast(off int64, b []byte) error {
	return e.do(block.OpWrite, int64(len(b)), func(rq *block.Req) error {
		v := block.Vec{b}
		m, ok := e.Map(rq, block.OpWrite, off, v, 0)
		if !ok {
			return e.Pwritev(rq, off, v, 0)
		}
		n, err := submit(m, block.OpWrite, v, 0)
		if err, again := e.Finish(rq, int64(len(b)), n, err); !again {
			return err
		}
		return e.Pwritev(rq, off, v, 0)
	})
}

// TestStatusWhereSeekingIsNotKnown: all is data, and it is not asked twice.
func TestStatusWhereSeekingIsNotKnown(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EINVAL, syscall.EOPNOTSUPP, syscall.ENOSYS} {
		f := fake512()
		asked := 0
		f.seeks = func(int64, bool) (int64, error) { asked++; return 0, errno }
		e := fakeEdge(t, f, config{})
		for range 2 {
			if x := e.status(t, 4096, 1<<20-4096); !x.Data || x.Zero || x.Len != 1<<20-4096 || !x.EOF {
				t.Errorf("%v: %+v", errno, x)
			}
		}
		if asked != 1 {
			t.Errorf("%v: asked %d times", errno, asked)
		}
	}
	f := fake512()
	f.seeks = func(int64, bool) (int64, error) { return 0, syscall.EIO }
	e := fakeEdge(t, f, config{})
	err := e.do(block.OpStatus, 0, func(rq *block.Req) error { _, err := e.BlockStatus(rq, 0, 4096); return err })
	if !errors.Is(err, syscall.EIO) {
		t.Errorf("EIO becomes %v", err)
	}
}

func TestExtentAlignment(t *testing.T) {
	for _, c := range []struct {
		x       extent
		off     int64
		want    extent
		comment string
	}{
		{extent{0, 5120, true}, 0, extent{0, 8192, true}, "data is widened"},
		{extent{4096, 9216, false}, 4096, extent{4096, 8192, false}, "a hole is cut"},
		{extent{4096, 5120, false}, 4096, extent{4096, 8192, true}, "too small a hole counts as data"},
		{extent{8192, 10000, true}, 8192, extent{8192, 10000, true}, "the end of the file stays"},
		{extent{8192, 10000, false}, 8192, extent{8192, 10000, false}, "the end of the file stays"},
		{extent{4096, 4096, true}, 4096, extent{4096, 8192, true}, "changed between two calls"},
		{extent{8192, 8192, true}, 8192, extent{8192, 10000, true}, "changed between two calls, at the end"},
	} {
		if got := c.x.aligned(c.off, 10000, 4096); got != c.want {
			t.Errorf("%s: %+v becomes %+v, want %+v", c.comment, c.x, got, c.want)
		}
	}
}

func TestRangeCookies(t *testing.T) {
	for _, c := range [][2]int64{{0, 1}, {0, 1 << 20}, {1<<20 - 1, 1<<20 + 1}, {5 << 40, 5<<40 + block.MaxRequest}, {block.MaxSize - 512, block.MaxSize}, {1<<20 - 512, 1<<20 - 512 + block.MaxRequest}} {
		off, end := cookieRange(rangeCookie(c[0], c[1]))
		if off > c[0] || end < c[1] || c[0]-off >= 1<<20 || end-c[1] >= 1<<20 {
			t.Errorf("%d to %d becomes %d to %d", c[0], c[1], off, end)
		}
	}
}
