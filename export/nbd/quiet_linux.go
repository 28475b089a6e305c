package nbd

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// quiet is a UNIX socket that wakes its server for what arrives and for nothing
// else. The runtime's poller watches every socket in both directions, and a
// UNIX socket reports room to send each time that its peer has read something:
// one wake-up too many for each reply. Here the poller has two epoll instances
// in the socket's place: one watches for reading, the other one for room, while
// somebody waits for it.
type quiet struct {
	local, remote net.Addr

	// fd is in use by those who hold mu shared; Close takes it for itself.
	mu     sync.RWMutex
	fd     int
	closed atomic.Bool

	// One reads and one writes at a time. What they want to call is kept here,
	// for functions that are made once: a request allocates nothing.
	reading, writing  sync.Mutex
	readFn, writeFn   func(fd uintptr) bool
	inReady, outReady func(ep uintptr) bool
	unwatch           func(ep uintptr)
	in, out           watcher

	event    unix.EpollEvent
	watched  bool // for room
	watchErr error
}

// watcher is an epoll instance that the runtime's poller watches.
type watcher struct {
	file *os.File
	rc   syscall.RawConn
}

func newWatcher() (w watcher, err error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return w, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(ep, true); err != nil { // or the poller does not take it
		return w, errors.Join(err, unix.Close(ep))
	}
	w.file = os.NewFile(uintptr(ep), "epoll")
	if w.rc, err = w.file.SyscallConn(); err != nil {
		return w, errors.Join(err, w.file.Close())
	}
	return w, nil
}

// quieten takes a UNIX socket over. Other connections it returns as they are,
// and those as well for which the system has no more descriptors.
func quieten(nc net.Conn) net.Conn {
	uc, ok := nc.(*net.UnixConn)
	if !ok {
		return nc
	}
	_ = uc.SetWriteBuffer(sendBuf) // works as well without
	q, err := newQuiet(uc)
	if err != nil {
		return nc
	}
	_ = uc.Close() // the descriptor that the poller knows; q has another
	return q
}

// newQuiet makes all that the connection will need: a client that is connected
// must not suffer from others who use up the descriptors.
func newQuiet(uc *net.UnixConn) (*quiet, error) {
	q := &quiet{local: uc.LocalAddr(), remote: uc.RemoteAddr(), fd: -1}
	q.inReady = func(uintptr) bool { return q.readFn(uintptr(q.fd)) }
	q.outReady = q.tryOut
	q.unwatch = func(ep uintptr) { _ = unix.EpollCtl(int(ep), unix.EPOLL_CTL_DEL, q.fd, nil) } // it was added
	rc, err := uc.SyscallConn()
	if err != nil {
		return nil, err
	}
	if e := rc.Control(func(fd uintptr) { q.fd, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) }); e != nil || err != nil {
		return nil, errors.Join(e, err)
	}
	if q.in, err = newWatcher(); err != nil {
		return nil, errors.Join(err, unix.Close(q.fd))
	}
	if q.out, err = newWatcher(); err != nil {
		return nil, errors.Join(err, q.in.file.Close(), unix.Close(q.fd))
	}
	arrives := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP}
	if e := q.in.rc.Control(func(ep uintptr) { err = unix.EpollCtl(int(ep), unix.EPOLL_CTL_ADD, q.fd, &arrives) }); e != nil || err != nil {
		return nil, errors.Join(e, err, q.Close())
	}
	return q, nil
}

// use keeps fd open until the matching RUnlock of mu.
func (q *quiet) use() error {
	q.mu.RLock()
	if q.closed.Load() {
		q.mu.RUnlock()
		return net.ErrClosed
	}
	return nil
}

// told is err in the words of package net, whose connections q replaces.
func (q *quiet) told(err error) error {
	if err != nil && q.closed.Load() {
		return net.ErrClosed
	}
	return err
}

// quietConn is q as syscall.RawConn: what net's own connections offer.
type quietConn struct{ *quiet }

// SyscallConn implements syscall.Conn.
func (q *quiet) SyscallConn() (syscall.RawConn, error) { return quietConn{q}, nil }

