package block

import (
	"errors"
	"fmt"
	"syscall"
)

// Error is a failed request: which, of what, and why. It is built only on
// failure. errors.As finds the syscall.Errno inside.
type Error struct {
	Op   Op
	Node string // the node's name and file
	Off  int64
	Len  int64
	Err  error
}

// Error says operation, node, range and cause in one line.
func (e *Error) Error() string {
	switch e.Op {
	case OpFlush:
		return fmt.Sprintf("%s of %s: %v", e.Op, e.Node, e.Err)
	case OpTruncate:
		return fmt.Sprintf("%s of %s to %d bytes: %v", e.Op, e.Node, e.Len, e.Err)
	}
	return fmt.Sprintf("%s of %s at offset %d, length %d: %v", e.Op, e.Node, e.Off, e.Len, e.Err)
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// errNamed is a cause in words with the errno that programs look for.
type errNamed struct {
	errno syscall.Errno
	msg   string
}

func (e *errNamed) Error() string { return e.msg }
func (e *errNamed) Unwrap() error { return e.errno }

// Errorf makes an error that reads as the message and for which errors.As
// finds errno.
func Errorf(errno syscall.Errno, format string, args ...any) error {
	return &errNamed{errno, fmt.Sprintf(format, args...)}
}

// Causes that the edge itself gives.
var (
	errReadOnly  = Errorf(syscall.EROFS, "the node is read-only")
	errPerm      = Errorf(syscall.EPERM, "the edge does not hold the permission")
	errFlushLost = Errorf(syscall.EIO, "an earlier flush failed, so data written before it may be lost; reopen the disk to go on writing durably")
	errTooLong   = Errorf(syscall.EINVAL, "the request is longer than %d bytes: send it in parts", MaxRequest)
	errNegative  = Errorf(syscall.EINVAL, "a size is not negative")
	errTooLarge  = Errorf(syscall.EFBIG, "the largest size is %d bytes", int64(MaxSize))
	errLimits    = Errorf(syscall.EINVAL, "the storage refused it twice, though it met the limits that the storage announced: its alignment is not stable")
	// errOvertaken: size or limits changed before the request was in flight.
	errOvertaken = errors.New("overtaken by a change of size or limits")
)

// givenUp is the error of a request whose context ended while it waited, before
// what it waited for was done.
type givenUp struct{ err error }

func (e *givenUp) Error() string { return "given up while it waited: " + e.err.Error() }

// Unwrap gives the context's error, and an errno.
func (e *givenUp) Unwrap() []error { return []error{e.err, syscall.ECANCELED} }

// wasGivenUp reports whether an operation did not happen because its request's
// context ended first. A node that gives up what it has begun says so by an
// errno.
func wasGivenUp(err error) bool {
	return errors.Is(err, errGivenUp)
}

// errGivenUp is what every givenUp is: looking for it allocates nothing, on the
// path of each request that fails.
var errGivenUp = errors.New("given up while it waited")

// Is tells that e is one.
func (e *givenUp) Is(target error) bool { return target == errGivenUp }

func errRange(size int64) error {
	return Errorf(syscall.EINVAL, "the range is negative or beyond the end; the size is %d bytes", size)
}

// ErrNotSupported is what a node returns for an operation that it does not
// have.
var ErrNotSupported error = syscall.ENOTSUP

// ErrLimitsChanged is what a node returns when it refused a request that met
// its limits because the storage's have changed: new limits are published, and
// the edge tries once more under them.
var ErrLimitsChanged = errors.New("the storage's alignment changed during the request")

// IsNotSupported reports whether err says that the operation does not exist
// here, rather than that it failed.
func IsNotSupported(err error) bool {
	return errors.Is(err, syscall.ENOTSUP) || errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, errors.ErrUnsupported)
}

// Errno is the errno inside err, or EIO where there is none.
func Errno(err error) syscall.Errno {
	var e syscall.Errno
	if errors.As(err, &e) {
		return e
	}
	return syscall.EIO
}
