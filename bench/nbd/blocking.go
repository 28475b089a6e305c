package main

import (
	"errors"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// stuckAfter is how long a server may leave a client without a byte.
const stuckAfter = time.Minute

// maxIov is the most elements that the system takes in one write.
const maxIov = 1024

// blocking is a socket whose calls wait in the kernel.
type blocking struct {
	f  *os.File
	fd int
}

// toBlocking takes conn over, and closes it.
func toBlocking(conn *net.UnixConn) (*blocking, error) {
	f, err := conn.File()
	if err != nil {
		return nil, err
	}
	if err := conn.Close(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	b := &blocking{f: f, fd: int(f.Fd())}
	limit := unix.NsecToTimeval(stuckAfter.Nanoseconds())
	err = errors.Join(
		unix.SetNonblock(b.fd, false),
		unix.SetsockoptTimeval(b.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit),
		unix.SetsockoptTimeval(b.fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit))
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return b, nil
}

// Read reads what there is: one byte at least.
func (b *blocking) Read(p []byte) (int, error) {
	for {
		n, err := unix.Read(b.fd, p)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return 0, os.NewSyscallError("read", err)
		case n == 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

// Write writes all of p.
func (b *blocking) Write(p []byte) (int, error) {
	for done := 0; done < len(p); {
		n, err := unix.Write(b.fd, p[done:])
		if err != nil && err != unix.EINTR {
			return done, os.NewSyscallError("write", err)
		}
		done += max(n, 0)
	}
	return len(p), nil
}

// writev writes all of bufs and uses them up.
func (b *blocking) writev(bufs [][]byte) error {
	for len(bufs) > 0 {
		n, err := unix.Writev(b.fd, bufs[:min(len(bufs), maxIov)])
		if err != nil && err != unix.EINTR {
			return os.NewSyscallError("writev", err)
		}
		for n = max(n, 0); len(bufs) > 0 && n >= len(bufs[0]); bufs = bufs[1:] {
			n -= len(bufs[0])
		}
		if len(bufs) > 0 {
			bufs[0] = bufs[0][n:]
		}
	}
	return nil
}

// Close closes the socket.
func (b *blocking) Close() error { return b.f.Close() }
