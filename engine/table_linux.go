package engine

import (
	"sync/atomic"

	"github.com/platter-storage/platter/internal/rawio"
	"github.com/platter-storage/platter/internal/sys"
)

const (
	smallVec = 8 // elements that a slot has room for in its near array
	genMask  = 1<<31 - 1
)

// table has the slots of a ring's requests. It has two sides which may run at
// the same time: the submitter takes slots and drops those the kernel refused,
// the reaper ends those the kernel completed and gives the slots back through
// a ring of indices.
//
// Go references are in ios, for the collector to see while the kernel has the
// memory; what the kernel reads is in the iovec arrays, off the heap, in
// integers only.
type table struct {
	ios  []*rawio.IO
	gen  []uint32 // odd while the slot is busy; part of the completion's tag
	free []uint32 // the submitter's

	freed     []uint32 // from reaper to submitter
	freedMask uint32
	freedHead uint32        // the submitter's
	freedTail atomic.Uint32 // the reaper's, published once a batch
	reaped    uint32        // the reaper's, ahead of freedTail within a batch

	// submitted is written before each submission and read by the reaper:
	// the order that the kernel gives, in words of Go's memory model.
	submitted atomic.Uint32

	iov   iovecs
	stale atomic.Uint64
}

func (t *table) init(depth int) error {
	t.ios = make([]*rawio.IO, depth)
	t.gen = make([]uint32, depth)
	t.free = make([]uint32, depth)
	for i := range t.free {
		t.free[i] = uint32(depth - 1 - i)
	}
	ring := 1
	for ring < depth {
		ring *= 2
	}
	t.freed, t.freedMask = make([]uint32, ring), uint32(ring-1)
	return t.iov.init(depth)
}

// take gives io a slot and the tag that its completion must carry.
func (t *table) take(io *rawio.IO) (slot uint32, tag uint64, ok bool) {
	if len(t.free) == 0 && !t.refill() {
		return 0, 0, false
	}
	begin(io)
	last := len(t.free) - 1
	slot = t.free[last]
	t.free = t.free[:last]
	t.gen[slot]++
	t.ios[slot] = io
	return slot, uint64(t.gen[slot]&genMask)<<32 | uint64(slot), true
}

// refill takes over the slots that the reaper has freed.
func (t *table) refill() bool {
	tail := t.freedTail.Load()
	for ; t.freedHead != tail; t.freedHead++ {
		t.free = append(t.free, t.freed[t.freedHead&t.freedMask])
	}
	return len(t.free) > 0
}

// drop takes back the slot of a request that never reached the kernel. For
// the submitter.
func (t *table) drop(slot uint32) *rawio.IO {
	io := t.ios[slot]
	t.ios[slot] = nil
	t.gen[slot]++
	t.free = append(t.free, slot)
	return io
}

// end finds the request of a completion and frees its slot: nil for a tag
// that belongs to none in flight, or to none any more. For the reaper, which
// calls flush at the end of its batch.
func (t *table) end(tag uint64) *rawio.IO {
	slot := uint32(tag)
	if int(slot) >= len(t.gen) || t.gen[slot]&1 == 0 || uint64(t.gen[slot]&genMask) != tag>>32 {
		t.stale.Add(1)
		return nil
	}
	io := t.ios[slot]
	t.ios[slot] = nil
	t.gen[slot]++
	t.freed[t.reaped&t.freedMask] = slot
	t.reaped++
	return io
}

func (t *table) flush() { t.freedTail.Store(t.reaped) }

// busy is the number of slots taken. For the submitter.
func (t *table) busy() int {
	t.refill()
	return len(t.ios) - len(t.free)
}

// iovecs is off-heap memory for the element lists of all slots: a near array
// of smallVec each, and a far one of MaxVec each, of which only what is used
// is ever backed by memory.
type iovecs struct {
	mapping []byte
	small   []iovec
	big     []iovec
}

func (v *iovecs) init(depth int) error {
	n := depth * (smallVec + MaxVec) * iovecSize
	mem, mapping, err := sys.MapAligned(n, sys.PageSize())
	if err != nil {
		return err
	}
	all := iovecsOf(mem)
	v.mapping, v.small, v.big = mapping, all[:depth*smallVec], all[depth*smallVec:]
	return nil
}

// fill writes vec's elements into slot's array; len(vec) is at most MaxVec.
func (v *iovecs) fill(slot uint32, vec [][]byte) (addr uintptr) {
	dst := v.small[slot*smallVec:]
	if len(vec) > smallVec {
		dst = v.big[slot*MaxVec:]
	}
	dst = dst[:len(vec):cap(dst)]
	for i, b := range vec {
		dst[i] = iovec{base: sys.Addr(b), len: uintptr(len(b))}
	}
	return addrOfIovecs(dst)
}

func (v *iovecs) close() error { return sys.Unmap(v.mapping) }
