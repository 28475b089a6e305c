package nbd

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// quiet is a UNIX socket that wakes its server for what arrives and for nothing
// else. The runtime's poller watches every socket in both directions, and a
// UNIX socket reports room to send each time that its peer has read something:
// one wake-up too many for each reply. Here the poller has an epoll instance in
// the socket's place, which watches for reading only; another one watches for
// room, while somebody waits for it.
type quiet struct {
	local, remote net.Addr

	// fd is in use by those who hold mu shared; Close takes it for itself.
	mu sync.RWMutex
	fd int

	// One reads and one writes at a time. What they want to call is kept here,
	// for functions that are made once: a request allocates nothing.
	reading, writing  sync.Mutex
	readFn, writeFn   func(fd uintptr) bool
	inReady, outReady func(uintptr) bool
	in                *watcher
	out               *watcher // made when it is first needed

	state    sync.Mutex // over what follows, and the making of out
	closed   bool
	deadline time.Time // of writing
}

// watcher is an epoll instance that the runtime's poller watches.
type watcher struct {
	file *os.File
	rc   syscall.RawConn

	// The call under way, for ctl, which is made once.
	ctl   func(ep uintptr)
	op    int
	fd    int
	event unix.EpollEvent
	err   error
}

func newWatcher() (*watcher, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(ep, true); err != nil { // or the poller does not take it
		return nil, errors.Join(err, unix.Close(ep))
	}
	w := &watcher{file: os.NewFile(uintptr(ep), "epoll")}
	w.ctl = func(ep uintptr) { w.err = unix.EpollCtl(int(ep), w.op, w.fd, &w.event) }
	if w.rc, err = w.file.SyscallConn(); err != nil {
		return nil, errors.Join(err, w.file.Close())
	}
	return w, nil
}

func (w *watcher) add(fd int, events uint32) error {
	w.op, w.fd, w.event = unix.EPOLL_CTL_ADD, fd, unix.EpollEvent{Events: events, Fd: int32(fd)}
	return w.control()
}

func (w *watcher) remove() error {
	w.op = unix.EPOLL_CTL_DEL
	return w.control()
}

// control changes what is watched, unless the watcher has been closed.
func (w *watcher) control() error {
	if closed := w.rc.Control(w.ctl); closed != nil {
		return closed
	}
	return os.NewSyscallError("epoll_ctl", w.err)
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

func newQuiet(uc *net.UnixConn) (*quiet, error) {
	q := &quiet{local: uc.LocalAddr(), remote: uc.RemoteAddr()}
	q.inReady = func(uintptr) bool { return q.readFn(uintptr(q.fd)) }
	q.outReady = func(uintptr) bool { return q.writeFn(uintptr(q.fd)) }
	rc, err := uc.SyscallConn()
	if err != nil {
		return nil, err
	}
	q.fd = -1
	if e := rc.Control(func(fd uintptr) { q.fd, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) }); e != nil || err != nil {
		return nil, errors.Join(e, err)
	}
	if q.in, err = newWatcher(); err != nil {
		return nil, errors.Join(err, unix.Close(q.fd))
	}
	if err := q.in.add(q.fd, unix.EPOLLIN|unix.EPOLLRDHUP); err != nil {
		return nil, errors.Join(err, q.in.file.Close(), unix.Close(q.fd))
	}
	return q, nil
}

// use keeps fd open until the matching RUnlock of mu.
func (q *quiet) use() error {
	q.mu.RLock()
	if q.fd < 0 {
		q.mu.RUnlock()
		return net.ErrClosed
	}
	return nil
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
	if err := q.writable(); err != nil {
		return err
	}
	if f(uintptr(q.fd)) {
		return nil
	}
	q.writeFn = f
	return q.told(q.waitRoom())
}

// told is err in the words of package net, whose connections q replaces.
func (q *quiet) told(err error) error {
	if err == nil {
		return nil
	}
	q.state.Lock()
	defer q.state.Unlock()
	if q.closed {
		return net.ErrClosed
	}
	return err
}

// writable refuses what comes too late, before it is tried.
func (q *quiet) writable() error {
	q.state.Lock()
	defer q.state.Unlock()
	switch {
	case q.closed:
		return net.ErrClosed
	case !q.deadline.IsZero() && !time.Now().Before(q.deadline):
		return os.ErrDeadlineExceeded
	}
	return nil
}

// waitRoom calls writeFn each time that there is room, until it returns true.
func (q *quiet) waitRoom() error {
	if err := q.makeOut(); err != nil {
		return err
	}
	if err := q.out.add(q.fd, unix.EPOLLOUT); err != nil {
		return err
	}
	if err := q.out.rc.Read(q.outReady); err != nil {
		_ = q.out.remove() // fails where it was closed; the first error says so
		return err
	}
	return q.out.remove()
}

func (q *quiet) makeOut() error {
	q.state.Lock()
	defer q.state.Unlock()
	if q.closed {
		return net.ErrClosed
	}
	if q.out != nil {
		return nil
	}
	w, err := newWatcher()
	if err != nil {
		return err
	}
	if err := w.file.SetReadDeadline(q.deadline); err != nil {
		return errors.Join(err, w.file.Close())
	}
	q.out = w
	return nil
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
	q.state.Lock()
	if q.closed {
		q.state.Unlock()
		return net.ErrClosed
	}
	q.closed = true
	err := q.in.file.Close()
	if q.out != nil {
		err = errors.Join(err, q.out.file.Close())
	}
	q.state.Unlock()
	q.mu.Lock()
	defer q.mu.Unlock()
	err = errors.Join(err, unix.Close(q.fd))
	q.fd = -1
	return err
}

// LocalAddr and RemoteAddr implement net.Conn.
func (q *quiet) LocalAddr() net.Addr  { return q.local }
func (q *quiet) RemoteAddr() net.Addr { return q.remote }

// SetDeadline implements net.Conn.
func (q *quiet) SetDeadline(t time.Time) error {
	return errors.Join(q.SetReadDeadline(t), q.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (q *quiet) SetReadDeadline(t time.Time) error {
	return q.told(q.in.file.SetReadDeadline(t))
}

// SetWriteDeadline implements net.Conn.
func (q *quiet) SetWriteDeadline(t time.Time) error {
	q.state.Lock()
	defer q.state.Unlock()
	q.deadline = t
	switch {
	case q.closed:
		return net.ErrClosed
	case q.out == nil:
		return nil
	}
	return q.out.file.SetReadDeadline(t)
}
