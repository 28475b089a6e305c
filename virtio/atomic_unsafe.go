package virtio

import (
	"sync/atomic"
	"unsafe"
)

// Both sides of a ring see the same memory at once. The fields that the
// specification orders are loaded and stored atomically: an aligned word of 32
// bits at a time, because Go has no atomic of 16. Atomic stores are full
// barriers against later atomic loads, in Go as on the processors.
//
// All of it is little-endian (VIRTIO_F_VERSION_1), and so are the machines that
// Platter runs on.

// word is the 32 bits at the beginning of b, which must be aligned to 4.
func word(b []byte) *uint32 {
	return (*uint32)(unsafe.Pointer(unsafe.SliceData(b[:4]))) // bounds are checked, nothing is read
}

// A half is a field of 16 bits that shares its word with another.
type half struct {
	word  *uint32
	shift uint8
}

// halfAt is the field at b[off], whose address must be even. If it is the upper
// half of its word, the word begins two bytes before.
func halfAt(b []byte, off int) half {
	p := unsafe.Pointer(&b[off : off+2][0])
	if uintptr(p)&2 == 0 {
		return half{(*uint32)(p), 0}
	}
	return half{(*uint32)(unsafe.Add(p, -2)), 16}
}

func (h half) load() uint16 { return uint16(atomic.LoadUint32(h.word) >> h.shift) }

// store sets the field in two steps, and no other bit: the neighbour may be
// somebody else's. Who reads in between reads 0, which is why this is for event
// indexes only: whoever stores one looks again for what it may have missed.
func (h half) store(v uint16) {
	atomic.AndUint32(h.word, ^(uint32(0xffff) << h.shift))
	atomic.OrUint32(h.word, uint32(v)<<h.shift)
}

// swap sets the field in one step. For fields whose word is all the caller's.
func (h half) swap(v uint16) {
	other := atomic.LoadUint32(h.word) &^ (uint32(0xffff) << h.shift)
	atomic.StoreUint32(h.word, other|uint32(v)<<h.shift)
}

// aligned tells whether the first byte of b lies at a multiple of n.
func aligned(b []byte, n uintptr) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))%n == 0
}

// offsetIn is where in mem the slice part lies, if it does.
func offsetIn(mem, part []byte) (uint64, bool) {
	off := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(part))) - uintptr(unsafe.Pointer(unsafe.SliceData(mem))))
	return off, off < uint64(len(mem)) && uint64(len(part)) <= uint64(len(mem))-off
}