// Control implements syscall.RawConn.
func (q quietConn) Control(f func(fd uintptr)) error {
	if err := q.use(); err != nil {
		return err
	}
	defer q.mu.RUnlock()
	f(uintptr(q.fd))
	return nil
}

// Read implements syscall.RawConn.
func (q quietConn) Read(f func(fd uintptr) bool) error {
	if err := q.use(); err != nil {
		return err
	}
	defer q.mu.RUnlock()
	q.reading.Lock()
	defer q.reading.Unlock()
	q.readFn = f
	return q.told(q.in.rc.Read(q.inReady))
}

// Write implements syscall.RawConn.
func (q quietConn) Write(f func(fd uintptr) bool) error {
	if err := q.use(); err != nil {
		return err
	}
	defer q.mu.RUnlock()
	q.writing.Lock()
	defer q.writing.Unlock()
	q.writeFn, q.watched, q.watchErr = f, false, nil
	err := q.out.rc.Read(q.outReady)
	if q.watched {
		_ = q.out.rc.Control(q.unwatch) // a watcher that was closed watches nothing
	}
	if err == nil {
		err = q.watchErr
	}
	return q.told(err)
}

// tryOut calls writeFn, and watches for room from when there is none.
func (q *quiet) tryOut(ep uintptr) bool {
	if q.writeFn(uintptr(q.fd)) {
		return true
	}
	if q.watched {
		return false
	}
	q.event = unix.EpollEvent{Events: unix.EPOLLOUT}
	q.watchErr = os.NewSyscallError("epoll_ctl", unix.EpollCtl(int(ep), unix.EPOLL_CTL_ADD, q.fd, &q.event))
	q.watched = q.watchErr == nil
	return !q.watched
}

// Read implements net.Conn.
func (q *quiet) Read(p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	werr := quietConn{q}.Read(func(fd uintptr) bool {
		n, err = ignoringEINTR(unix.Read, fd, p)
		return err != unix.EAGAIN
	})
	switch {
	case werr != nil:
		return 0, werr
	case err != nil:
		return 0, os.NewSyscallError("read", err)
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// Write implements net.Conn.
func (q *quiet) Write(p []byte) (done int, err error) {
	werr := quietConn{q}.Write(func(fd uintptr) bool {
		for done < len(p) && err == nil {
			var n int
			if n, err = ignoringEINTR(unix.Write, fd, p[done:]); err == unix.EAGAIN {
				err = nil
				return false
			}
			done += max(n, 0)
		}
		return true
	})
	if werr == nil {
		werr = os.NewSyscallError("write", err)
	}
	return done, werr
}

func ignoringEINTR(call func(fd int, p []byte) (int, error), fd uintptr, p []byte) (int, error) {
	for {
		if n, err := call(int(fd), p); err != unix.EINTR {
			return n, err
		}
	}
}

// CloseWrite tells the client that nothing more is sent.
func (q *quiet) CloseWrite() error {
	if err := q.use(); err != nil {
		return err
	}
	defer q.mu.RUnlock()
	return os.NewSyscallError("shutdown", unix.Shutdown(q.fd, unix.SHUT_WR))
}

// Close implements net.Conn. Who waits is woken.
func (q *quiet) Close() error {
	if q.closed.Swap(true) {
		return net.ErrClosed
	}
	err := errors.Join(q.in.file.Close(), q.out.file.Close())
	q.mu.Lock()
	defer q.mu.Unlock()
	return errors.Join(err, unix.Close(q.fd))
}

// LocalAddr and RemoteAddr implement net.Conn.
func (q *quiet) LocalAddr() net.Addr  { return q.local }
func (q *quiet) RemoteAddr() net.Addr { return q.remote }

// SetDeadline implements net.Conn.
func (q *quiet) SetDeadline(t time.Time) error {
	return errors.Join(q.SetReadDeadline(t), q.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (q *quiet) SetReadDeadline(t time.Time) error { return q.told(q.in.file.SetReadDeadline(t)) }

// SetWriteDeadline implements net.Conn: who writes waits to read from out.
func (q *quiet) SetWriteDeadline(t time.Time) error { return q.told(q.out.file.SetReadDeadline(t)) }
