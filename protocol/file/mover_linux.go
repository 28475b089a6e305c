package file

import (
	"github.com/platter-storage/platter/block"
	"golang.org/x/sys/unix"
)

// mover does reads and writes by calls on the caller's goroutine.
type mover struct{ fd int }

func directMover(fd int) *mover { return &mover{fd} }

func (m *mover) readv(off int64, v block.Vec) (int, error) { return preadv(m.fd, v, off) }

func (m *mover) writev(off int64, v block.Vec, durable bool) (int, error) {
	if durable {
		return pwritev(m.fd, v, off, unix.RWF_DSYNC)
	}
	return pwritev(m.fd, v, off, 0)
}
