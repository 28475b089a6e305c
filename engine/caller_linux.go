package engine

import (
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/internal/rawio"
	"github.com/platter-storage/platter/internal/sys"
)

// caller does requests with blocking calls, for one goroutine at a time. Its
// element array holds addresses as integers: the request keeps the memory
// alive, and Go's heap does not move.
type caller struct{ iov []iovec }

// call does io and sets its result.
func (c *caller) call(io *rawio.IO, f *File) {
	var back backoff
	res := c.once(io, f)
	for res == -int(syscall.EINTR) && back.again() {
		res = c.once(io, f)
	}
	setResult(io, res)
	runtime.KeepAlive(io)
}

// now does io if that takes no waiting, typically a copy from or to the page
// cache: false, and nothing has been done. Whatever does not go smoothly is
// not done.
func (c *caller) now(io *rawio.IO, f *File) bool {
	if io.Kind == rawio.Fsync || io.Sync || len(io.Vec) > MaxVec || f.noNow[io.Kind].Load() {
		return false
	}
	trap := uintptr(unix.SYS_PREADV2)
	if io.Kind == rawio.Write {
		trap = unix.SYS_PWRITEV2
	}
	res := rawNow(trap, f.fd, c.fill(io.Vec), io.Off, unix.RWF_NOWAIT)
	runtime.KeepAlive(io)
	if res <= 0 {
		if noSuchCall(res) {
			f.noNow[io.Kind].Store(true)
		}
		return false
	}
	setResult(io, res)
	return true
}

func (c *caller) once(io *rawio.IO, f *File) int {
	switch {
	case io.Kind == rawio.Fsync:
		return rawFdatasync(f.fd)
	case len(io.Vec) > MaxVec:
		return -int(syscall.EINVAL)
	case io.Kind == rawio.Write && io.Sync:
		return c.writeSync(io, f)
	case len(io.Vec) == 1 && io.Kind == rawio.Read:
		return rawTransfer(unix.SYS_PREAD64, f.fd, io.Vec[0], io.Off)
	case len(io.Vec) == 1:
		return rawTransfer(unix.SYS_PWRITE64, f.fd, io.Vec[0], io.Off)
	case io.Kind == rawio.Read:
		return rawVectored(unix.SYS_PREADV, f.fd, c.fill(io.Vec), io.Off, 0)
	}
	return rawVectored(unix.SYS_PWRITEV, f.fd, c.fill(io.Vec), io.Off, 0)
}

// noSuchCall reports whether a call with flags failed because the kernel or the
// file system does not have it, or because a filter forbids it: the profiles of
// containers answer EPERM to calls that they do not know. A file that may not be
// written says EPERM too, but then it does so to the plain call that follows.
func noSuchCall(res int) bool {
	return res == -int(syscall.ENOSYS) || res == -int(syscall.EOPNOTSUPP) || res == -int(syscall.EPERM)
}

// writeSync writes durably: in one call, or with a second one where there is no
// pwritev2 (before Linux 4.6) or not its flag (before 4.7).
func (c *caller) writeSync(io *rawio.IO, f *File) int {
	iov := c.fill(io.Vec)
	res := rawVectored(unix.SYS_PWRITEV2, f.fd, iov, io.Off, unix.RWF_DSYNC)
	if !noSuchCall(res) {
		return res
	}
	if res = rawVectored(unix.SYS_PWRITEV, f.fd, iov, io.Off, 0); res < 0 {
		return res
	}
	if r := rawFdatasync(f.fd); r < 0 {
		return r
	}
	return res
}

// fill lists vec's elements; the array grows to what was needed once.
func (c *caller) fill(vec [][]byte) []iovec {
	if cap(c.iov) < len(vec) {
		c.iov = make([]iovec, max(len(vec), 64))
	}
	iov := c.iov[:len(vec)]
	for i, b := range vec {
		iov[i] = iovec{sys.Addr(b), uintptr(len(b))}
	}
	return iov
}
