package file

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/block"
)

// wrongKind says why a thing of this mode cannot be a disk, or is nil.
func wrongKind(c *config, mode uint32) error {
	what, do := "", "a disk is a regular file or a block device"
	errno := syscall.EINVAL
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		if !c.mustBeDevice {
			return nil
		}
		what, errno, do = "a regular file", syscall.ENOTBLK, "open it with driver=file"
	case unix.S_IFBLK:
		return nil
	case unix.S_IFDIR:
		what, errno = "a folder", syscall.EISDIR
	case unix.S_IFIFO:
		what, errno = "a FIFO", syscall.ESPIPE
	case unix.S_IFSOCK:
		what, errno, do = "a socket", syscall.ENXIO, "a server is reached by its URI: nbd+unix:///NAME?socket="+c.path
	case unix.S_IFCHR:
		what = "a character device"
	default:
		what = "no file"
	}
	return block.Errorf(errno, "%s: cannot be opened as a disk: it is %s; %s", c.path, what, do)
}

// openError says in one line why a file could not be opened, and what to do.
func openError(c *config, err error) error {
	errno := block.Errno(err)
	forWhat := "for writing"
	if c.readOnly {
		forWhat = "for reading"
	}
	return block.Errorf(errno, "%s: cannot be opened %s: %s", c.path, forWhat, whyNot(c, errno))
}

// whyNot is the reason and the way out.
func whyNot(c *config, errno syscall.Errno) string {
	why := errno.Error()
	switch errno {
	case syscall.ENOENT:
		why = missingText(c.path)
	case syscall.EACCES, syscall.EPERM:
		why = permissionText(c, errno)
	case syscall.EROFS:
		why = "its file system is mounted read-only: open it read-only (--read-only), or remount it writable"
	case syscall.EBUSY:
		why = busyText(c.path)
	case syscall.ETXTBSY:
		why = "it is in use as a program or as swap space: stop that, or open it read-only (--read-only)"
	case syscall.ENOTDIR:
		why = "a part of its path is not a folder: check the path"
	case syscall.ELOOP:
		why = "its path has too many symbolic links, or a circle of them: check where they lead"
	case syscall.ENAMETOOLONG:
		why = "its path is too long"
	case syscall.EMFILE, syscall.ENFILE:
		why = "too many files are open: raise the limit (ulimit -n), or close some"
	case syscall.ENXIO, syscall.ENODEV:
		why = "there is no device behind it: attach the device, or check the path"
	case syscall.ENOMEDIUM:
		why = "there is no medium in the drive: insert one"
	}
	return why
}

// belowDev reports whether path is where devices are: a regular file there
// lives in memory, is lost, and hides that the device is not there. /dev/shm is
// for files.
func belowDev(path string) bool {
	dir, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return false
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	within := func(top string) bool { return dir == top || strings.HasPrefix(dir, top+"/") }
	return within("/dev") && !within("/dev/shm")
}

func missingText(path string) string {
	if belowDev(path) {
		return "there is no such device: attach it, or check the path (lsblk lists the devices that are there)"
	}
	dir := filepath.Dir(path)
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return fmt.Sprintf("it does not exist, nor does the folder %s: check the path", dir)
	}
	if target, err := os.Readlink(path); err == nil {
		return fmt.Sprintf("it is a symbolic link to %s, which does not exist", target)
	}
	return "it does not exist: check the path, or create it (--create SIZE)"
}

func permissionText(c *config, errno syscall.Errno) string {
	fi, err := os.Stat(c.path)
	if err != nil {
		return "a folder on its path may not be entered: check the permissions of the folders"
	}
	device := fi.Mode()&os.ModeDevice != 0
	readable := unix.Access(c.path, unix.R_OK) == nil
	switch {
	case device && errno == syscall.EPERM:
		return "a policy forbids it: allow the device to this container or service"
	case device && !c.readOnly && readable:
		return "the device is read-only: open it so (--read-only)"
	case !c.readOnly && readable && errno == syscall.EPERM:
		return "it is marked immutable or append-only (see lsattr): open it read-only (--read-only), or clear the mark"
	case !c.readOnly && readable:
		return fmt.Sprintf("it may be read but not written (mode %v): open it read-only (--read-only), or change its mode", fi.Mode().Perm())
	}
	if os.Geteuid() == 0 {
		return "permission denied, even to root: a security policy forbids it"
	}
	return fmt.Sprintf("permission denied (mode %v, owner %s, and we are user %d): change its mode or owner, or run as another user", fi.Mode().Perm(), ownerText(fi), os.Geteuid())
}

func ownerText(fi os.FileInfo) string {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return fmt.Sprint(st.Uid)
	}
	return "unknown"
}

// directError says that direct I/O was asked for and cannot be had.
func directError(c *config, why error) error {
	return block.Errorf(syscall.EINVAL, "%s: cache=%s needs direct I/O, which cannot be used here: %v; use --cache writeback (option cache=writeback; or fallback=buffered), or storage that has it", c.path, c.cacheName, why)
}
