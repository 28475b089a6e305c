package qcow2

import (
	"fmt"
	"math"
	"slices"

	"github.com/platter-storage/platter/block"
)

// checker looks through an image's metadata: it follows every reference from
// the header on, counts them, and holds the counts up against the refcounts.
// Nothing that the image claims sizes its memory: see counters and tableSet for
// what grows, and budget for what is bounded by the file's size.
type checker struct {
	e   *editor
	o   block.CheckOptions
	res block.CheckResult

	count *counters
	// loud: findings of this walk are counted and told. Later walks, for
	// other windows, find the same.
	loud bool
	told int
	// mend: entries that can be mended on the spot are, in a loud walk.
	mend bool
	// bare walks leave the refcount structures out, as before they are made
	// anew.
	bare   bool
	memory int // for counters, in bytes

	snaps     []snapshot
	snapBytes int64
	bitmaps   []bitmapEntry
	l1s       []l1Ref
	badBlocks map[int64]bool // entries of the refcount table that are not to be used

	lost     int64 // tables that cannot be read: what they refer to is not known
	overlaps int64
	unusable bool // the refcount structures must be made anew
	highest  int64
	done     int64
}

// l1Ref is an L1 table, of the disk or of snapshots, and how many use it.
type l1Ref struct {
	off     uint64
	entries uint32
	times   uint64
	what    string
}

// check examines the image in file, and repairs it as o asks.
func check(rq *block.Req, file *block.Child, o block.CheckOptions) (block.CheckResult, error) {
	return checkWithin(rq, file, o, maxCounterMemory)
}

// checkWithin is check with a bound for the memory of counters.
func checkWithin(rq *block.Req, file *block.Child, o block.CheckOptions, memory int) (block.CheckResult, error) {
	c := &checker{o: o, memory: memory}
	var err error
	if c.e, err = edit(rq, file); err != nil {
		return block.CheckResult{CheckErrors: 1}, err
	}
	if o.Fix == 0 {
		return c.res, c.look()
	}
	return c.res, c.repair()
}

// look finds what there is to find.
func (c *checker) look() error {
	err := c.examine(func(cluster int64, want, have uint64) error {
		c.compare(cluster, want, have)
		return nil
	})
	if err != nil {
		return err
	}
	if err := c.active(false); err != nil {
		return err
	}
	c.res.ImageEndOffset = (c.highest + 1) << c.e.clusterBits
	c.res.TotalClusters = c.e.clusters(int64(c.e.size))
	return nil
}

// examine starts anew and calls f for each host cluster that has references or
// a refcount, in order.
func (c *checker) examine(f func(cluster int64, want, have uint64) error) error {
	fixed, fixedLeaks := c.res.CorruptionsFixed, c.res.LeaksFixed
	c.res = block.CheckResult{CorruptionsFixed: fixed, LeaksFixed: fixedLeaks}
	c.lost, c.overlaps, c.unusable, c.highest, c.loud = 0, 0, false, 0, true
	if err := c.gather(); err != nil {
		return err
	}
	return c.scan(f)
}

// scan walks window by window. Findings are told in the first walk only.
func (c *checker) scan(f func(cluster int64, want, have uint64) error) error {
	for lo := int64(0); lo < math.MaxInt64; {
		c.count = newCounters(lo, c.e.perBlock(), c.memory)
		if err := c.walk(); err != nil {
			return err
		}
		c.loud = false
		if err := c.compareWindow(f); err != nil {
			return err
		}
		lo = c.count.hi
	}
	return nil
}

// compareWindow calls f for what the window holds.
func (c *checker) compareWindow(f func(cluster int64, want, have uint64) error) error {
	per := c.e.perBlock()
	var blocks []int64
	for i := c.count.lo / per; i < int64(len(c.e.table)) && i*per < c.count.hi; i++ {
		if c.usable(i) {
			blocks = append(blocks, i)
		}
	}
	for _, k := range c.count.keys() {
		for i := k * chunkLen / per; i*per < (k+1)*chunkLen; i++ {
			if i >= int64(len(c.e.table)) || !c.usable(i) {
				blocks = append(blocks, i)
			}
		}
	}
	slices.Sort(blocks)
	for _, i := range slices.Compact(blocks) {
		if err := c.compareBlock(i, f); err != nil {
			return err
		}
	}
	return nil
}

