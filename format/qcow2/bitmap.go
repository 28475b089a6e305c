package qcow2

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"sync/atomic"
	"syscall"

	"github.com/platter-storage/platter/block"
)

// Bitmaps in the file are changed by writing anew what is to change, data,
// table and directory, in clusters that nothing refers to, and then the header,
// which decides. Flags are changed in place.

// findBitmap gives a bitmap that may be used, by its name.
func findBitmap(all []bitmapEntry, name string) (int, error) {
	i := slices.IndexFunc(all, func(m bitmapEntry) bool { return m.name == name })
	if i < 0 {
		return 0, block.Errorf(syscall.ENOENT, "there is no bitmap %q", name)
	}
	return i, nil
}

// usableBitmap is findBitmap for what needs the bits.
func usableBitmap(all []bitmapEntry, name string) (int, error) {
	i, err := findBitmap(all, name)
	if err != nil {
		return 0, err
	}
	switch m := all[i]; {
	case m.flags&bitmapInUse != 0:
		err = block.Errorf(syscall.EIO, "bitmap %q was not stored by whoever used it last, so that marks are missing: it can only be removed", name)
	case len(m.extra) > 0 && m.flags&bitmapExtraOK == 0:
		err = block.Errorf(syscall.ENOTSUP, "bitmap %q has extra data of an unknown kind, with which it may not be used", name)
	}
	return i, err
}

// public is the entry as tools see it.
func (m *bitmapEntry) public() block.Bitmap {
	return block.Bitmap{Name: m.name, Granularity: 1 << m.granBits, Enabled: m.flags&bitmapAuto != 0, InUse: m.flags&bitmapInUse != 0}
}

// loadBits reads a bitmap's bits.
func (e *editor) loadBits(m *bitmapEntry, budget *atomic.Int64) (*bitmapBits, error) {
	b, ok := newBits(e.size, m.granBits, budget)
	if !ok {
		return nil, block.Errorf(syscall.ENOMEM, "there is no room for the bits of bitmap %q: all bitmaps have %d bytes of memory", m.name, maxBitmapMemory)
	}
	t, err := e.readTable(m.tableOff, int64(m.entries))
	if err != nil {
		return nil, err
	}
	buf := make([]byte, e.clusterSize())
	for i, x := range t {
		at := int64(i) << e.clusterBits
		off := x & entryOffset
		switch {
		case x&bitmapReserved != 0 || off != 0 && (x&1 != 0 || !e.aligned(off)):
			return nil, block.Errorf(syscall.EIO, "entry %d of the table of bitmap %q is %#x, which no entry can be: check the image", i, m.name, x)
		case off == 0 && x&1 != 0:
			b.mark(at*8<<b.granBits, e.clusterSize()*8<<b.granBits)
		case off != 0:
			if err := e.read(int64(off), buf); err != nil {
				return nil, err
			}
			b.take(at, buf)
		}
	}
	b.marked.Store(false)
	return b, nil
}

// storeBits writes bits into new clusters, with a new table, and puts the
// table into m.
func (e *editor) storeBits(m *bitmapEntry, b *bitmapBits) error {
	t := make([]uint64, e.bitmapClusters(m.granBits))
	buf := make([]byte, e.clusterSize())
	for i := range t {
		at := int64(i) << e.clusterBits
		b.fill(at, buf)
		switch ones := bitsIn(buf); ones {
		case 0:
		case e.clusterSize() * 8:
			t[i] = 1
		default:
			off, err := e.place(slices.Clone(buf))
			if err != nil {
				return err
			}
			t[i] = off
		}
	}
	off, err := e.place(tableBytes(t))
	m.tableOff, m.entries = off, uint32(len(t))
	return err
}

func bitsIn(b []byte) (n int64) {
	for k := 0; k < len(b); k += 8 {
		n += int64(bits.OnesCount64(binary.LittleEndian.Uint64(b[k:])))
	}
	return n
}

// dropBits frees a bitmap's table and data, which nothing refers to any more.
func (e *editor) dropBits(m *bitmapEntry) error {
	t, err := e.readTable(m.tableOff, int64(m.entries))
	if err != nil {
		return err
	}
	for _, x := range t {
		if off := x & entryOffset; off != 0 && e.aligned(off) {
			if err := e.give(off, e.clusterSize()); err != nil {
				return err
			}
		}
	}
	return e.give(m.tableOff, int64(m.entries)*8)
}

