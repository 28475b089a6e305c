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
