package qcow2

import (
	"encoding/binary"
	"syscall"

	"github.com/platter-storage/platter/block"
)

// alloc finds n free clusters in a row, gives each the refcount 1, and returns
// where they begin. They hold anything. Cut off before something refers to them
// they are lost space, no more.
func (e *editor) alloc(n int64) (uint64, error) {
	for {
		start, err := e.findFree(n)
		if err != nil {
			return 0, err
		}
		missing := int64(-1)
		for c := start; c < start+n && missing < 0; c++ {
			if i := c / e.perBlock(); i >= int64(len(e.table)) || e.table[i] == 0 {
				missing = c
			}
		}
		if missing < 0 {
			if start == e.free {
				e.free += n
			}
			if err := e.guardFree(start, n); err != nil {
				return 0, err
			}
			return uint64(start) << e.clusterBits, e.addRefcounts(start<<e.clusterBits, n<<e.clusterBits, 1)
		}
		if err := e.guardFree(missing, 1); err != nil {
			return 0, err
		}
		if missing/e.perBlock() >= int64(len(e.table)) {
			err = e.growTable(missing)
		} else {
			err = e.newBlock(missing)
		}
		if err != nil {
			return 0, err
		}
	}
}

// guardFree refuses clusters that are free by their refcounts, and are those of a
// structure that the header refers to.
func (e *editor) guardFree(start, n int64) error {
	bitmaps, _, _ := e.bitmapHeader()
	for _, x := range []struct {
		what   string
		off, n int64
	}{
		{"header", 0, 1},
		{"L1 table", int64(e.l1Off), int64(e.l1Entries) * 8},
		{"refcount table", int64(e.tableOff), int64(e.tableLen) << e.clusterBits},
		{"snapshot table", int64(e.snapOff), int64(e.snapshots)},
		{"bitmap directory", int64(bitmaps.offset), int64(bitmaps.size)},
	} {
		if x.n > 0 && x.off>>e.clusterBits < start+n && e.clusters(x.off+x.n) > start {
			return block.Errorf(syscall.EIO, "the cluster at %d is free by its refcount and belongs to the %s: repair the image (check -r all)", max(x.off, start<<e.clusterBits), x.what)
		}
	}
	for i, x := range e.table {
		if c := int64(x >> e.clusterBits); x != 0 && c >= start && c < start+n {
			return block.Errorf(syscall.EIO, "the cluster at %d is free by its refcount and is refcount block %d: repair the image (check -r all)", x, i)
		}
	}
	return nil
}

// findFree is the first of n free clusters in a row.
func (e *editor) findFree(n int64) (int64, error) {
	run := int64(0)
	first := true
	for c := e.free; ; c++ {
		have, err := e.refcount(c)
		if err != nil {
			return 0, err
		}
		if have != 0 {
			run = 0
			continue
		}
		if first {
			e.free, first = c, false
		}
		if run++; run == n {
			return c + 1 - n, nil
		}
	}
}

// newBlock makes the missing refcount block of a free cluster, in that cluster.
// It is whole before the table refers to it.
func (e *editor) newBlock(cluster int64) error {
	r, err := e.spareBlock()
	if err != nil {
		return err
	}
	clear(r.b)
	i := cluster / e.perBlock()
	r.off = cluster << e.clusterBits
	setRefAt(r.b, e.order, cluster%e.perBlock(), 1)
	r.dirty = true
	e.uses++
	r.used, e.blocks[i] = e.uses, r
	if err := e.sync(); err != nil {
		return err
	}
	e.table[i] = uint64(r.off)
	if err := e.write(int64(e.tableOff)+i*8, binary.BigEndian.AppendUint64(nil, e.table[i])); err != nil {
		return err
	}
	return e.file.Flush(e.rq)
}

// growTable makes a larger refcount table, with a block for cluster.
func (e *editor) growTable(cluster int64) error {
	if err := e.sync(); err != nil {
		return err
	}
	start := max(e.clusters(e.file.Size()), cluster)
	n, err := e.layRefcounts(e.table, []int64{cluster / e.perBlock()}, start)
	if err != nil {
		return err
	}
	if err := n.switchTable(); err != nil {
		return err
	}
	old, oldLen := e.tableOff, int64(e.tableLen)
	e.table, e.tableOff, e.tableLen, e.blocks = n.table, n.tableOff, n.tableLen, n.blocks
	return e.addRefcounts(int64(old), oldLen<<e.clusterBits, -1)
}

// give frees the clusters that [off, off+n) touches, which nothing durable
// refers to any more.
func (e *editor) give(off uint64, n int64) error {
	if n == 0 {
		return nil
	}
	return e.addRefcounts(int64(off), n, -1)
}

// place writes b into new clusters and returns where; 0 where b is empty.
func (e *editor) place(b []byte) (uint64, error) {
	if len(b) == 0 {
		return 0, nil
	}
	n := e.clusters(int64(len(b)))
	off, err := e.alloc(n)
	if err != nil {
		return 0, err
	}
	return off, e.write(int64(off), resizeTo(b, n<<e.clusterBits))
}

