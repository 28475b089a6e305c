//go:build unix

package mem

import "golang.org/x/sys/unix"

// mapMemory maps n bytes of zeroes, of which nothing is backed yet.
func mapMemory(n int) ([]byte, error) {
	return unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|noReserve)
}

func unmapMemory(m []byte) error { return unix.Munmap(m) }
