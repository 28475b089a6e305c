package file

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/engine"
)

// linuxFile is an open file with the descriptors that the node uses.
type linuxFile struct {
	linuxFacts
	path string
	dev  bool
	// cachedFd is a second descriptor, without O_DIRECT; -1 where the first
	// has none.
	cachedFd int
	direct   bool
	moves    *mover // of fd
	tail     *mover // of cachedFd
}

// openSystem opens the file as c says, with O_DIRECT if direct is asked for.
// errNoDirect is wrapped where the file system refuses that.
func openSystem(c *config, direct bool) (system, error) {
	f, err := openLinux(c, direct)
	if err != nil {
		return nil, err // not a nil of another type
	}
	return f, nil
}

func openLinux(c *config, direct bool) (*linuxFile, error) {
	var st unix.Stat_t
	if err := unix.Stat(c.path, &st); err != nil {
		return nil, openError(c, err)
	}
	if err := wrongKind(c, st.Mode); err != nil {
		return nil, err
	}
	fd, err := openFd(c, st.Mode&unix.S_IFMT == unix.S_IFBLK, direct)
	if err != nil {
		return nil, err
	}
	f := &linuxFile{linuxFacts: linuxFacts{fd: fd}, path: c.path, cachedFd: -1, direct: direct}
	if err := f.settle(c); err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

// openFd opens without ever waiting: O_NONBLOCK is for the case that the path
// has become a FIFO meanwhile, and is cleared again by settle. A block device
// that is opened for writing is claimed, so that it cannot be mounted at the
// same time.
func openFd(c *config, dev, direct bool) (int, error) {
	flags := unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_RDWR
	if c.readOnly {
		flags = unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_RDONLY
	} else if dev && c.locking != "off" {
		flags |= unix.O_EXCL
	}
	if direct {
		flags |= unix.O_DIRECT
	}
	fd, err := openRetry(c.path, flags, 0)
	for began := time.Now(); err == unix.EBUSY && flags&unix.O_EXCL != 0 && time.Since(began) < endedWait && claimEnded(c.path); {
		time.Sleep(endedStep)
		fd, err = openRetry(c.path, flags, 0)
	}
	if err == unix.EINVAL && direct {
		return -1, fmt.Errorf("%w: opening with O_DIRECT is refused", errNoDirect)
	}
	if err != nil {
		return -1, openError(c, err)
	}
	return fd, nil
}

func openRetry(path string, flags int, mode uint32) (fd int, err error) {
	for range maxInterrupts {
		if fd, err = unix.Open(path, flags, mode); err != unix.EINTR {
			return fd, err
		}
	}
	return -1, err
}

// settle looks at what was really opened and makes the second descriptor.
func (f *linuxFile) settle(c *config) error {
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		return openError(c, err)
	}
	if err := wrongKind(c, st.Mode); err != nil {
		return err
	}
	f.dev = st.Mode&unix.S_IFMT == unix.S_IFBLK
	if fl, err := unix.FcntlInt(uintptr(f.fd), unix.F_GETFL, 0); err == nil {
		_, err = unix.FcntlInt(uintptr(f.fd), unix.F_SETFL, fl&^unix.O_NONBLOCK)
		if err != nil {
			return openError(c, err)
		}
	}
	if f.dev && !c.readOnly {
		if ro, err := unix.IoctlGetUint32(f.fd, unix.BLKROGET); err == nil && ro != 0 {
			return openError(c, syscall.EACCES)
		}
	}
	flags := engine.Registrable
	if f.direct {
		flags |= engine.Direct
	}
	f.moves = plainMover(f.fd, flags)
	if !f.direct {
		f.tail = f.moves
		return nil
	}
	return f.openCached(c)
}

// openCached opens the same file again without O_DIRECT: through /proc, so
// that it is the same file even if the path has changed; else by the path.
func (f *linuxFile) openCached(c *config) error {
	flags := unix.O_CLOEXEC | unix.O_RDWR
	if c.readOnly {
		flags = unix.O_CLOEXEC | unix.O_RDONLY
	}
	fd, err := openRetry(fmt.Sprintf("/proc/self/fd/%d", f.fd), flags, 0)
	if errors.Is(err, unix.ENOENT) {
		fd, err = openRetry(f.path, flags, 0)
	}
	if err != nil {
		return openError(c, err)
	}
	var a, b unix.Stat_t
	if unix.Fstat(f.fd, &a) != nil || unix.Fstat(fd, &b) != nil || a.Dev != b.Dev || a.Ino != b.Ino {
		unix.Close(fd)
		return block.Errorf(syscall.ESTALE, "%s: was replaced by another file while it was being opened: open it again", c.path)
	}
	_ = unix.Fadvise(fd, 0, 0, unix.FADV_RANDOM) // no reading ahead beyond the tail
	f.cachedFd, f.tail = fd, plainMover(fd, 0)
	return nil
}

func (f *linuxFile) isDevice() bool     { return f.dev }
func (f *linuxFile) main() descriptor   { return f.moves }
func (f *linuxFile) cached() descriptor { return f.tail }

func (f *linuxFile) size() (int64, error) {
	if f.dev {
		return deviceSize(f.fd)
	}
	var st unix.Stat_t
	err := unix.Fstat(f.fd, &st)
	return st.Size, err
}

// elsewhere compares devices by their numbers: their nodes come and go.
func (f *linuxFile) elsewhere() bool {
	var ours, now unix.Stat_t
	if unix.Fstat(f.fd, &ours) != nil || unix.Stat(f.path, &now) != nil {
		return false // removed, which is no other file
	}
	if f.dev {
		return now.Rdev != ours.Rdev
	}
	return now.Dev != ours.Dev || now.Ino != ours.Ino
}

// close gives everything back. Closing the first descriptor ends its locks.
func (f *linuxFile) close() error {
	f.linuxFacts.close()
	var err error
	if f.moves != nil {
		err = leaveEngine(f.moves.engine, f.moves.file)
	}
	err = errors.Join(err, unix.Close(f.fd))
	if f.cachedFd >= 0 {
		err = errors.Join(err, unix.Close(f.cachedFd))
	}
	return err
}
