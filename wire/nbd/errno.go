package nbd

import (
	"errors"
	"fmt"
	"syscall"
)

// Errno is an error as it travels. Zero is success. ("Error values")
type Errno uint32

// NBD_E*.
const (
	EPERM     Errno = 1
	EIO       Errno = 5
	ENOMEM    Errno = 12
	EINVAL    Errno = 22
	ENOSPC    Errno = 28
	EOVERFLOW Errno = 75
	ENOTSUP   Errno = 95
	ESHUTDOWN Errno = 108
)

// errnos pairs the values of the wire with those of this system, which differ
// from system to system.
var errnos = [...]struct {
	wire Errno
	sys  syscall.Errno
	name string
}{
	{EPERM, syscall.EPERM, "NBD_EPERM (operation not permitted)"},
	{EIO, syscall.EIO, "NBD_EIO (input/output error)"},
	{ENOMEM, syscall.ENOMEM, "NBD_ENOMEM (cannot allocate memory)"},
	{EINVAL, syscall.EINVAL, "NBD_EINVAL (invalid argument)"},
	{ENOSPC, syscall.ENOSPC, "NBD_ENOSPC (no space left)"},
	{EOVERFLOW, syscall.EOVERFLOW, "NBD_EOVERFLOW (value too large)"},
	{ENOTSUP, syscall.ENOTSUP, "NBD_ENOTSUP (not supported)"},
	{ESHUTDOWN, syscall.ESHUTDOWN, "NBD_ESHUTDOWN (server is shutting down)"},
}

// Error is the document's name and what it means.
func (e Errno) Error() string {
	for i := range errnos {
		if errnos[i].wire == e {
			return errnos[i].name
		}
	}
	return fmt.Sprintf("NBD error %d", uint32(e))
}

// Syscall is the errno of this system: EINVAL for a value that the document
// does not define, as it asks of clients, and 0 for success.
func (e Errno) Syscall() syscall.Errno {
	if e == 0 {
		return 0
	}
	for i := range errnos {
		if errnos[i].wire == e {
			return errnos[i].sys
		}
	}
	return syscall.EINVAL
}

// Unwrap lets errors.As find the syscall.Errno.
func (e Errno) Unwrap() error { return e.Syscall() }

// ErrnoOf is what to answer for err: the value of the first Errno or
// syscall.Errno in its chain, 0 for nil. What the document does not name
// becomes EIO, not EINVAL: the request was fine, the storage was not.
func ErrnoOf(err error) Errno {
	if err == nil {
		return 0
	}
	if e, ok := errors.AsType[Errno](err); ok {
		return e
	}
	if e, ok := errors.AsType[syscall.Errno](err); ok {
		return errnoOfSyscall(e)
	}
	return EIO
}

func errnoOfSyscall(e syscall.Errno) Errno {
	for i := range errnos {
		if errnos[i].sys == e {
			return errnos[i].wire
		}
	}
	switch e {
	case 0:
		return 0
	case syscall.EROFS, syscall.EACCES:
		return EPERM
	case syscall.EDQUOT, syscall.EFBIG: // the document asks for these two
		return ENOSPC
	case syscall.EOPNOTSUPP: // another number than ENOTSUP on some systems
		return ENOTSUP
	}
	return EIO
}
