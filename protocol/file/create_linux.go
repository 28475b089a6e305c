package file

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/block"
)

// createSystem makes the file, or opens it where it is there and may be
// overwritten. fresh: it was not there before. warning: a wish that the file
// system does not grant.
func createSystem(c *creation) (s system, fresh bool, warning string, err error) {
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
	return nil, false, "", openError(&c.config, err)
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
