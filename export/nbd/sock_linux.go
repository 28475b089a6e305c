package nbd

import (
	"fmt"
	"io"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxIov is the number of elements in one vectored write.
const maxIov = 256

// sock is a socket without TLS. It waits in the runtime's poller, not in the
// kernel, and moves bytes straight between socket and their place. One reader
// and, at the same time, one sender may use it.
type sock struct {
	nc net.Conn
	rc syscall.RawConn

	// The reader's.
	readFn func(fd uintptr) bool
	riov   [2]unix.Iovec
	rn     int
	rerr   syscall.Errno
	// and where a payload goes that is received into the disk
	incoming  incoming
	incomingF func(fd uintptr) bool
	ahead     []byte
	ended     bool

	// The sender's.
	writeFn func(fd uintptr) bool
	wiov    [maxIov]unix.Iovec
	wbufs   [][]byte
	werr    syscall.Errno

	mapped  mapped
	mappedF func(fd uintptr) bool

	head     []byte // to go before what the pipe has
	pipe     *pipe
	pipeLeft int64
	pipedFn  func(fd uintptr) bool

	pendingFn func(fd uintptr)
	npending  int
}

// sendBuf is the send buffer that a UNIX socket is given, as far as the system
// lets it (net.core.wmem_max): a long reply takes fewer rounds then. TCP finds
// its own size.
const sendBuf = 1 << 20

// newSock uses nc as a plain socket, or returns nil where it is something else.
func newSock(nc net.Conn) *sock {
	if uc, ok := nc.(*net.UnixConn); ok {
		_ = uc.SetWriteBuffer(sendBuf) // works as well without
	}
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return nil
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return nil
	}
	s := &sock{nc: nc, rc: rc}
	s.readFn, s.writeFn, s.mappedF, s.pipedFn, s.pendingFn = s.tryRead, s.tryWrite, s.tryMapped, s.tryPiped, s.askPending
	s.incomingF = s.tryIncoming
	return s
}

func (s *sock) read(p []byte) (int, error) { return s.readv(p, nil) }

// readv reads into p and, once it is full, into ahead, which may be empty: one
// byte at least.
func (s *sock) readv(p, ahead []byte) (int, error) {
	s.riov[0].Base = &p[0]
	if len(ahead) > 0 {
		s.riov[1].Base = &ahead[0]
	}
	s.riov[0].SetLen(len(p))
	s.riov[1].SetLen(len(ahead))
	if err := s.rc.Read(s.readFn); err != nil {
		return 0, err
	}
	switch {
	case s.rerr != 0:
		return 0, s.rerr
	case s.rn == 0:
		return 0, io.EOF
	}
	return s.rn, nil
}

func (s *sock) tryRead(fd uintptr) bool {
	for {
		s.rn, s.rerr = readv(fd, s.riov[:])
		switch s.rerr {
		case unix.EINTR:
		case unix.EAGAIN:
			return false
		default:
			return true
		}
	}
}

// write writes all of bufs, which it uses up.
func (s *sock) write(bufs [][]byte) error {
	s.wbufs, s.werr = bufs, 0
	if err := s.rc.Write(s.writeFn); err != nil {
		return err
	}
	if s.werr != 0 {
		return s.werr
	}
	return nil
}

func (s *sock) tryWrite(fd uintptr) bool {
	for {
		n := s.fillIov(s.wbufs)
		if n == 0 {
			return true
		}
		sent, errno := writev(fd, s.wiov[:n])
		switch errno {
		case 0:
			s.wbufs = consume(s.wbufs, sent)
		case unix.EINTR:
		case unix.EAGAIN:
			return false
		default:
			s.werr = errno
			return true
		}
	}
}

// fillIov describes the elements of bufs, as many as fit, to the kernel.
func (s *sock) fillIov(bufs [][]byte) int {
	n := 0
	for _, b := range bufs {
		if len(b) == 0 {
			continue
		}
		if n == len(s.wiov) {
			break
		}
		s.wiov[n].Base = &b[0]
		s.wiov[n].SetLen(len(b))
		n++
	}
	return n
}

// consume takes n bytes from the start of bufs.
func consume(bufs [][]byte, n int) [][]byte {
	for len(bufs) > 0 {
		if len(bufs[0]) > n {
			bufs[0] = bufs[0][n:]
			return bufs
		}
		n -= len(bufs[0])
		bufs = bufs[1:]
	}
	return bufs
}

// pending is how many bytes have arrived that nobody has read.
func (s *sock) pending() int {
	s.npending = 0
	_ = s.rc.Control(s.pendingFn) // a closed socket has none
	return s.npending
}

func (s *sock) askPending(fd uintptr) {
	if n, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ); err == nil {
		s.npending = n
	}
}

// peerName is what to call the client in messages.
func peerName(nc net.Conn) string {
	uc, ok := nc.(*net.UnixConn)
	if !ok {
		return nc.RemoteAddr().String()
	}
	name := "unix socket " + nc.LocalAddr().String()
	rc, err := uc.SyscallConn()
	if err != nil {
		return name
	}
	_ = rc.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			name = fmt.Sprintf("process %d of user %d on %s", cred.Pid, cred.Uid, name)
		}
	})
	return name
}

// control calls f with the descriptor of a connection that has one.
func control(nc net.Conn, f func(fd int)) {
	if sc, ok := nc.(syscall.Conn); ok {
		if rc, err := sc.SyscallConn(); err == nil {
			_ = rc.Control(func(fd uintptr) { f(int(fd)) }) // a closed one has nothing to say
		}
	}
}

// blocksWriter reports whether the connection takes no more for now, because
// its other side does not read.
func blocksWriter(nc net.Conn) (blocked bool) {
	control(nc, func(fd int) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		n, err := unix.Poll(p, 0)
		blocked = n == 0 && err == nil
	})
	return blocked
}

// ackedBytes is how much the other side of a TCP connection has taken; 0 for
// others, where what matters is that it does not change.
func ackedBytes(nc net.Conn) (n uint64) {
	if _, tcp := nc.(*net.TCPConn); !tcp {
		return 0
	}
	control(nc, func(fd int) {
		if info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			n = info.Bytes_acked
		}
	})
	return n
}

// keepSmall asks for pages of the smallest size behind b.
func keepSmall(b []byte) { _ = unix.Madvise(b, unix.MADV_NOHUGEPAGE) }
