package qcow2

import (
	"encoding/binary"
	"slices"
	"syscall"

	"github.com/platter-storage/platter/block"
)

// Repair never makes an image worse, wherever it is cut off. Refcounts go up
// first and are durable before anything relies on them; flags COPIED follow;
// refcounts go down last, and only where every table that could refer to a
// cluster has been read; then flags COPIED are set where that made a refcount 1. Refcount structures that
// cannot be trusted are made anew beside the old ones, in space that nothing
// refers to, and become valid by one write of 12 bytes in the header.

// repair mends what o.Fix says, and leaves in res what is left.
func (c *checker) repair() error {
	all := c.o.Fix&block.FixErrors != 0
	c.mend = all
	if err := c.look(); err != nil {
		return err
	}
	c.mend = false
	before := c.res
	before.Corruptions += c.res.CorruptionsFixed
	if before.Corruptions+before.Leaks > 0 {
		if err := c.mendAll(all); err != nil {
			return err
		}
		if err := c.lookAgain(); err != nil {
			return err
		}
	}
	c.res.CorruptionsFixed = max(before.Corruptions-c.res.Corruptions, 0)
	c.res.LeaksFixed = max(before.Leaks-c.res.Leaks, 0)
	return c.markClean()
}

// lookAgain finds what the repair has left.
func (c *checker) lookAgain() error {
	if report := c.o.Report; report != nil {
		c.o.Report = func(line string) { report("after the repair: " + line) }
		defer func() { c.o.Report = report }()
	}
	c.told = 0
	if err := c.e.load(); err != nil {
		return err
	}
	return c.look()
}

// mendAll goes through the steps.
func (c *checker) mendAll(all bool) error {
	switch {
	case all && c.unusable && c.lost == 0:
		if err := c.rebuild(); err != nil {
			return err
		}
	case all && c.unusable:
		c.tell("refcounts are not made anew: tables are lost, and what they refer to would be freed")
		return nil
	case all:
		if err := c.adjust(true); err != nil {
			return err
		}
	}
	if err := c.setFlags(all); err != nil {
		return err
	}
	switch {
	case c.o.Fix&block.FixLeaks == 0 || c.unusable:
		return nil
	case c.lost > 0:
		c.tell("lost space is not freed: tables are lost, and what they refer to would be freed as well")
		return nil
	}
	if err := c.adjust(false); err != nil {
		return err
	}
	return c.setFlags(all)
}

// setFlags sets the flags COPIED by the refcounts, unless tables overlap what
// else is in use, or may do so: it would be changed.
func (c *checker) setFlags(all bool) error {
	if !all || c.overlaps > 0 || c.res.CheckErrors > 0 {
		return nil
	}
	if err := c.active(true); err != nil {
		return err
	}
	return c.e.sync()
}

// adjust sets refcounts that are too low, or those that are too high, and makes
// that durable.
func (c *checker) adjust(up bool) error {
	err := c.scan(func(cluster int64, want, have uint64) error {
		want = min(want, c.e.maxRefcount())
		if up == (want > have) && want != have && c.usable(cluster/c.e.perBlock()) {
			return c.e.setRefcount(cluster, want)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return c.e.sync()
}

// markClean clears the bits dirty and corrupt where nothing is wrong any more.
func (c *checker) markClean() error {
	bits := c.e.incompat & (featDirty | featCorrupt)
	if bits == 0 || c.res.CheckErrors > 0 || c.res.Corruptions > 0 {
		return nil
	}
	return c.e.setFeatures(c.e.incompat &^ bits)
}

// setFeatures changes the incompatible features, before and after which all is
// durable.
func (e *editor) setFeatures(incompat uint64) error {
	if err := e.sync(); err != nil {
		return err
	}
	if err := e.write(atFeatures, tableBytes([]uint64{incompat})); err != nil {
		return err
	}
	e.incompat = incompat
	return e.sync()
}

// rebuild makes refcount table and blocks anew, behind all that is in use.
func (c *checker) rebuild() error {
	c.bare = true
	defer func() { c.bare = false }()
	per := c.e.perBlock()
	var need []int64
	err := c.scan(func(cluster int64, want, _ uint64) error {
		if i := cluster / per; want > 0 && (len(need) == 0 || need[len(need)-1] != i) {
			need = append(need, i)
		}
		return nil
	})
	if err != nil {
		return err
	}
	n, err := c.e.layRefcounts(nil, need, c.e.clusters(c.e.file.Size()))
	if err != nil {
		return err
	}
	err = c.scan(func(cluster int64, want, _ uint64) error {
		if want == 0 {
			return nil
		}
		return n.setRefcount(cluster, min(want, n.maxRefcount()))
	})
	if err != nil {
		return err
	}
	if err := n.switchTable(); err != nil {
		return err
	}
	if err := c.e.load(); err != nil {
		return err
	}
	// What overlapped the old structures does so no more.
	report := c.o.Report
	c.o.Report, c.bare = nil, false
	defer func() { c.o.Report = report }()
	return c.look()
}

// layRefcounts lays out refcount structures from cluster start on, in space
// that nothing refers to and that reads as zeroes: a table with the entries old
// where there are some, and new blocks for need, in ascending order, and for
// the clusters that the structures themselves fill, whose refcounts it sets.
// Nothing refers to them until switchTable.
func (e *editor) layRefcounts(old []uint64, need []int64, start int64) (*editor, error) {
	per := e.perBlock()
	has := func(i int64) bool { return i < int64(len(old)) && old[i] != 0 }
	var blocks []int64
	tableLen := int64(0)
	for end := start; ; {
		blocks = slices.Clone(need)
		for i := start / per; i*per < end; i++ {
			if _, ok := slices.BinarySearch(need, i); !ok && !has(i) {
				blocks = append(blocks, i)
			}
		}
		slices.Sort(blocks)
		entries := int64(len(old))
		if len(blocks) > 0 {
			entries = max(entries, blocks[len(blocks)-1]+1)
		}
		tableLen = e.clusters(entries * 8)
		if tableLen<<e.clusterBits > maxTableBytes {
			return nil, block.Errorf(syscall.EFBIG, "the image is too large for refcounts of %d bits in clusters of %d bytes", 1<<e.order, e.clusterSize())
		}
		if next := start + int64(len(blocks)) + tableLen; next == end {
			break
		} else {
			end = next
		}
	}
	n := &editor{rq: e.rq, file: e.file, layout: e.layout, blocks: map[int64]*refBlock{}}
	n.table = make([]uint64, tableLen<<e.clusterBits/8)
	copy(n.table, old)
	for k, i := range blocks {
		n.table[i] = uint64(start+int64(k)) << e.clusterBits
	}
	n.tableOff, n.tableLen = uint64(start+int64(len(blocks)))<<e.clusterBits, uint32(tableLen)
	end := int64(n.tableOff) + tableLen<<e.clusterBits
	if end > e.file.Size() {
		if err := e.file.Truncate(e.rq, end, block.PreallocOff); err != nil {
			return nil, err
		}
	}
	return n, n.addRefcounts(start<<e.clusterBits, end-start<<e.clusterBits, 1)
}

// switchTable makes the structures that layRefcounts laid the image's, by one
// write to the header, all they hold being durable before.
func (e *editor) switchTable() error {
	if err := e.write(int64(e.tableOff), tableBytes(e.table)); err != nil {
		return err
	}
	if err := e.sync(); err != nil {
		return err
	}
	b := binary.BigEndian.AppendUint32(tableBytes([]uint64{e.tableOff}), e.tableLen)
	if err := e.write(atTable, b); err != nil {
		return err
	}
	return e.sync()
}
