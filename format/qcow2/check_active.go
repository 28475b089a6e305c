package qcow2

import (
	"encoding/binary"

	"github.com/platter-storage/platter/block"
)

// active goes through the disk's own tables in the order of the disk: for the
// flags COPIED, which must say whether the refcount is 1, and for statistics.
// With mend the flags are set right.
func (c *checker) active(mend bool) error { return c.flags(c.e.l1Off, c.e.l1Entries, mend) }

// flags is active for any L1 table.
func (c *checker) flags(l1Off uint64, entries uint32, mend bool) error {
	e := c.e
	if entries == 0 || !e.aligned(l1Off) || l1Off > block.MaxSize-maxL1Bytes || e.hole(int64(l1Off), int64(entries)*8) {
		return nil
	}
	t, err := e.readTable(l1Off, int64(entries))
	if err != nil {
		return err
	}
	c.loud = true
	from, to := len(t), 0                   // entries that changed
	left := e.file.Size() + e.clusterSize() // of L2 tables to read
	b := make([]byte, e.clusterSize())
	for i, x := range t {
		off := x & entryOffset
		if off == 0 || !e.aligned(off) || int64(off) >= e.file.Size() {
			continue
		}
		y, err := c.copied(x, "the L2 table", mend)
		if err != nil {
			return err
		}
		if x != y {
			t[i], from, to = y, min(from, i), i+1
		}
		if e.hole(int64(off), e.clusterSize()) {
			continue
		}
		if left -= e.clusterSize(); left < 0 {
			c.unknown("the L1 table refers to the same L2 tables again and again")
			break
		}
		if err := c.activeL2(int64(off), b, mend); err != nil {
			return err
		}
	}
	if to == 0 || !mend {
		return nil
	}
	return e.write(int64(l1Off)+int64(from)*8, tableBytes(t[from:to]))
}

// activeL2 does one L2 table.
func (c *checker) activeL2(off int64, b []byte, mend bool) error {
	if err := c.e.read(off, b); err != nil {
		return err
	}
	changed := false
	next := uint64(0)
	for at := int64(0); at < int64(len(b)); at += c.e.entryLen() {
		x := binary.BigEndian.Uint64(b[at:])
		if x == 0 {
			continue
		}
		next = c.statistics(x, next)
		if x&entryCompressed != 0 || x&entryOffset == 0 || !c.e.aligned(x&entryOffset) || c.e.incompat&featDataFile != 0 {
			continue
		}
		y, err := c.copied(x, "the cluster of data", mend)
		if err != nil {
			return err
		}
		changed = changed || x != y
		binary.BigEndian.PutUint64(b[at:], y)
	}
	if !changed || !mend {
		return nil
	}
	return c.e.write(off, b)
}

// statistics counts an entry. next is where its cluster would lie if it
// followed the one before, 0 where there is none.
func (c *checker) statistics(x, next uint64) uint64 {
	off := x & entryOffset
	switch {
	case x&entryCompressed != 0:
		c.res.AllocatedClusters++
		c.res.CompressedClusters++
		c.res.FragmentedClusters++
		return next
	case off == 0 && (c.e.incompat&featDataFile == 0 || x&entryCopied == 0):
		return next
	}
	c.res.AllocatedClusters++
	if next != 0 && next != off {
		c.res.FragmentedClusters++
	}
	return off + uint64(c.e.clusterSize())
}

// copied gives the entry with the flag COPIED as it should be.
func (c *checker) copied(x uint64, what string, mend bool) (uint64, error) {
	n, err := c.e.refcount(int64(x&entryOffset) >> c.e.clusterBits)
	if err != nil || (n == 1) == (x&entryCopied != 0) {
		return x, err
	}
	if mend {
		c.res.CorruptionsFixed++
		return x ^ entryCopied, nil
	}
	c.wrong("%s at offset %d has refcount %d, and the flag COPIED of its entry is %v", what, x&entryOffset, n, x&entryCopied != 0)
	return x, nil
}
