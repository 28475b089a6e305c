package queue

import "unsafe"

// bytesOf is the memory of words, aligned as they are.
func bytesOf(w []uint64) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(w))), 8*len(w))
}
