package queue

import (
	"math/rand/v2"
	"sync/atomic"
	"unsafe"
)

// bytesOf is the memory of words, aligned as they are.
func bytesOf(w []uint64) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(w))), 8*len(w))
}

// words are memory as 32-bit words, for writing while others read.
type words []uint32

func wordsOf(b []byte) words {
	return unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

func (w words) spoil(rng *rand.Rand) {
	v := rng.Uint32()
	if rng.IntN(2) == 0 {
		v &= 0xff
	}
	atomic.StoreUint32(&w[rng.IntN(len(w))], v)
}

// flood offers chain 0 of a split ring again and again, and never looks at what
// was used, until end is closed.
func flood(driver []byte, size int, end <-chan struct{}) {
	w := wordsOf(driver[:len(driver)&^3])
	for i := 1; i <= size/2; i++ {
		atomic.StoreUint32(&w[i], 0)
	}
	for idx := uint32(1); ; idx++ {
		atomic.StoreUint32(&w[0], idx<<16)
		if idx%8 == 0 {
			select {
			case <-end:
				return
			default:
			}
		}
	}
}
