package qcow2

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/platter-storage/platter/block"
)

// Parts of L1, L2, refcount and bitmap table entries.
const (
	entryOffset     = 0x00fffffffffffe00
	entryCopied     = 1 << 63
	entryCompressed = 1 << 62
	entryZero       = 1
	l1Reserved      = 0x7f000000000001ff
	l2Reserved      = 0x3f000000000001fe
	tableReserved   = 0x1ff
	bitmapReserved  = 0xff000000000001fe
)

// gather reads the lists that say where tables are.
func (c *checker) gather() error {
	e := c.e
	c.l1s = []l1Ref{{e.l1Off, e.l1Entries, 1, "the L1 table"}}
	var err error
	if c.snaps, c.snapBytes, err = e.readSnapshots(); err != nil {
		c.unknown("%v", err)
	}
	if c.bitmaps, err = e.readBitmaps(); err != nil {
		c.unknown("%v", err)
	}
	known := map[[2]uint64]int{{e.l1Off, uint64(e.l1Entries)}: 0}
	for i := range c.snaps {
		s := &c.snaps[i]
		key := [2]uint64{s.l1Off, uint64(s.l1Entries)}
		if at, ok := known[key]; ok {
			c.l1s[at].times++
			continue
		}
		known[key] = len(c.l1s)
		c.l1s = append(c.l1s, l1Ref{s.l1Off, s.l1Entries, 1, fmt.Sprintf("the L1 table of snapshot %q", s.id)})
	}
	c.dropBadL1s()
	c.findBadBlocks()
	return nil
}

// dropBadL1s leaves those out that cannot be followed. Together they are no
// longer than the file, or else they overlap, and following them could take any
// time.
func (c *checker) dropBadL1s() {
	left := c.e.file.Size() + c.e.clusterSize()
	c.l1s = slices.DeleteFunc(c.l1s, func(l l1Ref) bool {
		n := int64(l.entries) * 8
		switch {
		case n == 0:
			return true
		case !c.e.aligned(l.off) || l.off > block.MaxSize-maxL1Bytes || n > maxL1Bytes:
			c.lost++
			c.wrong("%s is at offset %d with %d entries, where no table can be", l.what, l.off, l.entries)
			return true
		case n > left:
			c.unknown("%s at offset %d overlaps others: the tables together are longer than the file", l.what, l.off)
			return true
		}
		left -= n
		return false
	})
}

// findBadBlocks looks for entries of the refcount table that are no blocks, or
// the block of another entry.
func (c *checker) findBadBlocks() {
	c.badBlocks = map[int64]bool{}
	if !c.e.aligned(c.e.tableOff) || c.e.tableOff == 0 || len(c.e.table) == 0 {
		c.unusable = true
		c.wrong("the refcount table is at offset %d with %d entries, where no table can be", c.e.tableOff, len(c.e.table))
	}
	order := make([]int32, 0, 64)
	for i, x := range c.e.table {
		if x != 0 {
			order = append(order, int32(i))
		}
	}
	slices.SortStableFunc(order, func(a, b int32) int {
		return int(min(max(int64(c.e.table[a]>>1)-int64(c.e.table[b]>>1), -1), 1))
	})
	var last uint64
	for _, i := range order {
		x := c.e.table[i]
		if !c.e.usableBlock(x) || x == last {
			c.unusable, c.badBlocks[int64(i)] = true, true
			c.wrong("entry %d of the refcount table is %#x: it is no cluster of the file, or another entry's block", i, x)
		}
		last = x
	}
}

// walk counts every reference.
func (c *checker) walk() error {
	e := c.e
	c.ref("the header", 0, e.clusterSize(), usedMeta, 1)
	for _, l := range c.l1s {
		c.ref(l.what, l.off, int64(l.entries)*8, usedMeta, l.times)
	}
	if c.snapBytes > 0 {
		if !e.aligned(e.snapOff) {
			c.wrong("the snapshot table is at offset %d, which begins no cluster", e.snapOff)
		}
		c.ref("the snapshot table", e.snapOff, c.snapBytes, usedMeta, 1)
	}
	if x := e.extension(extCrypt); len(x) == 16 && e.crypt != 0 {
		off, n := binary.BigEndian.Uint64(x), binary.BigEndian.Uint64(x[8:])
		if !e.aligned(off) || n > maxCryptHeader {
			c.wrong("the encryption header is at offset %d with %d bytes, where none can be", off, n)
		}
		c.ref("the encryption header", off, int64(min(n, maxCryptHeader)), usedMeta, 1)
	}
	if err := c.walkBitmaps(); err != nil {
		return err
	}
	if !c.bare {
		c.walkRefcounts()
	}
	return c.walkL2()
}

