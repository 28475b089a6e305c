package file

import (
	"errors"
	"sync/atomic"
	"syscall"

	"github.com/platter-storage/platter/block"
)

// BlockStatus says where the file has data and where holes.
func (n *node) BlockStatus(rq *block.Req, off, length int64) (block.Extent, error) {
	end := off + length
	x, ok := n.status.find(off)
	if !ok {
		var err error
		if x, err = n.lookUp(off, end); err != nil {
			return block.Extent{}, err
		}
	}
	size := n.info.Size()
	stop := min(x.end, end)
	return block.Extent{Len: stop - off, Data: x.data, Zero: !x.data, Allocated: true, EOF: stop >= size, Host: off, HostFile: n.cfg.path}, nil
}

// lookUp asks the file system about the extent at off, which is below end.
func (n *node) lookUp(off, end int64) (extent, error) {
	s := &n.status
	whole := extent{off, max(end, n.info.Size()), true}
	if s.noSeek.Load() || n.sys.isDevice() {
		return whole, nil
	}
	s.pending.Add(1)
	defer s.pending.Add(-1)
	gen := s.gen.Load()
	x, err := n.seekExtent(off)
	switch {
	case block.IsNotSupported(notThere(err)), errors.Is(err, syscall.EINVAL):
		s.noSeek.Store(true)
		return whole, nil
	case err != nil:
		return x, err
	}
	a := int64(n.info.Limits().ReadAlign)
	x = x.aligned(off, n.info.Size(), a)
	if x.data || s.holes {
		s.remember(x, gen)
	}
	return x, nil
}

// seekExtent finds the extent that covers off.
func (n *node) seekExtent(off int64) (extent, error) {
	data, err := n.sys.seek(off, false)
	if errors.Is(err, syscall.ENXIO) {
		return n.lastHole(off)
	}
	if err != nil {
		return extent{}, err
	}
	if data > off {
		return extent{off, data, false}, nil
	}
	hole, err := n.sys.seek(off, true)
	if errors.Is(err, syscall.ENXIO) {
		hole, err = n.info.Size(), nil // cut off meanwhile
	}
	return extent{off, hole, true}, err
}

// lastHole is the hole from off to the end, unless the file has been cut off
// before off: then nothing is known of it, least of all that it is zeroes.
func (n *node) lastHole(off int64) (extent, error) {
	size, err := n.sys.size()
	if err == nil && off >= size {
		err = n.shrunk(off, size)
	}
	return extent{off, n.info.Size(), false}, err
}

// extent is a run of one kind.
type extent struct {
	off, end int64
	data     bool
}

// aligned cuts a hole, and widens data, to whole multiples of a, but for the
// end of the file. An extent that changed between two calls and is empty now
// counts as data.
func (x extent) aligned(off, size, a int64) extent {
	if x.end < size {
		if x.data {
			x.end = min((x.end+a-1)&^(a-1), size)
		} else {
			x.end &^= a - 1
		}
	}
	if x.end <= off {
		return extent{off, min(off+a, size), true}
	}
	return x
}

// statusCache holds the last extents that the file system told, because asking
// is slow on some (a request to the server on NFS; a search on tmpfs).
//
// A cached hole becomes wrong with the first write to it. Writes do not lock:
// a write that has completed, before it is reported, bumps gen if a cached
// extent lies in its range or a look-up is under way. A look-up notes gen
// before it asks and stores what it learnt under that number; whoever finds
// another number in force does not use it. So a BlockStatus that begins after
// a write was reported never sees that range as a hole from before.
type statusCache struct {
	snap    atomic.Pointer[extents] // never changed in place
	gen     atomic.Uint64
	pending atomic.Int32 // look-ups under way
	noSeek  atomic.Bool
	// holes may be cached: no other program writes the file, as far as
	// locks can tell.
	holes bool
}

// cachedExtents bounds the cache.
const cachedExtents = 8

// extents are what is known under generation gen, newest first.
type extents struct {
	gen uint64
	n   int
	e   [cachedExtents]extent
}

func (s *statusCache) find(off int64) (extent, bool) {
	x := s.snap.Load()
	if x == nil || x.gen != s.gen.Load() {
		return extent{}, false
	}
	for _, e := range x.e[:x.n] {
		if e.off <= off && off < e.end {
			return e, true
		}
	}
	return extent{}, false
}

// remember stores what a look-up learnt that began under gen.
func (s *statusCache) remember(e extent, gen uint64) {
	x := &extents{gen: gen, n: 1}
	x.e[0] = e
	if old := s.snap.Load(); old != nil && old.gen == gen {
		x.n += copy(x.e[1:], old.e[:old.n])
	}
	s.snap.Store(x)
}

// wrote is called when a write to [off, end) has been tried, before that is
// reported: holes there are no more.
func (s *statusCache) wrote(off, end int64) { s.touch(off, end, false) }

// changed is called the same way for what can make holes of data.
func (s *statusCache) changed(off, end int64) { s.touch(off, end, true) }

// touch reads pending first: a look-up that is over by then has stored what it
// learnt, one that begins later sees what was written.
func (s *statusCache) touch(off, end int64, data bool) {
	if s.pending.Load() > 0 {
		s.gen.Add(1)
		return
	}
	x := s.snap.Load()
	if x == nil || x.gen != s.gen.Load() {
		return
	}
	for _, e := range x.e[:x.n] {
		if e.off < end && off < e.end && (data || !e.data) {
			s.gen.Add(1)
			return
		}
	}
}

// forget drops everything.
func (s *statusCache) forget() { s.gen.Add(1) }
