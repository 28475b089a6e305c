package nbd

import (
	"net"
	"sync/atomic"
	"syscall"

	"github.com/platter-storage/platter/block"
	wire "github.com/platter-storage/platter/wire/nbd"
	"golang.org/x/sys/unix"
)

// Long reads of a file in the page cache are sent from there: its pages go
// through a pipe to the socket, and the first copy is the one into the client's
// memory. A read and a write of the payload cost three to four times as much.
//
// The pipe takes the pages before anything is sent, so that an error is still
// answered as one, and the request is not in flight at the disk while the client
// keeps us waiting. What is written to these pages until the client has taken
// them may show: to the client the read is not done before.

const (
	// minSpliced is the shortest read that is sent so.
	minSpliced = 64 << 10
	// pipeSize is what a pipe is asked to hold. Who is not privileged gets
	// half of it: the longest payload of a slot where it begins with a page,
	// and a page less where it does not.
	pipeSize = 2 << 20
)

// pipe holds pages on their way from file to socket.
type pipe struct {
	r, w  int
	most  int64 // what it holds, in bytes
	learn int64 // what turned out not to fit, 0 if nothing did
	off   bool  // it cannot be done: not by this file, or no pipe is to be had
	reads atomic.Int64
}

// holds says whether n bytes are worth a try. It makes the pipe.
func (p *pipe) holds(n int64) bool {
	if p.off || p.learn > 0 && n >= p.learn {
		return false
	}
	if p.w == 0 && !p.open() {
		p.off = true
		return false
	}
	return n <= p.most
}

func (p *pipe) open() bool {
	var fds [2]int
	if unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK) != nil {
		return false
	}
	p.r, p.w = fds[0], fds[1]
	for size := pipeSize; size >= minSpliced; size /= 2 {
		if n, err := unix.FcntlInt(uintptr(p.w), unix.F_SETPIPE_SZ, size); err == nil {
			p.most = int64(n)
			return true
		}
	}
	p.close()
	return false
}

func (p *pipe) close() {
	if p.w > 0 {
		_ = unix.Close(p.r)
		_ = unix.Close(p.w)
	}
	p.r, p.w = 0, 0
}

// fill takes n bytes of a file at off, all or none.
func (p *pipe) fill(fd int, off, n int64) bool {
	for left := n; left > 0; {
		k, err := unix.Splice(fd, &off, p.w, nil, int(left), unix.SPLICE_F_NONBLOCK)
		switch {
		case err == unix.EINTR:
		case err != nil || k == 0: // or the file has become shorter
			switch err {
			case unix.EINVAL, unix.ENOSYS, unix.EPERM:
				p.off = true
			case unix.EAGAIN: // the bytes lie in more pages than it has places
				p.learn = n
			}
			p.close() // with what it has
			return false
		default:
			left -= k
		}
	}
	p.reads.Add(1)
	return true
}

// canSplice says whether the read in s may be answered from the page cache.
func (c *conn) canSplice(s *slot) bool {
	n := int64(s.rq.Length)
	if !c.cached || c.sock == nil || n < minSpliced || len(s.vec) != 1 || !c.pipe.holds(n) {
		return false
	}
	if !c.struc || s.rq.Flags&wire.CmdFlagDF != 0 {
		return true
	}
	if _, local := c.sock.nc.(*net.UnixConn); !local {
		return false // zeroes are found and not sent: that is worth more on a wire
	}
	rq := c.aside.Begin()
	rq.SetContext(c.ctx)
	x, err := c.child.BlockStatus(rq, int64(s.rq.Offset), n)
	c.aside.End(rq, block.OpStatus, n, err)
	return err == nil && x.Data && x.Len == n
}

// splice answers the read in s from the page cache, on the reader's time. False:
// nothing has happened.
func (c *conn) splice(s *slot) bool {
	if !c.cached {
		return false
	}
	c.submit() // what is in flight must not wait for what may wait for it
	if !c.canSplice(s) {
		return false
	}
	n, began := int64(s.rq.Length), c.q.Env().Now()
	m, ok := c.child.Map(s.req, block.OpRead, int64(s.rq.Offset), s.vec, 0)
	if !ok {
		return false
	}
	filled := false
	if f, is := m.Leaf.(interface{ ReadFd() int }); is && m.Kind == block.MapFile {
		filled = c.pipe.fill(f.ReadFd(), m.Off, n)
	} else {
		c.pipe.off = true
	}
	if !filled {
		_, _ = c.child.Finish(s.req, n, 0, syscall.EAGAIN) // goes on in the slow lane
		return false
	}
	err, _ := c.child.Finish(s.req, n, n, nil)
	c.pace.took(c.q.Env().Now()-began, n, slowRead)
	c.q.End(s.req, s.op, n, err)
	s.req = nil
	c.sendPiped(s, n)
	return true
}

// sendPiped sends the reply to s, whose n bytes are in the pipe.
func (c *conn) sendPiped(s *slot, n int64) {
	if c.outRoom(wire.MaxReplyHead) == nil {
		c.out = c.out[:len(c.out)+c.putDataHead(c.out[len(c.out):cap(c.out)], &s.rq)]
		c.sendMu.Lock()
		_ = c.sentLong(c.sock.writePiped(c.out, &c.pipe, n)) // cut, if it failed: seen when more is read
	}
	c.release(s)
}

// writePiped sends head, and then n bytes out of the pipe.
func (s *sock) writePiped(head []byte, p *pipe, n int64) error {
	s.head, s.pipe, s.pipeLeft, s.werr = head, p, n, 0
	err := s.rc.Write(s.pipedFn)
	if s.head, s.pipe = nil, nil; err == nil && s.werr != 0 {
		err = s.werr
	}
	return err
}

func (s *sock) tryPiped(fd uintptr) bool {
	for len(s.head) > 0 || s.pipeLeft > 0 {
		var errno error
		if len(s.head) > 0 {
			var n int
			n, errno = unix.SendmsgN(int(fd), s.head, nil, nil, unix.MSG_MORE|unix.MSG_NOSIGNAL)
			s.head = s.head[max(n, 0):]
		} else {
			var n int64
			n, errno = unix.Splice(s.pipe.r, nil, int(fd), nil, int(s.pipeLeft), unix.SPLICE_F_NONBLOCK)
			s.pipeLeft -= max(n, 0)
		}
		switch errno {
		case nil, unix.EINTR:
		case unix.EAGAIN:
			return false
		default:
			s.werr = errno.(syscall.Errno)
			return true
		}
	}
	return true
}
