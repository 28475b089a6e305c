//go:build !linux

package engine

import (
	"errors"
	"syscall"

	"github.com/platter-storage/platter/internal/rawio"
)

// caller does requests with blocking calls.
type caller struct{}

// call does io and sets its result.
func (c *caller) call(io *rawio.IO, f *File) {
	io.N, io.Err = 0, nil
	if len(io.Vec) > MaxVec {
		io.Err = syscall.EINVAL
		return
	}
	for _, b := range io.Vec {
		if io.Kind == rawio.Fsync || len(b) == 0 {
			continue
		}
		n, err := transfer(io.Kind, f.fd, b, io.Off+int64(io.N))
		if err != nil && io.N == 0 {
			io.Err = plain(err)
			return
		}
		if io.N += max(n, 0); n < len(b) {
			break
		}
	}
	if io.Kind == rawio.Fsync || io.Kind == rawio.Write && io.Sync {
		if err := datasync(f.fd); err != nil {
			io.N, io.Err = 0, plain(err)
		}
	}
}

// now is for systems that can say "only if it takes no waiting".
func (c *caller) now(*rawio.IO, *File) bool { return false }

// plain is the errno within err.
func plain(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}