// storeBitmaps makes all the image's bitmaps. gone are entries whose tables are
// not used any more.
func (e *editor) storeBitmaps(all, gone []bitmapEntry) error {
	var b []byte
	for i := range all {
		b = all[i].append(b)
	}
	backing, err := e.backingName()
	if err != nil {
		return err
	}
	old, had, err := e.bitmapHeader()
	if err != nil {
		return err
	}
	off, err := e.place(b)
	if err != nil {
		return err
	}
	l := e.layout
	l.autoclear &^= featBitmaps
	var x []byte
	if len(all) > 0 {
		l.autoclear |= featBitmaps
		x = binary.BigEndian.AppendUint64(nil, uint64(len(all))<<32)
		x = binary.BigEndian.AppendUint64(x, uint64(lenOf(all)))
		x = binary.BigEndian.AppendUint64(x, off)
	}
	l.setExtension(extBitmaps, x)
	if err := e.writeHead(l, backing); err != nil {
		return err
	}
	if had {
		if err := e.give(old.offset, int64(old.size)); err != nil {
			return err
		}
	}
	for i := range gone {
		if err := e.dropBits(&gone[i]); err != nil {
			return err
		}
	}
	return nil
}

// lenOf is the length of a directory in bytes.
func lenOf(all []bitmapEntry) (n int) {
	for _, m := range all {
		n += (bitmapFixed + len(m.extra) + len(m.name) + 7) &^ 7
	}
	return n
}

// changeBitmaps runs f on the directory; what f returns as gone is freed.
func (e *editor) changeBitmaps(f func(all []bitmapEntry) (now, gone []bitmapEntry, err error)) error {
	if e.version < 3 {
		return block.Errorf(syscall.ENOTSUP, "images of version 2 have no bitmaps: amend it to compat=1.1")
	}
	all, err := e.readBitmaps()
	if err != nil {
		return err
	}
	return e.within(func() error {
		now, gone, err := f(slices.Clone(all))
		if err != nil {
			return e.failed(err)
		}
		return e.storeBitmaps(now, gone)
	})
}

// addBitmap is Add of the ability.
func (e *editor) addBitmap(want block.Bitmap) error {
	g := want.Granularity
	if g == 0 {
		g = min(max(e.clusterSize(), 4096), 65536)
	}
	m := bitmapEntry{name: want.Name, kind: bitmapDirtyKind, granBits: byte(bits.TrailingZeros64(uint64(g)))}
	if want.Enabled {
		m.flags = bitmapAuto
	}
	n := e.bitmapClusters(m.granBits)
	switch {
	case g < 1<<minGranBits || g > 1<<maxGranBits || g&(g-1) != 0:
		return block.Errorf(syscall.EINVAL, "a granularity of %d bytes: powers of two from %d to %d are possible", g, 1<<minGranBits, int64(1)<<maxGranBits)
	case m.name == "" || len(m.name) > maxBitmapName:
		return block.Errorf(syscall.ENAMETOOLONG, "the name of a bitmap has 1 to %d bytes, this one %d", maxBitmapName, len(m.name))
	case n<<e.clusterBits > maxBitmapBytes+e.clusterSize():
		return block.Errorf(syscall.EFBIG, "a bitmap of %d bytes a bit would have more than %d bytes: use a larger granularity", g, maxBitmapBytes)
	case n == 0:
		return block.Errorf(syscall.EINVAL, "a disk of no size has no bitmaps")
	}
	return e.changeBitmaps(func(all []bitmapEntry) (now, gone []bitmapEntry, err error) {
		if len(all) == maxBitmaps {
			return nil, nil, block.Errorf(syscall.EFBIG, "the image has %d bitmaps, the most that are possible", len(all))
		}
		if _, err := findBitmap(all, m.name); err == nil {
			return nil, nil, block.Errorf(syscall.EEXIST, "there is a bitmap %q", m.name)
		}
		m.entries = uint32(n)
		m.tableOff, err = e.place(make([]byte, n*8))
		return append(all, m), nil, err
	})
}

// removeBitmap is Remove of the ability; it takes inconsistent ones too.
func (e *editor) removeBitmap(name string) error {
	return e.changeBitmaps(func(all []bitmapEntry) (now, gone []bitmapEntry, err error) {
		i, err := findBitmap(all, name)
		if err != nil {
			return nil, nil, err
		}
		gone = []bitmapEntry{all[i]}
		return slices.Delete(all, i, i+1), gone, nil
	})
}

