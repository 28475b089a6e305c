package engine

import (
	"syscall"

	"github.com/platter-storage/platter/internal/rawio"
)

// transfer reads or writes one element. End of file is a count of 0.
func transfer(kind rawio.Kind, fd int, b []byte, off int64) (int, error) {
	at := syscall.Overlapped{Offset: uint32(off), OffsetHigh: uint32(off >> 32)}
	var n uint32
	var err error
	if kind == rawio.Read {
		err = syscall.ReadFile(syscall.Handle(fd), b, &n, &at)
	} else {
		err = syscall.WriteFile(syscall.Handle(fd), b, &n, &at)
	}
	if err == syscall.ERROR_HANDLE_EOF {
		err = nil
	}
	return int(n), err
}

func datasync(fd int) error { return syscall.FlushFileBuffers(syscall.Handle(fd)) }
