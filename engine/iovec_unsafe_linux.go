package engine

import "unsafe"

// iovec is struct iovec, with the address as an integer: it lies in memory
// that the collector does not look at.
type iovec struct{ base, len uintptr }

const iovecSize = int(unsafe.Sizeof(iovec{}))

// iovecsOf sees off-heap memory as iovecs.
func iovecsOf(mem []byte) []iovec {
	return unsafe.Slice((*iovec)(unsafe.Pointer(unsafe.SliceData(mem))), len(mem)/iovecSize)
}

func addrOfIovecs(v []iovec) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(v))) }
