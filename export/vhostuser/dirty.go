package vhostuser

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/virtio"
	wire "github.com/platter-storage/platter/wire/vhostuser"
)

// dirtyLog is the memory in which a migration finds the pages that were
// written. ("Migration")
type dirtyLog struct {
	mapping []byte
	log     *virtio.Log // nil: there is none
}

// activeLog is the log that is to be written, nil where nobody asks.
func (s *session) activeLog() *virtio.Log {
	if s.features&wire.FeatureLogAll == 0 {
		return nil
	}
	return s.dirty.log
}

// setLogBase takes the log. It is answered when the old one, if any, is not
// touched any more. ("VHOST_USER_SET_LOG_BASE")
func (s *session) setLogBase(m *wire.Message) error {
	if s.protocol&wire.ProtocolLogShmfd == 0 || m.Fds.Len() == 0 {
		return errors.New("a log without its memory cannot be written: LOG_SHMFD has to be negotiated and a descriptor passed")
	}
	w, err := m.Log()
	if err != nil {
		return err
	}
	if w.Size%4 != 0 || w.Offset%4 != 0 {
		return fmt.Errorf("the log has %d bytes at offset %d: they must be multiples of 4", w.Size, w.Offset)
	}
	mapping, mem, err := mapFile(m.Fds.Fd(0), w.Offset, w.Size)
	if err != nil {
		return fmt.Errorf("the log of written pages: %w", err)
	}
	next := dirtyLog{mapping: mapping}
	if next.log, err = virtio.NewLog(mem); err == nil && s.mem != nil && !next.log.Covers(s.mem.End()) {
		err = fmt.Errorf("the log of %d bytes does not cover guest memory, which ends at %#x", w.Size, s.mem.End())
	}
	if err != nil {
		next.close()
		return err
	}
	old := s.dirty
	s.dirty = next
	if err := s.applyRings(); err != nil {
		return err
	}
	old.close()
	return s.conn.Ack(m, 0)
}

// setLogFd is told of an eventfd for changes of the log. We do not signal it:
// nobody is known to listen. ("VHOST_USER_SET_LOG_FD")
func (s *session) setLogFd(*wire.Message) error { return nil }

func (l *dirtyLog) close() {
	if l.mapping == nil {
		return
	}
	if err := unix.Munmap(l.mapping); err != nil {
		panic("vhost-user: a mapping of ours cannot be unmapped: " + err.Error())
	}
	*l = dirtyLog{}
}
