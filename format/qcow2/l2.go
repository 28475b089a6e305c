package qcow2

import (
	"encoding/binary"
	"math/bits"
	"sync/atomic"
	"syscall"

	"github.com/platter-storage/platter/block"
)

// l2Cache has L2 tables in slices. Lookups find them without a lock by the
// rows of the node; who changes or drops them holds node.mu.
type l2Cache struct {
	perSlice   int64 // entries in a slice
	perTable   int64 // slices in a table
	sliceBytes int64 // of a slice in the file
	shift      uint32
	max        int // slices to keep
	empty      *l2Slice
	all        map[int64]*l2Slice
	clock      []*l2Slice // candidates for dropping, in a circle
	hand       int
	dirty      int
}

// row is the slices of one L2 table.
type row []atomic.Pointer[l2Slice]

func newRows(n int64) []atomic.Pointer[row] { return make([]atomic.Pointer[row], n) }

// l2Slice is a part of an L2 table in memory, entries in native byte order, with
// the bitmap after each where entries are extended.
type l2Slice struct {
	ents  []atomic.Uint64
	index int64
	used  atomic.Bool // since the clock's hand went by
	// dirty is newer than the file; busy is being written and must not go.
	dirty, busy, gone bool
}

// find is the slice of a guest offset without waiting; nil where it is not in
// memory.
func (n *node) find(off int64) *l2Slice {
	i := off >> n.cache.shift
	r := n.rows[i/n.cache.perTable].Load()
	if r == nil {
		return nil
	}
	return (*r)[i%n.cache.perTable].Load()
}

// slice is find that reads what is missing. mu is held.
func (n *node) slice(rq *block.Req, off int64) (*l2Slice, error) {
	if s := n.find(off); s != nil {
		touch(s)
		return s, nil
	}
	i := off >> n.cache.shift
	table := i / n.cache.perTable
	r := n.rowOf(table)
	if n.l1[table]&entryOffset == 0 {
		(*r)[i%n.cache.perTable].Store(n.cache.empty)
		return n.cache.empty, nil
	}
	s := &l2Slice{ents: make([]atomic.Uint64, len(n.cache.empty.ents)), index: i}
	if err := n.loadSlice(rq, s); err != nil {
		return nil, err
	}
	n.keep(s)
	return s, nil
}

// touch keeps s from being dropped at the hand's next pass.
func touch(s *l2Slice) {
	if !s.used.Load() {
		s.used.Store(true)
	}
}

func (n *node) rowOf(table int64) *row {
	r := n.rows[table].Load()
	if r == nil {
		fresh := make(row, n.cache.perTable)
		r = &fresh
		n.rows[table].Store(r)
	}
	return r
}

// sliceOff is where a slice lies in the file.
func (n *node) sliceOff(i int64) int64 {
	return int64(n.l1[i/n.cache.perTable]&entryOffset) + i%n.cache.perTable*n.cache.sliceBytes
}

func (n *node) loadSlice(rq *block.Req, s *l2Slice) error {
	l1 := n.l1[s.index/n.cache.perTable]
	if off := l1 & entryOffset; !n.aligned(off) || int64(off) >= n.file.Size() {
		return n.corrupt(rq, "L1 entry %d is %#x: it points at no cluster of the file, which has %d bytes", s.index/n.cache.perTable, l1, n.file.Size())
	}
	b := n.scratch[:n.cache.sliceBytes]
	if err := n.readFile(rq, n.sliceOff(s.index), b); err != nil {
		return err
	}
	for i := range s.ents {
		s.ents[i].Store(binary.BigEndian.Uint64(b[i*8:]))
	}
	return n.guardSlice(rq, s)
}

// keep enters a slice, and drops others where there are too many.
func (n *node) keep(s *l2Slice) {
	n.evict()
	n.cache.all[s.index] = s
	n.cache.clock = append(n.cache.clock, s)
	s.used.Store(true)
	(*n.rowOf(s.index / n.cache.perTable))[s.index%n.cache.perTable].Store(s)
}

// evict drops clean slices that were not used lately while there are too many.
// Where all are dirty the cache grows until they are settled, which writers see
// to (crowded).
func (n *node) evict() {
	c := &n.cache
	for tries := 2 * len(c.clock); len(c.all) >= c.max && tries > 0; tries-- {
		if c.hand >= len(c.clock) {
			c.hand = 0
		}
		s := c.clock[c.hand]
		if s.dirty || s.busy || s.used.Swap(false) {
			c.hand++
			continue
		}
		n.dropSlice(s)
		last := len(c.clock) - 1
		c.clock[c.hand], c.clock[last] = c.clock[last], nil
		c.clock = c.clock[:last]
	}
}

func (n *node) dropSlice(s *l2Slice) {
	delete(n.cache.all, s.index)
	s.gone = true
	if r := n.rows[s.index/n.cache.perTable].Load(); r != nil {
		(*r)[s.index%n.cache.perTable].Store(nil)
	}
}

// crowded reports whether so much is dirty that a writer should settle.
func (n *node) crowded() bool {
	return n.cache.dirty > max(n.cache.max/2, 1) || n.refs.dirty > max(n.refs.max/2, 2) || len(n.freed) > maxFreed
}

// maxFreed bounds the list of extents that wait to be free.
const maxFreed = 4096

