package file

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/block"
)

// createSystem makes the file, or opens it where it is there and may be
// overwritten. fresh: it was not there before. warning: a wish that the file
// system does not grant.
func createSystem(c *creation) (s system, fresh bool, warning string, err error) {
	if _, err := os.Lstat(c.path); err != nil && belowDev(c.path) {
		return nil, false, "", block.Errorf(syscall.EINVAL, "%s: is not made: a regular file below /dev would be in memory and hide that the device is missing; attach the device, or choose a path on a file system", c.path)
	}
	fd, err := openRetry(c.path, unix.O_CLOEXEC|unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, createMode)
	switch {
	case err == nil:
		f := &linuxFile{linuxFacts: linuxFacts{fd: fd}, path: c.path, cachedFd: -1, moves: plainMover(fd, 0)}
		f.tail = f.moves
		return f, true, f.hints(c), nil
	case errors.Is(err, unix.EEXIST) && c.overwrite:
		f, err := openSystem(&c.config, false)
		if err != nil {
			return nil, false, "", err
		}
		return f, false, "", nil
	case errors.Is(err, unix.EEXIST):
		return nil, false, "", block.Errorf(syscall.EEXIST, "%s: is there already; choose another name, or say that it is to be overwritten (overwrite=on)", c.path)
	}
	return nil, false, "", createError(c, err)
}

// createError says in one line why a file could not be made.
func createError(c *creation, err error) error {
	errno, why := block.Errno(err), ""
	dir := filepath.Dir(c.path)
	fi, statErr := os.Stat(dir)
	switch {
	case errors.Is(statErr, os.ErrNotExist):
		why = fmt.Sprintf("the folder %s does not exist: make it (mkdir -p), or check the path", dir)
	case (errno == unix.EACCES || errno == unix.EPERM) && statErr == nil:
		why = fmt.Sprintf("the folder %s may not be written by us (mode %v, owner %s, and we are user %d): change its mode or owner, or choose another place", dir, fi.Mode().Perm(), ownerText(fi), os.Geteuid())
	case errno == unix.EROFS:
		why = "the file system is mounted read-only: choose another place, or remount it writable"
	case errno == unix.ENOSPC || errno == unix.EDQUOT:
		why = "the file system has no room for one more file, or the user's quota is used up: remove some"
	default:
		why = whyNot(&c.config, errno)
	}
	return block.Errorf(errno, "%s: cannot be created: %s", c.path, why)
}

// freeSpace is what the file system at path has for us, in bytes; -1 unknown.
func freeSpace(path string) int64 {
	var st unix.Statfs_t
	if unix.Statfs(filepath.Dir(path), &st) != nil {
		return -1
	}
	return int64(st.Bavail) * st.Bsize
}

// nocowFlag is FS_NOCOW_FL.
const nocowFlag = 0x00800000

// createMode is cut by the umask.
const createMode = 0o644

// hints tells the file system what is wished, which must happen while the file
// is empty. Without them the file works as well: they are for speed.
func (f *linuxFile) hints(c *creation) (warning string) {
	if c.nocow {
		if err := addFlag(f.fd, nocowFlag); err != nil {
			warning = fmt.Sprintf("%s: nocow=on has no effect: %v (it is for btrfs)", c.path, err)
		}
	}
	if c.extentHint > 0 {
		_ = setExtentHint(f.fd, uint32(min(c.extentHint, 1<<30))) // XFS only, and silently so: it is a default
	}
	return warning
}

// addFlag sets one inode flag.
func addFlag(fd int, flag uint32) error {
	old, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
	if err != nil {
		return err
	}
	return unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, int(old|flag))
}

func removeFile(path string) { _ = os.Remove(path) }
