package sys

import "unsafe"

// Addr is the address of the first byte of b's array, also when b is empty.
func Addr(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
