package nbd

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// hangup sees that a client has gone while nobody reads from it. One that only
// says that it will send no more is still there: it may want its answers. So
// over TCP a client that has gone is seen when the next answer is sent.
type hangup struct {
	rc  syscall.RawConn // nil where there is no socket to look at
	ask func(fd uintptr)
	fds [1]unix.PollFd
}

func (h *hangup) init(nc net.Conn) {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return
	}
	if rc, err := sc.SyscallConn(); err == nil {
		h.rc = rc
	}
	h.ask = func(fd uintptr) {
		h.fds[0] = unix.PollFd{Fd: int32(fd)} // no events: what is reported unasked
		if _, err := unix.Poll(h.fds[:], 0); err != nil {
			h.fds[0].Revents = 0 // interrupted: it is asked again
		}
	}
}

// seen reports whether the connection has ended in both directions.
func (h *hangup) seen() bool {
	if h.rc == nil {
		return false
	}
	h.fds[0].Revents = 0
	_ = h.rc.Control(h.ask) // of a closed one the reader knows
	return h.fds[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
}
