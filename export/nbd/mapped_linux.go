package nbd

import (
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/block"
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

// refresh maps what is left unless it is mapped.
func (m *mapped) refresh() bool {
	if m.bytes != nil {
		return true
	}
	mp, ok := m.c.mapRead(m.req, m.off, m.n)
	if !ok {
		return false
	}
	m.bytes = mp.Mem
	if mp.Kind == block.MapZero {
		m.bytes = zeroes()[:m.n]
	}
	return true
}

// finish lets go of the mapping.
func (m *mapped) finish() {
	if m.bytes != nil {
		_, _ = m.c.child.Finish(m.req, m.n, m.n, nil) // cannot fail without an error to hand on
		m.bytes = nil
	}
}

// advance notes that n bytes have been sent.
func (m *mapped) advance(n int) {
	k := min(n, len(m.head))
	m.head = m.head[k:]
	m.off += int64(n - k)
	m.n -= int64(n - k)
}
