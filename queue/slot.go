package queue

import (
	"fmt"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/rawio"
	"github.com/platter-storage/platter/internal/sys"
	"github.com/platter-storage/platter/virtio"
)

// Geometry of the table.
const (
	slotStride = 384 // bytes between slots: three pairs of cache lines, so that no two share one
	headerLen  = 128 // bytes of a slot that are not elements
	nearElems  = (slotStride - headerLen) / elemLen
	elemLen    = 24
	// MaxElems is the most elements of one request: what any node takes.
	MaxElems = block.MaxElements
	// maxSlabs is how many requests with more than nearElems elements may be
	// in flight in one queue. Their memory is backed only once it is used.
	maxSlabs = 64
)

// noSlab is slot.slab of a request whose elements are in its slot.
const noSlab = -1

// slot is the off-heap part of a request in flight: numbers and addresses of
// guest memory, nothing that the collector would have to see. Nothing in it is
// cleared between requests, so each field has a class: init fields are set
// when the table is made and kept by take and free; the others are set before
// they are read, by the parser (parse) or by what ends the request (complete).
// A test holds the classes against the fields.
type slot struct {
	gen  uint32 `class:"init"` // odd while the slot is taken
	next int32  `class:"init"` // of the free list

	chain virtio.Handle `class:"parse"` // to give it back with
	elems uint32        `class:"parse"` // elements of data, or ranges of a discard
	slab  int32         `class:"parse"` // where they are, noSlab: in the slot
	off   int64         `class:"parse"` // bytes
	n     int64         `class:"parse"` // bytes of data
	start int64         `class:"parse"` // when it was taken, in nanoseconds
	room  int64         `class:"parse"` // bytes that the guest has room for before the status
	reply elem          `class:"parse"` // the status byte, in guest memory
	fl    uint32        `class:"parse"` // block.Flags
	op    uint8         `class:"parse"` // block.Op
	kind  uint8         `class:"parse"` // what is asked for
	lane  uint8         `class:"parse"` // who has it

	status  uint8  `class:"complete"` // virtio-blk status
	written uint32 `class:"complete"` // bytes that the used entry tells of
}

// elem is a slice's memory, kept as numbers: storing it takes no write barrier,
// and what an old one points to may be gone. A range of a discard or write
// zeroes is kept in one as well: offset, length, flags.
type elem struct{ addr, len, cap uintptr }

// refs is the part of a slot that the collector must see.
type refs struct {
	rq  *block.Req // the slot's own, for all its requests
	io  rawio.IO
	err error
}

// table has the slots of a queue. It belongs to the queue's loop; workers
// touch the slots that they were given.
type table struct {
	mapping []byte
	slots   []byte // depth slots of slotStride
	slabs   []byte
	refs    []refs
	free    int32 // first free slot, -1: none
	used    int

	freeSlabs []int32
}

// slabLen is the length of a slab in bytes.
const slabLen = MaxElems * elemLen

func (t *table) init(depth int) error {
	slabs := min(depth, maxSlabs)
	mem, mapping, err := sys.MapAligned(depth*slotStride+slabs*slabLen, sys.PageSize())
	if err != nil {
		return fmt.Errorf("memory for %d requests: %w", depth, err)
	}
	t.mapping, t.slots, t.slabs = mapping, mem[:depth*slotStride], mem[depth*slotStride:]
	t.refs = make([]refs, depth)
	t.free = -1
	for i := depth - 1; i >= 0; i-- {
		s := t.at(i)
		s.gen, s.next = 0, t.free
		t.free = int32(i)
		t.refs[i].io.Owner = uint64(i)
	}
	t.freeSlabs = make([]int32, slabs)
	for i := range t.freeSlabs {
		t.freeSlabs[i] = int32(slabs - 1 - i)
	}
	return nil
}

func (t *table) close() {
	if t.mapping != nil {
		_ = sys.Unmap(t.mapping) // our own mapping, whole: it cannot fail
		t.mapping, t.slots, t.slabs = nil, nil, nil
	}
}

func (t *table) depth() int { return len(t.refs) }

// take gives a free slot, nil where all are in use. Nothing in it is fit to be
// read but the init fields.
func (t *table) take() (int, *slot) {
	if t.free < 0 {
		return -1, nil
	}
	i := int(t.free)
	s := t.at(i)
	if s.gen&1 != 0 {
		panic("queue: a slot in use was on the free list")
	}
	t.free = s.next
	s.gen++
	t.used++
	return i, s
}

// put frees a slot, and its slab.
func (t *table) put(i int) {
	s := t.at(i)
	if s.gen&1 == 0 {
		panic("queue: a slot was freed twice")
	}
	if s.slab != noSlab {
		t.freeSlabs = append(t.freeSlabs, s.slab)
	}
	s.gen++
	s.next = t.free
	t.free = int32(i)
	t.used--
}

// store keeps a copy of v in slot i; false where it needs a slab and none is
// free. len(v) is at most MaxElems.
func (t *table) store(i int, v [][]byte) bool {
	s := t.at(i)
	dst, ok := t.room(i, s, len(v))
	if !ok {
		return false
	}
	for k, b := range v {
		dst[k] = elemOf(b)
	}
	s.elems = uint32(len(v))
	return true
}

// room finds memory for n elements of slot i.
func (t *table) room(i int, s *slot, n int) ([]elem, bool) {
	s.slab = noSlab
	if n <= nearElems {
		return t.near(i)[:n], true
	}
	last := len(t.freeSlabs) - 1
	if last < 0 {
		return nil, false
	}
	s.slab = t.freeSlabs[last]
	t.freeSlabs = t.freeSlabs[:last]
	return t.slabAt(s.slab)[:n], true
}

// elemsOf are the elements of slot i.
func (t *table) elemsOf(i int) []elem {
	s := t.at(i)
	if s.slab == noSlab {
		return t.near(i)[:s.elems]
	}
	return t.slabAt(s.slab)[:s.elems]
}

// vec is the data of slot i: slices of guest memory, which lie in the table.
func (t *table) vec(i int) block.Vec { return asVec(t.elemsOf(i)) }
