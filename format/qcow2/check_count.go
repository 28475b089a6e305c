package qcow2

import (
	"math"
	"slices"
)

// What is counted is counted for one window of host clusters at a time. The
// counters lie in chunks that are made when a reference falls into them; where
// they would need more memory than allowed the window becomes smaller, and what
// was behind it is counted by another walk. Each walk keeps half of its chunks
// at least, so that the number of walks is bounded by that of references.

// counters are the references to host clusters of a window.
type counters struct {
	lo, hi int64
	chunks map[int64]*chunk
	many   map[int64]uint64 // counts beyond what a counter holds
	last   *chunk
	lastAt int64
	limit  int // of chunks
	align  int64
}

// chunkLen is how many clusters a chunk counts.
const chunkLen = 256

// chunk holds the low bits of counts, and what kinds of things refer to the
// cluster.
type chunk [chunkLen]uint16

// Owners of a cluster: bits of a counter above the count.
const (
	usedMeta = 1 << 15 // a structure that nothing else may share
	usedL2   = 1 << 14 // an L2 table, of any number of L1 tables
	usedData = 1 << 13 // content, of any number of L2 tables
	usedMask = usedMeta | usedL2 | usedData
	countMax = usedData - 1
)

// maxCounterMemory bounds the counters of a check in bytes.
const maxCounterMemory = 64 << 20

// newCounters counts from cluster lo on. The window ends at a multiple of
// align, unless not even that many clusters find room.
func newCounters(lo, align int64, memory int) *counters {
	return &counters{lo: lo, hi: math.MaxInt64, chunks: map[int64]*chunk{}, many: map[int64]uint64{}, lastAt: -1,
		limit: max(memory/(chunkLen*2+64), 4), align: align}
}

// add counts times references by an owner of the kind.
func (c *counters) add(cluster int64, own uint16, times uint64) {
	if cluster < c.lo || cluster >= c.hi {
		return
	}
	if at := cluster / chunkLen; at != c.lastAt {
		c.last = c.chunk(at)
		c.lastAt = at
	}
	if c.last == nil {
		return
	}
	p := &c.last[cluster%chunkLen]
	n := uint64(*p & countMax)
	if n == countMax {
		n = c.many[cluster]
	}
	n = min(n+times, 1<<62)
	if n >= countMax {
		c.many[cluster] = n
	}
	*p = *p&usedMask | own | uint16(min(n, countMax))
}

// chunk finds or makes one; nil where the window had to become so small that
// it is behind it.
func (c *counters) chunk(at int64) *chunk {
	if x := c.chunks[at]; x != nil {
		return x
	}
	if len(c.chunks)+len(c.many)/4 >= c.limit {
		c.shrink()
		if at*chunkLen >= c.hi {
			return nil
		}
	}
	x := new(chunk)
	c.chunks[at] = x
	return x
}

// shrink halves the window by the chunks in it.
func (c *counters) shrink() {
	keys := c.keys()
	hi := keys[len(keys)/2] * chunkLen
	if a := hi / c.align * c.align; a > c.lo {
		hi = a
	}
	c.hi = max(hi, c.lo+1)
	for _, k := range keys {
		if k*chunkLen >= c.hi {
			delete(c.chunks, k)
		}
	}
	for k := range c.many {
		if k >= c.hi {
			delete(c.many, k)
		}
	}
	c.lastAt = -1
}

// keys of the chunks, in order.
func (c *counters) keys() []int64 {
	keys := make([]int64, 0, len(c.chunks))
	for k := range c.chunks {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// get is the number of references to a cluster of the window, and by whom.
func (c *counters) get(cluster int64) (n uint64, own uint16) {
	x := c.chunks[cluster/chunkLen]
	if x == nil {
		return 0, 0
	}
	p := x[cluster%chunkLen]
	if n = uint64(p & countMax); n == countMax {
		n = c.many[cluster]
	}
	return n, p & usedMask
}

// tableSet are the distinct tables of a window of host offsets and how often
// each is referred to, bounded like the counters.
type tableSet struct {
	lo, hi uint64
	times  map[uint64]uint64
	limit  int
}

// maxTableSet is how many distinct L2 tables a walk keeps at once.
const maxTableSet = 1 << 19

func newTableSet(lo uint64, limit int) *tableSet {
	return &tableSet{lo: lo, hi: math.MaxUint64, times: map[uint64]uint64{}, limit: limit}
}

// add counts references to the table at off.
func (t *tableSet) add(off, times uint64) {
	if off < t.lo || off >= t.hi {
		return
	}
	n, ok := t.times[off]
	if !ok && len(t.times) >= t.limit {
		all := t.sorted()
		t.hi = all[len(all)/2]
		for _, o := range all[len(all)/2:] {
			delete(t.times, o)
		}
		if off >= t.hi {
			return
		}
	}
	t.times[off] = min(n+times, 1<<62)
}

// sorted are the tables' offsets in order.
func (t *tableSet) sorted() []uint64 {
	all := make([]uint64, 0, len(t.times))
	for o := range t.times {
		all = append(all, o)
	}
	slices.Sort(all)
	return all
}
