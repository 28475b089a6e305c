package file

import (
	"fmt"
	"syscall"

	"github.com/platter-storage/platter/block"
)

// Truncate sets the file's size. What is added reads as zeroes and has space
// as pre says. If that fails the size stays as it was.
func (n *node) Truncate(rq *block.Req, size int64, pre block.Prealloc) error {
	n.tailMu.Lock()
	defer n.tailMu.Unlock()
	old, err := n.sys.size()
	if err != nil {
		return err
	}
	switch {
	case n.sys.isDevice() && size == old:
		return nil
	case n.sys.isDevice():
		return block.Errorf(syscall.ENOTSUP, "a device has the size that it has, %d bytes: resize it with its own tools", old)
	case pre == block.PreallocMetadata:
		return block.Errorf(syscall.ENOTSUP, "a plain file has no metadata to allocate: use preallocation off, falloc or full")
	case size < old && pre != block.PreallocOff:
		return block.Errorf(syscall.EINVAL, "preallocation=%v is for growing, not for shrinking from %d bytes: use off", pre, old)
	}
	if err := resize(n.sys, old, size, pre); err != nil {
		return err
	}
	return n.resized(size)
}

// resized publishes a new size, and what depends on it.
func (n *node) resized(size int64) error {
	n.status.forget()
	grown := size > n.info.Size()
	n.info.SetSize(size)
	n.placeTail()
	if !grown || !n.direct {
		return nil
	}
	// An empty file had nothing to find its alignment by.
	n.limits.mu.Lock()
	defer n.limits.mu.Unlock()
	_, err := n.resolveAgain(n.info.Limits())
	return err
}

// resize changes the size of an open file.
func resize(s system, old, size int64, pre block.Prealloc) error {
	if err := s.setSize(size); err != nil {
		return sizeError(size, err)
	}
	if size <= old {
		return nil
	}
	var err error
	switch {
	case pre == block.PreallocFalloc:
		err = allocateError(notThere(s.allocate(old, size-old)))
	case pre == block.PreallocFull:
		err = writeZeroes(s, old, size)
	}
	if err == nil && old == 0 && pre != block.PreallocFull {
		// So that a trial read meets stored data.
		err = writeZeroes(s, 0, min(size, safeAlign))
	}
	if err == nil {
		return nil
	}
	if back := s.setSize(old); back != nil {
		return fmt.Errorf("%w (and the size of %d could not be set back to %d: %v)", err, size, old, back)
	}
	return err
}

func sizeError(size int64, err error) error {
	switch block.Errno(err) {
	case syscall.EFBIG, syscall.EINVAL:
		return block.Errorf(syscall.EFBIG, "a file of %d bytes is more than this file system, or the limit of this process (ulimit -f), allows", size)
	case syscall.EPERM:
		return block.Errorf(syscall.EPERM, "the file may not be resized: it is sealed, append-only or immutable")
	}
	return err
}

// allocateError is the error of reserving space in a file whose size could be
// changed.
func allocateError(err error) error {
	switch {
	case block.IsNotSupported(err):
		return block.Errorf(syscall.ENOTSUP, "this file system cannot reserve space: use preallocation off or full")
	case err == syscall.EPERM:
		return block.Errorf(syscall.EPERM, "reserving space is forbidden here, by the filter of a container or service (seccomp) that does not know fallocate: allow it, or use preallocation off or full")
	}
	return err
}

var zeroMiB = make([]byte, 1<<20)

// writeZeroes writes zeroes over [off, end) through the page cache, and waits
// for them to be stored.
func writeZeroes(s system, off, end int64) error {
	for stalls := 0; off < end; {
		k, err := s.cached().writev(off, block.Vec{zeroMiB[:min(end-off, int64(len(zeroMiB)))]}, false)
		switch {
		case err == syscall.EINTR && stalls < maxInterrupts, err == nil && k == 0 && stalls < maxStalls:
			stalls++
		case err != nil:
			return err
		case k == 0:
			return syscall.ENOSPC
		default:
			off, stalls = off+int64(k), 0
		}
	}
	return s.sync()
}