// resizeTo is b with zeroes behind it.
func resizeTo(b []byte, n int64) []byte { return append(b, make([]byte, n-int64(len(b)))...) }

// begin says in the header that refcounts may be wrong, where the version can:
// whoever opens the image after a power cut repairs it before it is written.
func (e *editor) begin() error {
	if e.version < 3 || e.incompat&featDirty != 0 {
		return nil
	}
	return e.setFeatures(e.incompat | featDirty)
}

// end takes that back, and makes all durable.
func (e *editor) end() error {
	if e.version < 3 || e.incompat&featDirty == 0 {
		return e.sync()
	}
	return e.setFeatures(e.incompat &^ featDirty)
}

// within runs f between begin and end. Where f fails for a reason that left
// the file as it was, end is as good.
func (e *editor) within(f func() error) error {
	if err := e.alterable(); err != nil {
		return err
	}
	if err := e.begin(); err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	return e.end()
}

// alterable refuses images whose tables lie where no table can, or which are
// marked corrupt.
func (e *editor) alterable() error {
	size := e.clusters(e.file.Size()) << e.clusterBits
	within := func(off uint64, n int64) bool {
		return e.aligned(off) && off > 0 && off <= uint64(size) && n <= size-int64(off)
	}
	switch {
	case e.incompat&featCorrupt != 0:
		return block.Errorf(syscall.EIO, "%s is marked corrupt: repair it first (check -r all)", e.file.Info().Filename)
	case !within(e.tableOff, int64(e.tableLen)<<e.clusterBits), e.l1Entries > 0 && !within(e.l1Off, int64(e.l1Entries)*8), e.snapshots > 0 && !within(e.snapOff, 1):
		return block.Errorf(syscall.EIO, "%s has a table where none can be, at offset %d, %d or %d: check it", e.file.Info().Filename, e.tableOff, e.l1Off, e.snapOff)
	}
	return nil
}

// eachRef calls f for each piece of the file that an L1 table's L2 tables and
// their entries refer to, the tables themselves first.
func (e *editor) eachRef(l1 []uint64, f func(off, n int64) error) error {
	left := e.file.Size() + e.clusterSize()
	b := make([]byte, e.clusterSize())
	for i, x := range l1 {
		off := x & entryOffset
		if off == 0 {
			continue
		}
		if left -= e.clusterSize(); !e.aligned(off) || int64(off) >= e.file.Size() || left < 0 {
			return block.Errorf(syscall.EIO, "entry %d of an L1 table is %#x, which is no table of its own in the file: repair the image (check -r all)", i, x)
		}
		if err := f(int64(off), e.clusterSize()); err != nil {
			return err
		}
		if err := e.read(int64(off), b); err != nil {
			return err
		}
		if err := e.eachEntry(off, b, f); err != nil {
			return err
		}
	}
	return nil
}

// eachEntry calls f for what the entries of an L2 table refer to.
func (e *editor) eachEntry(table uint64, b []byte, f func(off, n int64) error) error {
	for at := int64(0); at < int64(len(b)); at += e.entryLen() {
		x := binary.BigEndian.Uint64(b[at:])
		off, n := int64(x&entryOffset), e.clusterSize()
		if x&entryCompressed != 0 {
			o, m := e.compressedAt(x)
			off, n = int64(o), m
		} else if off == 0 {
			continue
		} else if !e.aligned(uint64(off)) {
			return block.Errorf(syscall.EIO, "an entry of the L2 table at %d is %#x, which is misaligned: repair the image (check -r all)", table, x)
		}
		if err := f(off, n); err != nil {
			return err
		}
	}
	return nil
}

// share raises the refcounts of all that l1 refers to, or leaves them as they
// were.
func (e *editor) share(l1 []uint64) error {
	done := 0
	err := e.eachRef(l1, func(off, n int64) error {
		err := e.addRefcounts(off, n, 1)
		if err == nil {
			done++
		}
		return err
	})
	if err == nil {
		return nil
	}
	undo := e.eachRef(l1, func(off, n int64) error {
		if done == 0 {
			return errStop
		}
		done--
		return e.addRefcounts(off, n, -1)
	})
	if undo != nil && undo != errStop {
		return undo
	}
	return err
}

// errStop ends a walk early.
var errStop = block.Errorf(syscall.ECANCELED, "the walk ended early")

// unshare lowers the refcounts of all that l1 refers to.
func (e *editor) unshare(l1 []uint64) error {
	return e.eachRef(l1, func(off, n int64) error { return e.addRefcounts(off, n, -1) })
}

// setCopied sets the flags COPIED of the tables below an L1 table, and its own,
// by the refcounts.
func (e *editor) setCopied(l1Off uint64, entries uint32) error {
	c := &checker{e: e}
	return c.flags(l1Off, entries, true)
}
