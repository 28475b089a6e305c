package mem

import "golang.org/x/sys/unix"

// noReserve asks that a sparse disk may be larger than memory and swap.
const noReserve = unix.MAP_NORESERVE

// giveBack returns b, whole pages, to the system; it then reads as zeroes.
// False, for locked memory: nothing was done.
func giveBack(b []byte) bool { return unix.Madvise(b, unix.MADV_DONTNEED) == nil }

// remap makes the mapping n bytes long without a copy.
func (n *node) remap(length int) ([]byte, error) {
	return unix.Mremap(n.mem, length, unix.MREMAP_MAYMOVE)
}
