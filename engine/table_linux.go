package engine

import (
	"github.com/platter-storage/platter/internal/rawio"
	"github.com/platter-storage/platter/internal/sys"
)

const (
	smallVec = 8 // elements that a slot has room for in its near array
	genMask  = 1<<31 - 1
)

// table has the slots of a queue's requests. Go references are in ios, for
// the collector to see while the kernel has the memory; what the kernel reads
// is in the iovec arrays, off the heap, in integers only.
type table struct {
	ios   []*rawio.IO
	gen   []uint32 // odd while the slot is busy; part of the completion's tag
	free  []uint32
	iov   iovecs
	stale uint64
}

func (t *table) init(depth int) error {
	t.ios = make([]*rawio.IO, depth)
	t.gen = make([]uint32, depth)
	t.free = make([]uint32, depth)
	for i := range t.free {
		t.free[i] = uint32(depth - 1 - i)
	}
	return t.iov.init(depth)
}

// take gives io a slot and the tag that its completion must carry.
func (t *table) take(io *rawio.IO) (slot uint32, tag uint64, ok bool) {
	last := len(t.free) - 1
	if last < 0 {
		return 0, 0, false
	}
	begin(io)
	slot = t.free[last]
	t.free = t.free[:last]
	t.gen[slot]++
	t.ios[slot] = io
	return slot, uint64(t.gen[slot]&genMask)<<32 | uint64(slot), true
}

// drop frees a slot and returns the request that was in it.
func (t *table) drop(slot uint32) *rawio.IO {
	io := t.ios[slot]
	t.ios[slot] = nil
	t.gen[slot]++
	t.free = append(t.free, slot)
	return io
}

// end finds the request of a completion and frees its slot: nil for a tag
// that belongs to none in flight, or to none any more.
func (t *table) end(tag uint64) *rawio.IO {
	slot := uint32(tag)
	if int(slot) >= len(t.gen) || t.gen[slot]&1 == 0 || uint64(t.gen[slot]&genMask) != tag>>32 {
		t.stale++
		return nil
	}
	return t.drop(slot)
}

func (t *table) busy() int { return len(t.ios) - len(t.free) }

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

func (v *iovecs) close() {
	if v.mapping != nil {
		_ = sys.Unmap(v.mapping) // our own mapping, whole: it cannot fail
		v.mapping = nil
	}
}