// enableBitmap is Enable and Disable of the ability.
func (e *editor) enableBitmap(name string, on bool) error {
	return e.changeBitmaps(func(all []bitmapEntry) (now, gone []bitmapEntry, err error) {
		i, err := usableBitmap(all, name)
		if err != nil {
			return nil, nil, err
		}
		all[i].flags &^= bitmapAuto
		if on {
			all[i].flags |= bitmapAuto
		}
		return all, nil, nil
	})
}

// rewriteBitmap replaces a bitmap's bits by what f makes of them.
func (e *editor) rewriteBitmap(name string, f func(b *bitmapBits) error) error {
	return e.changeBitmaps(func(all []bitmapEntry) (now, gone []bitmapEntry, err error) {
		i, err := usableBitmap(all, name)
		if err != nil {
			return nil, nil, err
		}
		b, err := e.loadBits(&all[i], newBudget())
		if err != nil {
			return nil, nil, err
		}
		if err := f(b); err != nil {
			return nil, nil, err
		}
		gone = []bitmapEntry{all[i]}
		return all, gone, e.storeBits(&all[i], b)
	})
}

// newBudget is the memory of one operation's bits.
func newBudget() *atomic.Int64 {
	b := new(atomic.Int64)
	b.Store(maxBitmapMemory)
	return b
}

// clearBitmap is Clear of the ability.
func (e *editor) clearBitmap(name string) error {
	return e.rewriteBitmap(name, func(b *bitmapBits) error {
		clear(b.pages)
		return nil
	})
}

// mergeBitmap is Merge of the ability.
func (e *editor) mergeBitmap(name string, each block.DirtyRuns) error {
	return e.rewriteBitmap(name, func(b *bitmapBits) error {
		return each(func(off, n int64) error {
			if off < 0 || n < 0 || off > int64(e.size) {
				return block.Errorf(syscall.EINVAL, "the other bitmap is of a larger disk: it has a mark at %d, this disk has %d bytes", off, e.size)
			}
			b.mark(off, min(n, int64(e.size)-off))
			return nil
		})
	})
}

// bitmapRuns is Runs of the ability.
func (e *editor) bitmapRuns(name string, f func(off, n int64) error) error {
	all, err := e.readBitmaps()
	if err != nil {
		return err
	}
	i, err := usableBitmap(all, name)
	if err != nil {
		return err
	}
	b, err := e.loadBits(&all[i], newBudget())
	if err != nil {
		return err
	}
	return b.runs(int64(e.size), f)
}

// listBitmaps is List of the ability.
func (e *editor) listBitmaps() ([]block.Bitmap, error) {
	all, err := e.readBitmaps()
	var list []block.Bitmap
	for i := range all {
		p := all[i].public()
		if !p.InUse && err == nil {
			b, lerr := e.loadBits(&all[i], newBudget())
			if lerr != nil {
				return list, lerr
			}
			p.Dirty = b.count() << b.granBits
		}
		list = append(list, p)
	}
	return list, err
}

// setInUse sets or clears the flag of the bitmaps that which picks, in place
// and durably.
func (e *editor) setInUse(which func(m *bitmapEntry) bool, on bool) error {
	x, ok, err := e.bitmapHeader()
	if err != nil || !ok {
		return err
	}
	all, err := e.readBitmaps()
	if err != nil {
		return err
	}
	at := int64(x.offset)
	for i := range all {
		m := &all[i]
		if flags := m.flags&^bitmapInUse | map[bool]uint32{true: bitmapInUse}[on]; which(m) && flags != m.flags {
			if err := e.write(at+12, binary.BigEndian.AppendUint32(nil, flags)); err != nil {
				return err
			}
		}
		at += int64(lenOf(all[i : i+1]))
	}
	return e.file.Flush(e.rq)
}

// markAllBitmaps marks all of the disk in the enabled bitmaps: it is about to
// become another's content.
func (e *editor) markAllBitmaps() error {
	all, err := e.readBitmaps()
	if err != nil {
		return err
	}
	gone := []bitmapEntry{}
	for i := range all {
		m := &all[i]
		if m.flags&(bitmapAuto|bitmapInUse) != bitmapAuto {
			continue
		}
		gone = append(gone, *m)
		b, ok := newBits(e.size, m.granBits, newBudget())
		if !ok {
			return block.Errorf(syscall.ENOMEM, "there is no room for the bits of bitmap %q", m.name)
		}
		b.mark(0, int64(e.size))
		if err := e.storeBits(m, b); err != nil {
			return err
		}
	}
	if len(gone) == 0 {
		return nil
	}
	return e.storeBitmaps(all, gone)
}
