package nbd

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// writeMapped sends m.head and then the bytes of the disk that m describes,
// from where they lie. A mapping is held for the time of one call that does
// not wait, never while the client keeps us waiting: then it is made anew. What
// it returns is what it could not send because the node declined.
func (s *sock) writeMapped(m mapped) (rest mapped, err error) {
	s.mapped, s.werr = m, 0
	err = s.rc.Write(s.mappedF)
	rest = s.mapped
	s.mapped = mapped{}
	rest.finish()
	if err == nil && s.werr != 0 {
		err = s.werr
	}
	return rest, err
}

func (s *sock) tryMapped(fd uintptr) bool {
	m := &s.mapped
	for len(m.head) > 0 || m.n > 0 {
		if !m.refresh() {
			return true
		}
		sent, errno := s.writev2(fd, m.head, m.bytes)
		m.finish()
		switch errno {
		case 0:
			m.advance(sent)
		case unix.EINTR:
		case unix.EAGAIN:
			return false
		default:
			s.werr = errno
			return true
		}
	}
	return true
}

func (s *sock) writev2(fd uintptr, a, b []byte) (int, syscall.Errno) {
	n := 0
	for _, e := range [2][]byte{a, b} {
		if len(e) > 0 {
			s.wiov[n].Base = &e[0]
			s.wiov[n].SetLen(len(e))
			n++
		}
	}
	return writev(fd, s.wiov[:n])
}
