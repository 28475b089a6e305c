//go:build unix

package sys

import (
	"fmt"

	"golang.org/x/sys/unix"
)

func mapAnon(n int) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("mmap of %d bytes of anonymous memory: %w (limits: ulimit -v, vm.overcommit_memory)", n, err)
	}
	return b, nil
}

// Unmap gives a mapping of MapAligned back to the system.
func Unmap(mapping []byte) error { return unix.Munmap(mapping) }
