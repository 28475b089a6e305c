package bufpool

import "sync/atomic"

// What a unit of 4 KiB is: the first unit of a buffer of some class that is
// free (in the buddy), cached (in its class's stack, or on its way) or used
// (an owner's); or no first unit at all.
const (
	kindFree   = 1 << 4
	kindCached = 2 << 4
	kindUsed   = 3 << 4
	kindMask   = 3 << 4
	classMask  = 1<<4 - 1
)

func free(c uint8) uint32     { return kindFree | uint32(c) }
func cached(c uint8) uint32   { return kindCached | uint32(c) }
func used(c uint8) uint32     { return kindUsed | uint32(c) }
func isUsed(st uint32) bool   { return st&kindMask == kindUsed }
func classIn(st uint32) uint8 { return uint8(st & classMask) }

// units is the number of units in a buffer of a class.
func units(c uint8) uint32 { return 1 << (2 * c) }

const none = ^uint32(0)

// buddy is a four-way buddy allocator over units: a buffer of one class
// splits into four of the class below, and four free ones join again. Guarded
// by Pool.mu.
type buddy struct {
	state      []atomic.Uint32
	next, prev []uint32 // links of the free lists, by first unit
	first      [numClasses]uint32
	committed  int // bytes of the range that are in use at all
}

func (b *buddy) init(state []atomic.Uint32) {
	b.state = state
	b.next = make([]uint32, len(state))
	b.prev = make([]uint32, len(state))
	for c := range b.first {
		b.first[c] = none
	}
}

// extend adds the range up to byte to, in buffers of the largest class.
func (b *buddy) extend(to int) {
	for ; b.committed < to; b.committed += MaxBuf {
		b.push(numClasses-1, uint32(b.committed>>unitShift))
	}
}

func (b *buddy) push(c uint8, u uint32) {
	b.state[u].Store(free(c))
	b.prev[u], b.next[u] = none, b.first[c]
	if b.first[c] != none {
		b.prev[b.first[c]] = u
	}
	b.first[c] = u
}

func (b *buddy) remove(c uint8, u uint32) {
	b.state[u].Store(0)
	if b.prev[u] == none {
		b.first[c] = b.next[u]
	} else {
		b.next[b.prev[u]] = b.next[u]
	}
	if b.next[u] != none {
		b.prev[b.next[u]] = b.prev[u]
	}
}

// alloc takes a buffer of class c, splitting a larger one if need be.
func (b *buddy) alloc(c uint8) (uint32, bool) {
	k := c
	for k < numClasses && b.first[k] == none {
		k++
	}
	if k == numClasses {
		return 0, false
	}
	u := b.first[k]
	b.remove(k, u)
	for k > c {
		k--
		for i := uint32(3); i > 0; i-- {
			b.push(k, u+i*units(k))
		}
	}
	return u, true
}

// release gives a buffer back and joins it with its neighbours.
func (b *buddy) release(c uint8, u uint32) {
	for c < numClasses-1 {
		start := u &^ (units(c+1) - 1)
		if !b.siblingsFree(c, start, u) {
			break
		}
		b.state[u].Store(0)
		for s := start; s < start+units(c+1); s += units(c) {
			if s != u {
				b.remove(c, s)
			}
		}
		u, c = start, c+1
	}
	b.push(c, u)
}

// siblingsFree says whether the other three of the four from start are free.
func (b *buddy) siblingsFree(c uint8, start, u uint32) bool {
	for s := start; s < start+units(c+1); s += units(c) {
		if s != u && b.state[s].Load() != free(c) {
			return false
		}
	}
	return true
}
