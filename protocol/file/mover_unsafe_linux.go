package file

import (
	"runtime"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/block"
)

// iovec is struct iovec, the address as an integer: whoever calls keeps the
// memory alive, and Go's heap does not move.
type iovec struct{ base, len uintptr }

// fewElements fit on the stack; more take an array from the pool.
const fewElements = 8

var iovecArrays = sync.Pool{New: func() any { return new([block.MaxElements]iovec) }}

func preadv(fd int, v block.Vec, off int64) (int, error) {
	return transfer(unix.SYS_PREADV2, fd, v, off, 0)
}

func pwritev(fd int, v block.Vec, off int64, flags int) (int, error) {
	return transfer(unix.SYS_PWRITEV2, fd, v, off, flags)
}

func transfer(trap uintptr, fd int, v block.Vec, off int64, flags int) (int, error) {
	if len(v) <= fewElements {
		var few [fewElements]iovec
		return transferBy(few[:], trap, fd, v, off, flags)
	}
	if len(v) > block.MaxElements {
		return 0, syscall.EINVAL
	}
	many := iovecArrays.Get().(*[block.MaxElements]iovec)
	n, err := transferBy(many[:], trap, fd, v, off, flags)
	iovecArrays.Put(many)
	return n, err
}

func transferBy(iov []iovec, trap uintptr, fd int, v block.Vec, off int64, flags int) (int, error) {
	for i, e := range v {
		iov[i] = iovec{uintptr(unsafe.Pointer(unsafe.SliceData(e))), uintptr(len(e))}
	}
	n, _, errno := syscall.Syscall6(trap, uintptr(fd), uintptr(unsafe.Pointer(&iov[0])), uintptr(len(v)), uintptr(off), uintptr(off>>32), uintptr(flags))
	runtime.KeepAlive(v)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
