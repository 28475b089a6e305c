package file

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/block"
)

// Locks are those of QEMU, so that each keeps out the other: shared locks of
// an open file description (they outlive fork and do not end with the close of
// another descriptor) on single bytes of the file, which need not exist. Byte
// 100+i: the holder uses permission i. Byte 200+i: he lets nobody else use it.
// i counts the permissions in the order of block.Perm. Whoever has taken his
// bytes then looks for the opposite ones: of two that begin at the same time at
// least one sees the other.
const (
	lockUses    = 100
	lockRefuses = 200
)

// lockedPerms are what an opener uses and what he lets others use.
func lockedPerms(readOnly bool) (uses, shares block.Perm) {
	if readOnly {
		return block.PermRead, block.PermRead | block.PermWriteUnchanged
	}
	return block.PermRead | block.PermWrite | block.PermResize, block.PermRead | block.PermWriteUnchanged
}

// conflict is a lock of somebody else that is in the way.
type conflict struct {
	perm block.Perm
	// refused: he does not let others use perm; otherwise he uses it.
	refused bool
	pid     int // where the kernel says, else 0
}

// lockFile takes the locks that c wants. locked is false, with the reason,
// where there are none.
func (f *linuxFile) lockFile(c *config) (locked bool, reason string, err error) {
	if c.locking == "off" {
		return false, "not locked: locking=off", nil
	}
	uses, shares := lockedPerms(c.readOnly)
	found, err := takeLocks(f.fd, uses, shares)
	if err == nil && found != nil && holderEnded(f.fd, found.pid) {
		found, err = f.awaitEnded(c, uses, shares)
	}
	switch {
	case err != nil && c.locking == "auto" && lockingMissing(err):
		return false, fmt.Sprintf("not locked: the file system has no locks (%v); keep other programs away from it", err), nil
	case err != nil && lockingMissing(err):
		return false, "", block.Errorf(block.Errno(err), "%s: locking=on: the file system has no locks (%v): use --locking off (option locking=off), and keep other programs away from it", c.path, err)
	case err != nil:
		return false, "", fmt.Errorf("%s: cannot be locked: %w; --locking off (option locking=off) does without", c.path, err)
	case found != nil:
		return false, "", f.inUse(c, found)
	}
	return true, "locked against other programs", nil
}

// takeLocks sets the bytes and looks for the opposite ones. Where there is one
// all are given up again.
func takeLocks(fd int, uses, shares block.Perm) (*conflict, error) {
	for _, b := range lockBytes(uses, ^shares&block.PermAll) {
		if err := setLock(fd, b, unix.F_RDLCK); err != nil {
			dropLocks(fd)
			if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
				return &conflict{perm: block.PermRead, refused: true}, nil
			}
			return nil, err
		}
	}
	found, err := findConflict(fd, uses, shares)
	if found != nil || err != nil {
		dropLocks(fd)
	}
	return found, err
}

// A program that was killed may be gone while the kernel still finishes its
// requests: its locks go with the last of them. endedWait bounds how long an
// opener waits for that, and endedStep is how often he looks.
const (
	endedWait = 10 * time.Second
	endedStep = 5 * time.Millisecond
)

// holderEnded reports whether locks are in the way that no process holds any
// more, as far as all processes can be seen.
func holderEnded(fd, known int) bool {
	names, hidden := lockHolders(fd, known)
	return len(names) == 0 && hidden == 0
}

// claimEnded reports whether a device is claimed that nobody has open or
// mounted any more: the kernel is not yet done with a program that was killed.
func claimEnded(path string) bool {
	uses, names, hidden := deviceUses(path)
	return len(uses) == 0 && len(names) == 0 && hidden == 0
}

// awaitEnded takes the locks once the kernel is done with the requests of a
// program that has ended. So no late write of its comes after one of ours.
func (f *linuxFile) awaitEnded(c *config, uses, shares block.Perm) (found *conflict, err error) {
	began := time.Now()
	for {
		found, err = takeLocks(f.fd, uses, shares)
		if err != nil || found == nil || time.Since(began) > endedWait || !holderEnded(f.fd, found.pid) {
			break
		}
		time.Sleep(endedStep)
	}
	if c.log != nil && err == nil && found == nil {
		c.log.Info("waited until the kernel had finished the requests of a program that ended", "file", c.path, "waited", time.Since(began).Round(time.Millisecond))
	}
	return found, err
}

// lockBytes are the bytes for permissions used, and refused to others.
func lockBytes(uses, refuses block.Perm) []int64 {
	var bytes []int64
	for i := range int64(numPerms) {
		if uses&(1<<i) != 0 {
			bytes = append(bytes, lockUses+i)
		}
		if refuses&(1<<i) != 0 {
			bytes = append(bytes, lockRefuses+i)
		}
	}
	return bytes
}

const numPerms = 4

// findConflict looks whether somebody refuses what we use, or uses what we
// refuse.
func findConflict(fd int, uses, shares block.Perm) (*conflict, error) {
	for i := range int64(numPerms) {
		p := block.Perm(1 << i)
		if uses&p != 0 {
			if held, pid, err := testLock(fd, lockRefuses+i); held || err != nil {
				return &conflict{p, true, pid}, err
			}
		}
		if shares&p == 0 {
			if held, pid, err := testLock(fd, lockUses+i); held || err != nil {
				return &conflict{p, false, pid}, err
			}
		}
	}
	return nil, nil
}

func setLock(fd int, at int64, kind int16) error {
	return ignoringEINTR(func() error {
		return unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &unix.Flock_t{Type: kind, Start: at, Len: 1})
	})
}

func testLock(fd int, at int64) (held bool, pid int, err error) {
	l := unix.Flock_t{Type: unix.F_WRLCK, Start: at, Len: 1}
	err = ignoringEINTR(func() error { return unix.FcntlFlock(uintptr(fd), unix.F_OFD_GETLK, &l) })
	return err == nil && l.Type != unix.F_UNLCK, max(int(l.Pid), 0), err
}

func dropLocks(fd int) {
	_ = unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_UNLCK, Start: lockUses, Len: lockRefuses + numPerms - lockUses})
}

// lockingMissing reports whether an error says that there is no locking here.
func lockingMissing(err error) bool {
	switch block.Errno(err) {
	case syscall.EINVAL, syscall.ENOSYS, syscall.EOPNOTSUPP, syscall.ENOLCK, syscall.ENOTTY:
		return true
	}
	return false
}

// inUse says who is in the way, and what can be done about it.
func (f *linuxFile) inUse(c *config, found *conflict) error {
	what := fmt.Sprintf("uses it to %s", found.perm)
	if found.refused {
		what = fmt.Sprintf("does not let others %s it", found.perm)
	}
	advice := "stop that program first"
	if !c.readOnly && f.couldRead() {
		advice += ", or open it read-only (--read-only)"
	} else if c.readOnly {
		advice += " (what is read while it writes is a mixture of old and new)"
	}
	return block.Errorf(syscall.EAGAIN, "%s: is in use: %s %s; %s; --locking off (option locking=off) opens it all the same, at the risk of its content",
		c.path, holdersText(f.fd, found.pid), what, advice)
}

// couldRead reports whether a read-only opener would get his locks.
func (f *linuxFile) couldRead() bool {
	uses, shares := lockedPerms(true)
	found, err := findConflict(f.fd, uses, shares)
	return err == nil && found == nil
}
