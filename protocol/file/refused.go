package file

import (
	"fmt"
	"sync"
	"syscall"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/sys"
)

// Storage can change its alignment under an open file: a loop device is given
// another block size, a device-mapper table is swapped. Then a request that
// meets the known limits is refused with EINVAL.

// limitsState is what resolving again needs.
type limitsState struct {
	mu sync.Mutex // one resolution at a time
	// Guarded by mu.
	last       *resolution
	lastGen    uint64 // generation that was resolved again in vain…
	lastTime   int64  // …and when
	wholeMem   bool   // see query
	wholeSegs  bool
	reresolved int // times that limits were resolved again
	refusals   int // requests refused that met their limits
	shrinks    int // times that the file was found shorter
}

// resolveEveryNs bounds how often refused requests make a node resolve its
// limits in vain.
const resolveEveryNs = 1e9

// refused decides what becomes of a request that the storage refused as
// misaligned. ErrLimitsChanged: the edge tries it once more under new limits.
func (n *node) refused(off int64, v block.Vec, write bool) error {
	s := &n.limits
	s.mu.Lock()
	defer s.mu.Unlock()
	l := n.info.Limits()
	if !n.direct {
		return errRefused // never checked against these limits
	}
	return n.refusedUnder(l, meets(l, n.info.Size(), off, v, write), v)
}

// refusedRange is refused for an operation without data, of which align says
// the granularity. It is met through the page cache too.
func (n *node) refusedRange(off, length int64, align func(*block.Limits) uint32) error {
	s := &n.limits
	s.mu.Lock()
	defer s.mu.Unlock()
	l := n.info.Limits()
	mask := int64(align(l)) - 1
	fits := off&mask == 0 && (length&mask == 0 || off+length == n.info.Size())
	return n.refusedUnder(l, fits, nil)
}

// refusedUnder asks what the limits are now, where the request met l; where it
// did not, they have been resolved again meanwhile. Called with limits.mu held.
func (n *node) refusedUnder(l *block.Limits, fits bool, v block.Vec) error {
	if !fits {
		return block.ErrLimitsChanged
	}
	s := &n.limits
	s.refusals++
	if s.lastGen == l.Generation && n.env.Now()-s.lastTime < resolveEveryNs {
		return errRefused
	}
	changed, err := n.resolveAgain(l)
	if err != nil {
		return fmt.Errorf("%w; asking again what its limits are failed: %v", errRefused, err)
	}
	if changed || v != nil && n.stricter(l, v) {
		return block.ErrLimitsChanged
	}
	s.lastGen, s.lastTime = l.Generation, n.env.Now()
	return errRefused
}

// changedInFlight tells of a request that failed with EIO whether that is
// because the alignment changed while it was under way: the kernel fails what
// was queued under the old one so.
func (n *node) changedInFlight(off int64, v block.Vec, write bool) bool {
	if !n.direct {
		return false
	}
	s := &n.limits
	s.mu.Lock()
	defer s.mu.Unlock()
	if !meets(n.info.Limits(), n.info.Size(), off, v, write) {
		return true // and somebody else has found that out
	}
	now, err := n.sys.statx()
	return err == nil && now != s.last.statx
}

// resolveAgain asks all sources anew and publishes what differs from l. Called
// with limits.mu held.
func (n *node) resolveAgain(l *block.Limits) (changed bool, err error) {
	s := &n.limits
	s.reresolved++
	res, err := resolve(n.sys, query{direct: n.direct, device: n.sys.isDevice(), forced: n.cfg.forced, wholeMem: s.wholeMem, wholeSegments: s.wholeSegs, generation: l.Generation + 1})
	if err != nil {
		return false, err
	}
	s.last = res
	if sameLimits(l, res.limits) {
		return false, nil
	}
	n.publish(l, res.limits)
	return true, nil
}

func (n *node) publish(old, now *block.Limits) {
	n.info.SetLimits(now)
	n.placeTail()
	n.env.Log.Warn("the storage's limits have changed", "file", n.cfg.path, "were", alignText(old), "are", alignText(now), "generation", now.Generation)
}