// usable reports whether entry i of the refcount table has a block of its own.
func (c *checker) usable(i int64) bool {
	return c.e.usableBlock(c.e.table[i]) && !c.badBlocks[i]
}

// compareBlock calls f for the clusters of block i that lie in the window.
func (c *checker) compareBlock(i int64, f func(cluster int64, want, have uint64) error) error {
	per := c.e.perBlock()
	var r *refBlock
	if i < int64(len(c.e.table)) && c.usable(i) && !(c.empty(i) && c.e.hole(int64(c.e.table[i]), c.e.clusterSize())) {
		var err error
		if r, err = c.e.blockAt(i * per); err != nil {
			return err
		}
	}
	end := min((i+1)*per, c.count.hi)
	for at := max(i*per, c.count.lo); at < end; {
		next := min((at/chunkLen+1)*chunkLen, end)
		if r == nil && c.count.chunks[at/chunkLen] == nil {
			at = next
			continue
		}
		for ; at < next; at++ {
			want, _ := c.count.get(at)
			have := uint64(0)
			if r != nil {
				have = refAt(r.b, c.e.order, at%per)
			}
			if want == 0 && have == 0 {
				continue
			}
			if want > 0 || at < c.e.clusters(c.e.file.Size()) {
				c.highest = max(c.highest, at)
			}
			if err := f(at, want, have); err != nil {
				return err
			}
		}
	}
	return nil
}

// empty reports whether nothing refers to a cluster of block i.
func (c *checker) empty(i int64) bool {
	per := c.e.perBlock()
	for k := i * per / chunkLen; k*chunkLen < (i+1)*per; k++ {
		if c.count.chunks[k] != nil {
			return false
		}
	}
	return true
}

// compare counts and tells what is wrong with one cluster.
func (c *checker) compare(cluster int64, want, have uint64) {
	at := cluster << c.e.clusterBits
	_, own := c.count.get(cluster)
	c.noteOverlap(cluster, want, own)
	switch i := cluster / c.e.perBlock(); {
	case want > have:
		c.unusable = c.unusable || i >= int64(len(c.e.table)) || !c.usable(i)
		c.res.Corruptions++
		c.tell("the cluster at offset %d has refcount %d and %d references", at, have, want)
	case want < have:
		c.res.Leaks++
		c.tell("the cluster at offset %d has refcount %d and %d references: space is lost", at, have, want)
	}
}

// noteOverlap counts clusters that have two owners which cannot share one.
func (c *checker) noteOverlap(cluster int64, want uint64, own uint16) {
	at := cluster << c.e.clusterBits
	switch {
	case own&usedMeta != 0 && want > 1:
		c.unusable = true
	case own&usedL2 == 0 || own&usedData == 0:
		return
	}
	c.overlaps++
	c.res.Corruptions++
	c.tell("the cluster at offset %d holds metadata and is used %d times: structures overlap", at, want)
}

// tell passes a finding on.
func (c *checker) tell(format string, args ...any) {
	if c.o.Report == nil || c.told > block.MaxFindings {
		return
	}
	c.told++
	if c.told > block.MaxFindings {
		c.o.Report("more findings are only counted")
		return
	}
	c.o.Report(fmt.Sprintf(format, args...))
}

// wrong counts and tells something that is wrong, once.
func (c *checker) wrong(format string, args ...any) {
	if c.loud {
		c.res.Corruptions++
		c.tell(format, args...)
	}
}

// unknown counts and tells something that cannot be looked at: what it refers
// to is not known, and nothing may be freed.
func (c *checker) unknown(format string, args ...any) {
	if c.loud {
		c.lost++
		c.res.CheckErrors++
		c.tell(format, args...)
	}
}

// progress tells how many tables have been looked at; of how many is not known
// before the end.
func (c *checker) progress() {
	c.done++
	if c.o.Progress != nil {
		c.o.Progress(c.done, c.done+1)
	}
}
