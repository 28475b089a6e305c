package engine

import "golang.org/x/sys/unix"

// datasync has the drive write its cache out, which fsync does not do here.
// File systems that cannot are asked for an fsync.
func datasync(fd int) error {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_FULLFSYNC, 0); err == nil {
		return nil
	}
	return unix.Fsync(fd)
}