// stricter gives up, for good, on memory or segments finer than a block where
// the refused request used such: what is accepted there depends on how the
// kernel happens to cut a request, so that no trial read proves it for all.
func (n *node) stricter(l *block.Limits, v block.Vec) bool {
	s := &n.limits
	whole := min(l.ReadAlign, l.WriteAlign)
	lens, addrs := coarseness(v)
	switch {
	case !s.wholeSegs && lens&uint64(whole-1) != 0:
		s.wholeSegs = true
	case !s.wholeMem && addrs&uint64(whole-1) != 0:
		s.wholeMem = true
	default:
		return false
	}
	changed, err := n.resolveAgain(l)
	return changed && err == nil
}

// coarseness is the bitwise or of all lengths but the last, and of all
// addresses.
func coarseness(v block.Vec) (lens, addrs uint64) {
	var last int
	for _, e := range v {
		if len(e) == 0 {
			continue
		}
		lens |= uint64(last)
		addrs |= uint64(sys.Addr(e))
		last = len(e)
	}
	return lens, addrs
}

// meets reports whether a request is within limits l. The last element may
// have any length where the request ends at the size.
func meets(l *block.Limits, size, off int64, v block.Vec, write bool) bool {
	lens, addrs := coarseness(v)
	n := v.Len()
	align := l.ReadAlign
	if write {
		align = l.WriteAlign
	}
	if off&int64(align-1) != 0 || addrs&uint64(l.MinMem-1) != 0 || lens&uint64(l.SegmentAlign-1) != 0 {
		return false
	}
	return n&int64(align-1) == 0 || off+n == size
}

// refresh asks again for the size and the limits, which others may have changed,
// and looks where the path leads: what is mounted there, or was put in the place
// of the file, is not what is open. It is no use to look more often: the open
// file stays the one that it was, whatever happens to its path.
func (n *node) refresh() error {
	if away := n.sys.elsewhere(); away != n.movedOn.Swap(away) && away {
		n.env.Log.Warn("the path leads to another file now (replaced, or another file system was mounted there): the disk goes on with the file that it has open; restart, or change a setting of the disk, to use the other", "file", n.cfg.path)
	}
	if err := n.refreshSize(); err != nil {
		return err
	}
	n.lookAtMount()
	n.limits.mu.Lock()
	defer n.limits.mu.Unlock()
	_, err := n.resolveAgain(n.info.Limits())
	return err
}

func (n *node) refreshSize() error {
	n.tailMu.Lock()
	defer n.tailMu.Unlock()
	size, err := n.sys.size()
	if err == nil && size != n.info.Size() {
		n.status.forget()
		n.info.SetSize(size)
		n.placeTail()
	}
	return err
}

// lookEveryNs bounds how often a flush looks whether the file has been cut.
const lookEveryNs = 1e9

// lookAtSize notices that others have made the file shorter, also where nobody
// reads what is gone: until then a write to it makes the file longer again, up
// to the size that the node has. No call of the kernel's writes only inside a
// file, so that cannot be helped; this keeps the time short. Growth is for
// refresh: nothing is at risk.
func (n *node) lookAtSize() {
	last, now := n.looked.Load(), n.env.Now()
	if now-last < lookEveryNs || !n.looked.CompareAndSwap(last, now) {
		return
	}
	if size, err := n.sys.size(); err == nil && size < n.info.Size() {
		n.cut(size)
	}
}

// shrunk is called when a read found the file's end before the node's size.
func (n *node) shrunk(at, size int64) error {
	n.cut(size)
	return block.Errorf(syscall.EIO, "the file has been made shorter by somebody else: it ends at %d, and offset %d is past that", size, at)
}

// cut takes up that the file has been found to end at size. Our own changes of
// the size run alone, so it was somebody else.
func (n *node) cut(size int64) {
	n.tailMu.Lock()
	defer n.tailMu.Unlock()
	s := &n.limits
	s.mu.Lock()
	defer s.mu.Unlock()
	was := n.info.Size()
	if size >= was {
		return
	}
	s.shrinks++
	n.status.forget()
	n.info.SetSize(size)
	n.placeTail()
	n.env.Log.Error("the file has become shorter under us: what was past its end is lost", "file", n.cfg.path, "was", was, "is", size)
}

// explain tells what the limits are and why, one sentence a line.
func (s *limitsState) explain(l *block.Limits) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	lines := []string{"alignment: " + alignText(l)}
	for _, a := range s.last.answers {
		lines = append(lines, fmt.Sprintf("%s: %s", a.Source, a.text()))
	}
	if s.reresolved > 0 {
		lines = append(lines, fmt.Sprintf("limits were resolved again %d times, after %d refused requests; this is generation %d", s.reresolved, s.refusals, l.Generation))
	}
	return lines
}