// entry is one L2 entry, with its bitmap where it has one.
type entry struct{ e, bitmap uint64 }

// load reads entry i of a slice. For extended entries the two words are read
// until they belong together; only a lookup without the lock can see them change.
func (n *node) load(s *l2Slice, i int64) entry {
	if !n.extended() {
		return entry{e: s.ents[i].Load()}
	}
	for {
		x := entry{s.ents[2*i].Load(), s.ents[2*i+1].Load()}
		if s.ents[2*i].Load() == x.e {
			return x
		}
	}
}

// store changes entry i. mu is held.
func (n *node) store(s *l2Slice, i int64, x entry) {
	if n.extended() {
		s.ents[2*i].Store(x.e)
		s.ents[2*i+1].Store(x.bitmap)
	} else {
		s.ents[i].Store(x.e)
	}
	n.dirtySlice(s)
}

func (n *node) dirtySlice(s *l2Slice) {
	if !s.dirty {
		s.dirty = true
		n.cache.dirty++
	}
	n.changes.Add(1)
}

// kind is what a subcluster of the disk is.
type kind uint8

const (
	absent  kind = iota // the backing file's, or zeroes
	zeroes              // reads as zeroes
	stored              // in the data file
	packed              // compressed
	invalid             // an entry that cannot be
)

// kindOf is the kind of subcluster sub in an entry, and whether the cluster has
// a place in the data file.
func (n *node) kindOf(x entry, sub uint32) (k kind, placed bool) {
	if x.e&entryCompressed != 0 {
		if n.external() {
			return invalid, false
		}
		return packed, false
	}
	placed = x.e&entryOffset != 0 || n.external() && x.e&entryCopied != 0
	switch {
	case !n.aligned(x.e & entryOffset):
		return invalid, false
	case n.extended():
		has, zero := x.bitmap>>sub&1 != 0, x.bitmap>>(32+sub)&1 != 0
		switch {
		case has && (zero || !placed):
			return invalid, placed
		case zero:
			return zeroes, placed
		case has:
			return stored, placed
		}
		return absent, placed
	case n.version >= 3 && x.e&entryZero != 0:
		return zeroes, placed
	case placed:
		return stored, true
	}
	return absent, false
}

// run is a range of the disk that is of one kind, and contiguous in the data
// file where it is stored.
type run struct {
	kind   kind
	host   int64 // of its first byte where it is stored
	n      int64
	copied bool // the cluster is the active table's alone
	entry  entry
}

// runIn is the run at off in one slice, at most most bytes long.
func (n *node) runIn(s *l2Slice, off, most int64) run {
	i, perSlice := off>>n.clusterBits&(n.cache.perSlice-1), n.cache.perSlice
	x := n.load(s, i)
	r := run{entry: x, copied: x.e&entryCopied != 0}
	sub := uint32(n.inCluster(off) >> n.subBits)
	r.kind, _ = n.kindOf(x, sub)
	at := n.inCluster(off)
	if r.kind == stored {
		r.host = int64(x.e&entryOffset) + at
	}
	for {
		r.n += n.sameKind(x, sub, r.kind, at)
		if r.n >= most || r.kind == packed || r.kind == invalid || n.inCluster(off+r.n) != 0 {
			break
		}
		if i++; i == perSlice {
			break
		}
		x, sub, at = n.load(s, i), 0, 0
		k, _ := n.kindOf(x, 0)
		if k != r.kind || k == stored && (int64(x.e&entryOffset) != r.host+r.n || x.e&entryCopied != 0 != r.copied) {
			break
		}
	}
	r.n = min(r.n, most)
	return r
}

// sameKind is how many bytes from at on, in a cluster whose subcluster sub is of
// kind k, are of that kind.
func (n *node) sameKind(x entry, sub uint32, k kind, at int64) int64 {
	if !n.extended() || k == packed || k == invalid {
		return n.clusterSize() - at
	}
	alloc, zero := uint32(x.bitmap), uint32(x.bitmap>>32)
	var other uint32 // subclusters of another kind
	switch k {
	case stored:
		other = ^alloc
	case zeroes:
		other = ^zero
	default:
		other = alloc | zero
	}
	next := uint32(bits.TrailingZeros32(other &^ (1<<sub - 1)))
	return int64(next)<<n.subBits - at
}

// lookup is the run at off, at most most bytes. mu is held.
func (n *node) lookup(rq *block.Req, off, most int64) (run, *l2Slice, error) {
	s, err := n.slice(rq, off)
	if err != nil {
		return run{}, nil, err
	}
	r := n.runIn(s, off, most)
	if r.kind == invalid {
		return r, s, n.corrupt(rq, "the L2 entry of guest offset %d is %#x (bitmap %#x), which no entry may be", off, r.entry.e, r.entry.bitmap)
	}
	return r, s, nil
}

// settled lookup for readers: without the lock where the slice is in memory.
func (n *node) locate(rq *block.Req, off, most int64) (run, error) {
	if s := n.find(off); s != nil {
		if r := n.runIn(s, off, most); r.kind != invalid {
			touch(s)
			return r, nil
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	r, _, err := n.lookup(rq, off, most)
	return r, err
}

// errEntry is what an entry that cannot be gives to a request.
func errEntry(format string, args ...any) error { return block.Errorf(syscall.EIO, format, args...) }
