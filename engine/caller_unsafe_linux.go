package engine

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The raw calls return a count, or an errno below 0.

func rawTransfer(trap uintptr, fd int, b []byte, off int64) int {
	n, _, errno := syscall.Syscall6(trap, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), uintptr(off), 0, 0)
	return result(n, errno)
}

func rawVectored(trap uintptr, fd int, iov []iovec, off int64, flags uintptr) int {
	n, _, errno := syscall.Syscall6(trap, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(iov))), uintptr(len(iov)),
		uintptr(off), uintptr(off>>32), flags)
	return result(n, errno)
}

// rawNow is rawVectored for calls that do not wait. The scheduler is not told:
// that costs more than the copy, and where everything else is idle wakes the
// runtime's monitor, which then looks around every 20 µs.
func rawNow(trap uintptr, fd int, iov []iovec, off int64, flags uintptr) int {
	n, _, errno := syscall.RawSyscall6(trap, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(iov))), uintptr(len(iov)),
		uintptr(off), uintptr(off>>32), flags)
	return result(n, errno)
}

func rawFdatasync(fd int) int {
	n, _, errno := syscall.Syscall(unix.SYS_FDATASYNC, uintptr(fd), 0, 0)
	return result(n, errno)
}

func result(n uintptr, errno syscall.Errno) int {
	if errno != 0 {
		return -int(errno)
	}
	return int(n)
}
