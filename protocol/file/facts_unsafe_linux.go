package file

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// dioattr is struct dioattr of the XFS ioctl interface.
type dioattr struct{ mem, minIO, maxIO uint32 }

// xfsDioInfo is XFS_IOC_DIOINFO, _IOR('X', 30, struct dioattr).
const xfsDioInfo = 2<<30 | uint(unsafe.Sizeof(dioattr{}))<<16 | 'X'<<8 | 30

func xfsDirect(fd int) (dioattr, error) {
	var d dioattr
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(xfsDioInfo), uintptr(unsafe.Pointer(&d)))
	if errno != 0 {
		return d, errno
	}
	return d, nil
}

// cachestat(2), from Linux 6.5 on.
type cachestatRange struct{ off, len uint64 }
type cachestat struct{ cached, dirty, writeback, evicted, recentlyEvicted uint64 }

// cachedPages counts the file's pages in the page cache; known is false where
// the kernel cannot say.
func cachedPages(fd int, off, n int64) (pages uint64, known bool) {
	r := cachestatRange{uint64(off), uint64(n)}
	var c cachestat
	_, _, errno := unix.Syscall6(unix.SYS_CACHESTAT, uintptr(fd), uintptr(unsafe.Pointer(&r)), uintptr(unsafe.Pointer(&c)), 0, 0, 0)
	return c.cached, errno == 0
}

// blkRange does one of the block device ioctls that take a range.
func blkRange(fd int, req uint, off, n int64) error {
	r := [2]uint64{uint64(off), uint64(n)}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(req), uintptr(unsafe.Pointer(&r)))
	if errno != 0 {
		return errno
	}
	return nil
}

// fsxattr is struct fsxattr of linux/fs.h.
type fsxattr struct {
	flags, extentSize, extents, projectID, cowExtentSize uint32
	_                                                    [8]byte
}

const (
	fsGetXattr   = 2<<30 | uint(unsafe.Sizeof(fsxattr{}))<<16 | 'X'<<8 | 31 // FS_IOC_FSGETXATTR
	fsSetXattr   = 1<<30 | uint(unsafe.Sizeof(fsxattr{}))<<16 | 'X'<<8 | 32 // FS_IOC_FSSETXATTR
	fsExtentSize = 0x800                                                    // FS_XFLAG_EXTSIZE
)

// setExtentHint sets the size of the pieces that the file grows by.
func setExtentHint(fd int, size uint32) error {
	var x fsxattr
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(fsGetXattr), uintptr(unsafe.Pointer(&x))); errno != 0 {
		return errno
	}
	x.flags, x.extentSize = x.flags|fsExtentSize, size
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(fsSetXattr), uintptr(unsafe.Pointer(&x))); errno != 0 {
		return errno
	}
	return nil
}
