package qcow2

import (
	"slices"
	"sync/atomic"
	"syscall"

	"github.com/platter-storage/platter/block"
)

// tracking are the enabled bitmaps of a node that is open for writing: in
// memory, where every change is marked, and marked in use in the file until they
// are stored again. It changes while the node is drained.
type tracking struct {
	all    []tracked
	budget atomic.Int64
}

type tracked struct {
	name string
	bits *bitmapBits
}

// find gives a tracked bitmap, or nil.
func (t *tracking) find(name string) *bitmapBits {
	for _, x := range t.all {
		if x.name == name {
			return x.bits
		}
	}
	return nil
}

// openBitmaps starts to track changes in the enabled bitmaps. The flag in_use is
// durable before the first change can be made.
func (n *node) openBitmaps(rq *block.Req) error {
	if n.version < 3 || n.autoclear&featBitmaps == 0 {
		return nil
	}
	e, err := edit(rq, n.file)
	if err != nil {
		return err
	}
	all, err := e.readBitmaps()
	if err != nil {
		return err
	}
	t := &n.tracking
	t.all = nil
	t.budget.Store(maxBitmapMemory)
	for i := range all {
		m := &all[i]
		if m.flags&(bitmapAuto|bitmapInUse) != bitmapAuto || len(m.extra) > 0 && m.flags&bitmapExtraOK == 0 {
			continue
		}
		bits, err := e.loadBits(m, &t.budget)
		if err != nil {
			t.all = nil
			return err
		}
		t.all = append(t.all, tracked{m.name, bits})
	}
	if len(t.all) == 0 {
		return nil
	}
	if err := e.setInUse(func(m *bitmapEntry) bool { return t.find(m.name) != nil }, true); err != nil {
		return err
	}
	mark := func(off, length int64) {
		for i := range t.all {
			t.all[i].bits.mark(off, length)
		}
	}
	n.track.Store(&mark)
	return nil
}

// closeBitmaps stores what is tracked and ends it. What has no new marks is only
// no longer in use.
func (n *node) closeBitmaps(rq *block.Req) error {
	t := &n.tracking
	n.track.Store(nil)
	if len(t.all) == 0 {
		return nil
	}
	e, err := edit(rq, n.file)
	if err != nil {
		return err
	}
	all, err := e.readBitmaps()
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(t.all, func(x tracked) bool { return x.bits.marked.Load() }) {
		err = e.setInUse(func(m *bitmapEntry) bool { return t.find(m.name) != nil }, false)
	} else {
		err = e.within(func() error { return e.storeTracked(t, all) })
	}
	if err == nil {
		t.all = nil
	}
	return err
}

// storeTracked writes what is tracked into the file.
func (e *editor) storeTracked(t *tracking, all []bitmapEntry) error {
	var gone []bitmapEntry
	for i := range all {
		m := &all[i]
		bits := t.find(m.name)
		if bits == nil {
			continue
		}
		m.flags &^= bitmapInUse
		if !bits.marked.Load() {
			continue
		}
		gone = append(gone, *m)
		if err := e.storeBits(m, bits); err != nil {
			return err
		}
	}
	return e.storeBitmaps(all, gone)
}

// resizeBitmaps runs resize, which changes the disk's size, and has all bitmaps
// fit the new one. They are in use meanwhile: what is cut off between leaves
// bitmaps that can only be removed, never ones that are wrong.
func (n *node) resizeBitmaps(rq *block.Req, size int64, resize func() error) error {
	if n.version < 3 || n.autoclear&featBitmaps == 0 {
		return resize()
	}
	if err := n.settle(rq); err != nil {
		return err
	}
	if err := n.closeBitmaps(rq); err != nil {
		return err
	}
	held, err := n.holdBitmaps(rq)
	if err == nil {
		err = n.reload(rq)
	}
	if err == nil {
		err = resize()
	}
	if err == nil && held != nil {
		err = n.fitBitmaps(rq, size, held)
	}
	if err != nil {
		return err
	}
	if err := n.reload(rq); err != nil {
		return err
	}
	return n.openBitmaps(rq)
}

// holdBitmaps reads all bitmaps and marks them in use.
func (n *node) holdBitmaps(rq *block.Req) (map[string]*bitmapBits, error) {
	e, err := edit(rq, n.file)
	if err != nil {
		return nil, err
	}
	all, err := e.readBitmaps()
	if err != nil {
		return nil, err
	}
	held, budget := map[string]*bitmapBits{}, newBudget()
	for i := range all {
		if all[i].flags&bitmapInUse != 0 {
			return nil, block.Errorf(syscall.EBUSY, "bitmap %q was not stored by whoever used it last, so that it cannot be fitted to another size: remove it first", all[i].name)
		}
		if held[all[i].name], err = e.loadBits(&all[i], budget); err != nil {
			return nil, err
		}
	}
	return held, e.setInUse(func(*bitmapEntry) bool { return true }, true)
}

// fitBitmaps stores what holdBitmaps has read for a disk of size bytes. What the
// disk has grown by is not marked.
func (n *node) fitBitmaps(rq *block.Req, size int64, held map[string]*bitmapBits) error {
	e, err := edit(rq, n.file)
	if err != nil {
		return err
	}
	all, err := e.readBitmaps()
	if err != nil {
		return err
	}
	return e.within(func() error {
		gone, budget := slices.Clone(all), newBudget()
		for i := range all {
			m, old := &all[i], held[all[i].name]
			bits, ok := newBits(uint64(size), m.granBits, budget)
			if !ok || e.bitmapClusters(m.granBits)<<e.clusterBits > maxBitmapBytes+e.clusterSize() {
				return block.Errorf(syscall.EFBIG, "bitmap %q would be too large: remove it first", m.name)
			}
			_ = old.runs(min(size, old.n<<old.granBits), func(off, length int64) error {
				bits.mark(off, min(length, size-off))
				return nil
			})
			m.flags &^= bitmapInUse
			if err := e.storeBits(m, bits); err != nil {
				return err
			}
		}
		return e.storeBitmaps(all, gone)
	})
}
