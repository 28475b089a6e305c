package file

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// The calls behind system, one kernel call each.

func (f *linuxFile) sync() error { return f.moves.sync() }

func (f *linuxFile) zeroRange(off, n int64) error {
	if f.dev {
		return blkRange(f.fd, unix.BLKZEROOUT, off, n)
	}
	return unix.Fallocate(f.fd, unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_KEEP_SIZE, off, n)
}

// punch on a device fails where the device does not zero by itself.
func (f *linuxFile) punch(off, n int64) error {
	return unix.Fallocate(f.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
}

func (f *linuxFile) discard(off, n int64) error {
	if f.dev {
		return blkRange(f.fd, unix.BLKDISCARD, off, n)
	}
	return f.punch(off, n)
}

func (f *linuxFile) seek(off int64, hole bool) (int64, error) {
	whence := unix.SEEK_DATA
	if hole {
		whence = unix.SEEK_HOLE
	}
	return unix.Seek(f.fd, off, whence)
}

func (f *linuxFile) setSize(n int64) error {
	if n < 0 {
		return syscall.EINVAL
	}
	return ignoringEINTR(func() error { return unix.Ftruncate(f.fd, n) })
}

func (f *linuxFile) allocate(off, n int64) error {
	// Some file systems find out that there is not enough by taking all there
	// is, which starves everybody else meanwhile.
	var st unix.Statfs_t
	if unix.Fstatfs(f.fd, &st) == nil && n/max(st.Bsize, 1) > int64(st.Bfree) {
		return unix.ENOSPC
	}
	return ignoringEINTR(func() error { return unix.Fallocate(f.fd, 0, off, n) })
}
