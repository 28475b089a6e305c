package nbd

import (
	"io"

	"golang.org/x/sys/unix"
)

// readMapped receives into the places that m names, and into ahead what comes
// behind. A mapping is held for the time of one call that does not wait, never
// while the client keeps us waiting: then it is made anew. What it returns is
// what the node declined to take so.
func (s *sock) readMapped(m incoming, ahead []byte) (rest incoming, err error) {
	s.incoming, s.ahead, s.rerr, s.ended = m, ahead, 0, false
	err = s.rc.Read(s.incomingF)
	rest = s.incoming
	s.incoming, s.ahead = incoming{}, nil
	switch {
	case err != nil:
	case s.rerr != 0:
		err = s.rerr
	case s.ended:
		err = io.EOF
	}
	return rest, err
}

func (s *sock) tryIncoming(fd uintptr) bool {
	for m := &s.incoming; m.n > 0; {
		mem := m.room()
		if mem == nil {
			return true
		}
		s.riov[0].Base, s.riov[1].Base = &mem[0], &s.ahead[0]
		s.riov[0].SetLen(len(mem))
		s.riov[1].SetLen(len(s.ahead))
		n, errno := readv(fd, s.riov[:])
		m.finish()
		switch errno {
		case 0:
			if n == 0 {
				s.ended = true
				return true
			}
			m.took(n)
		case unix.EINTR:
		case unix.EAGAIN:
			return false
		default:
			s.rerr = errno
			return true
		}
	}
	return true
}