// ref counts references to the clusters that [off, off+n) touches, if they are
// in the file. The last cluster may be there in part.
func (c *checker) ref(what string, off uint64, n int64, own uint16, times uint64) bool {
	e := c.e
	if n <= 0 {
		return true
	}
	if off > block.MaxSize-1<<32 || n > block.MaxSize-int64(off) || int64(off)+n-e.file.Size() >= e.clusterSize() {
		c.wrong("%s at offset %d, %d bytes long, is beyond the end of the file", what, off, n)
		return false
	}
	for k := max(int64(off)>>e.clusterBits, c.count.lo); k < min(e.clusters(int64(off)+n), c.count.hi); k++ {
		c.count.add(k, own, times)
	}
	return true
}

// walkRefcounts counts the refcount table and its blocks.
func (c *checker) walkRefcounts() {
	e := c.e
	c.ref("the refcount table", e.tableOff, int64(e.tableLen)<<e.clusterBits, usedMeta, 1)
	for i, x := range e.table {
		if x != 0 && !c.badBlocks[int64(i)] {
			c.ref("a refcount block", x, e.clusterSize(), usedMeta, 1)
		}
	}
}

// walkBitmaps counts the bitmap directory, tables and data.
func (c *checker) walkBitmaps() error {
	e := c.e
	x, ok, _ := e.bitmapHeader()
	if !ok {
		return nil
	}
	c.ref("the bitmap directory", x.offset, int64(x.size), usedMeta, 1)
	left := e.file.Size() + e.clusterSize()
	for i := range c.bitmaps {
		m := &c.bitmaps[i]
		n := int64(m.entries) * 8
		if left -= n; left < 0 {
			c.unknown("the table of bitmap %q overlaps others: the tables together are longer than the file", m.name)
			return nil
		}
		if !c.ref("a bitmap table", m.tableOff, n, usedMeta, 1) || e.hole(int64(m.tableOff), n) {
			continue
		}
		if err := c.walkBitmap(m); err != nil {
			return err
		}
	}
	return nil
}

func (c *checker) walkBitmap(m *bitmapEntry) error {
	t, err := c.e.readTable(m.tableOff, int64(m.entries))
	if err != nil {
		return err
	}
	for i, x := range t {
		off := x & entryOffset
		switch {
		case x&bitmapReserved != 0 || off != 0 && (x&1 != 0 || !c.e.aligned(off)):
			c.wrong("entry %d of the table of bitmap %q is %#x, which no entry can be", i, m.name, x)
		case off != 0:
			c.ref("a cluster of a bitmap", off, c.e.clusterSize(), usedMeta, 1)
		}
	}
	return nil
}

// walkL2 counts L2 tables, each as often as L1 tables refer to it, and follows
// each once: however often one is used, it is read once a walk.
func (c *checker) walkL2() error {
	b := make([]byte, c.e.clusterSize())
	for lo, done := uint64(0), false; !done; {
		set := newTableSet(lo, maxTableSet)
		for _, l := range c.l1s {
			if err := c.walkL1(l, set, lo == 0); err != nil {
				return err
			}
		}
		for _, off := range set.sorted() {
			if err := c.followL2(off, set.times[off], b); err != nil {
				return err
			}
		}
		lo, done = set.hi, set.hi == ^uint64(0)
	}
	return nil
}

// walkL1 puts the L2 tables of an L1 table into set.
func (c *checker) walkL1(l l1Ref, set *tableSet, tell bool) error {
	if c.e.hole(int64(l.off), int64(l.entries)*8) {
		return nil
	}
	t, err := c.e.readTable(l.off, int64(l.entries))
	if err != nil {
		return err
	}
	loud := c.loud
	c.loud = loud && tell
	defer func() { c.loud = loud }()
	for i, x := range t {
		off := x & entryOffset
		if x&l1Reserved != 0 {
			c.wrong("entry %d of %s is %#x: reserved bits are set", i, l.what, x)
		}
		switch {
		case off == 0:
		case !c.e.aligned(off):
			c.lose("entry %d of %s is %#x: an L2 table begins with a cluster", i, l.what, x)
			if tell {
				c.ref("an L2 table", off, c.e.clusterSize(), usedL2, l.times)
			}
		case int64(off)+c.e.clusterSize()-c.e.file.Size() >= c.e.clusterSize():
			c.lose("entry %d of %s is %#x: the L2 table is beyond the end of the file", i, l.what, x)
		default:
			set.add(off, l.times)
		}
	}
	return nil
}

