//go:build unix && !linux

package engine

import (
	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/internal/rawio"
)

// transfer reads or writes one element.
func transfer(kind rawio.Kind, fd int, b []byte, off int64) (int, error) {
	if kind == rawio.Read {
		return unix.Pread(fd, b, off)
	}
	return unix.Pwrite(fd, b, off)
}
