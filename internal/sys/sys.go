// Package sys wraps the few calls to the operating system that several
// packages need and golang.org/x/sys does not offer in the shape they need:
// anonymous memory outside the Go heap and the alignment limits of direct I/O.
package sys

import "os"

// HugePage is the size and alignment that transparent huge pages ask of a
// mapping on amd64 and on arm64 with 4 KiB pages. Other page sizes lose only
// address space by it.
const HugePage = 2 << 20

// PageSize is the size of a page of memory in bytes.
func PageSize() int { return os.Getpagesize() }

// Touch writes one byte of every page of b, so that each page is real memory
// of its own and no longer the shared page of zeroes. Only for memory that
// nobody else uses yet: the byte written is zero.
func Touch(b []byte) {
	page := PageSize()
	for i := 0; i < len(b); i += page {
		b[i] = 0
	}
}

// MapAligned returns n bytes of zeroed memory whose address is a multiple of
// align (a power of two), and the mapping to hand to Unmap in the end. The
// memory is outside the Go heap where the system has mmap, and not backed by
// pages until it is touched.
func MapAligned(n, align int) (b, mapping []byte, err error) {
	mapping, err = mapAnon(n + align)
	if err != nil {
		return nil, nil, err
	}
	skip := int(-Addr(mapping) & uintptr(align-1))
	return mapping[skip : skip+n : skip+n], mapping, nil
}