// lose is wrong, and what the thing refers to is not known.
func (c *checker) lose(format string, args ...any) {
	if c.loud {
		c.lost++
	}
	c.wrong(format, args...)
}

// followL2 counts an L2 table and what it refers to.
func (c *checker) followL2(off, times uint64, b []byte) error {
	c.progress()
	c.ref("an L2 table", off, c.e.clusterSize(), usedL2, times)
	if c.e.hole(int64(off), c.e.clusterSize()) {
		return nil
	}
	if err := c.e.read(int64(off), b); err != nil {
		return err
	}
	step := c.e.entryLen()
	for at := int64(0); at < int64(len(b)); at += step {
		x, sub := binary.BigEndian.Uint64(b[at:]), uint64(0)
		if step == 16 {
			sub = binary.BigEndian.Uint64(b[at+8:])
		}
		if x == 0 && sub == 0 {
			continue
		}
		y, ysub := c.entry(off, at/step, x, sub, times)
		if (y != x || ysub != sub) && c.mend && c.loud {
			if err := c.mendEntry(int64(off)+at, y, ysub); err != nil {
				return err
			}
		}
	}
	return nil
}

// mendEntry replaces an L2 entry by one that says the same without being
// wrong.
func (c *checker) mendEntry(at int64, x, sub uint64) error {
	c.res.Corruptions--
	c.res.CorruptionsFixed++
	return c.e.write(at, tableBytes([]uint64{x, sub})[:c.e.entryLen()])
}

// compressedAt is where the data of a compressed cluster lies (section
// "Compressed Clusters Descriptor").
func (l *layout) compressedAt(x uint64) (off uint64, n int64) {
	shift := 62 - (l.clusterBits - 8)
	off = x & (1<<shift - 1)
	sectors := int64(x>>shift&(1<<(l.clusterBits-8)-1)) + 1
	return off, sectors*512 - int64(off%512)
}

// entry counts what an L2 entry refers to, and gives the entry as it should be:
// the same, unless it is wrong in a way that has one remedy only.
func (c *checker) entry(table uint64, i int64, x, sub, times uint64) (uint64, uint64) {
	if x&entryCompressed != 0 {
		return c.compressedEntry(table, i, x, sub, times)
	}
	e := c.e
	off := x & entryOffset
	switch {
	case x&l2Reserved != 0 || x&entryZero != 0 && (e.version < 3 || e.entryLen() == 16):
		c.wrong("entry %d of the L2 table at offset %d is %#x: reserved bits are set", i, table, x)
	case sub>>32&sub&0xffffffff != 0:
		c.wrong("entry %d of the L2 table at offset %d has subclusters that are both allocated and zero: %#x", i, table, sub)
		sub &^= sub >> 32 // it reads as zeroes in any case
	case off == 0 && sub&0xffffffff != 0 && e.incompat&featDataFile == 0:
		c.wrong("entry %d of the L2 table at offset %d has allocated subclusters and no cluster: %#x", i, table, sub)
	}
	if off == 0 || e.incompat&featDataFile != 0 {
		return x, sub
	}
	if !e.aligned(off) {
		c.wrong("entry %d of the L2 table at offset %d is %#x: a cluster of data begins with a cluster", i, table, x)
		if x&entryZero != 0 && e.entryLen() == 8 && c.mend {
			return entryZero, sub // it reads as zeroes in any case
		}
	}
	c.ref("a cluster of data", off, e.clusterSize(), usedData, times)
	return x, sub
}

func (c *checker) compressedEntry(table uint64, i int64, x, sub, times uint64) (uint64, uint64) {
	if x&entryCopied != 0 || sub != 0 {
		c.wrong("entry %d of the L2 table at offset %d is %#x, %#x: compressed clusters have neither the flag COPIED nor subclusters", i, table, x, sub)
	}
	if c.e.incompat&featDataFile != 0 {
		c.wrong("entry %d of the L2 table at offset %d is compressed, and the data is in a file of its own", i, table)
		return x &^ entryCopied, 0
	}
	off, n := c.e.compressedAt(x)
	c.ref("a compressed cluster", off, n, usedData, times)
	return x &^ entryCopied, 0
}
