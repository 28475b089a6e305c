package nbd

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// readv and writev never block: Go's sockets do not.

func readv(fd uintptr, iov []unix.Iovec) (int, syscall.Errno) {
	n, _, errno := unix.Syscall(unix.SYS_READV, fd, uintptr(unsafe.Pointer(&iov[0])), uintptr(len(iov)))
	return int(n), errno
}

func writev(fd uintptr, iov []unix.Iovec) (int, syscall.Errno) {
	n, _, errno := unix.Syscall(unix.SYS_WRITEV, fd, uintptr(unsafe.Pointer(&iov[0])), uintptr(len(iov)))
	return int(n), errno
}
