package vhostuser

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/logpace"
	"github.com/platter-storage/platter/queue"
	"github.com/platter-storage/platter/virtio"
)

// ErrClosed is returned by Serve and Connect after Shutdown.
var ErrClosed = errors.New("vhost-user: closed")

// Device is a virtio block device. One front end at a time uses it; when it
// leaves the next one may.
type Device struct {
	cfg     Config
	log     *slog.Logger
	pace    *logpace.Pace
	jobs    *block.Queue // lends request objects for flushes of our own
	resized chan struct{}
	unwatch func()
	turn    chan struct{} // holds one element while a front end is served
	done    chan struct{} // closed when Shutdown begins

	mu        sync.Mutex // guards what follows
	closing   bool
	current   *session
	listeners map[net.Listener]struct{}
}

// New makes a device that nobody can reach yet.
func New(cfg Config) (*Device, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	d := &Device{
		cfg: cfg, log: cfg.Log.With("disk", cfg.Name), pace: logpace.New(logBurst),
		jobs:    block.NewQueue(cfg.Env, block.NewQueueGroup()), // cfg.Group has the guest's alone: see session.proveFlush
		resized: make(chan struct{}, 1), turn: make(chan struct{}, 1), done: make(chan struct{}),
		listeners: map[net.Listener]struct{}{},
	}
	d.unwatch = cfg.Child.Info().WatchSize(d.noteSize)
	if rest := cfg.Child.Size() % int64(cfg.BlockSize); rest != 0 {
		d.log.Warn("the disk's size is no multiple of its logical blocks: guests do not see what is left over at the end", "block_size", cfg.BlockSize, "bytes_left_over", rest)
	}
	return d, nil
}

// logBurst is how many lines about front ends may come at once.
const logBurst = 40

// noteSize hears that the disk has another size. It does not wait.
func (d *Device) noteSize() {
	select {
	case d.resized <- struct{}{}:
	default:
	}
}

// Bounds of the pause after something failed that may work later.
const (
	minPause = 50 * time.Millisecond
	maxPause = time.Second
)

// secondWait is how long a second front end may wait for the first to leave. A
// virtual machine that is started anew may come before the old one's last
// request has ended.
const secondWait = 10 * time.Second

// Serve lets front ends in that connect to l, which it closes in the end. It
// returns ErrClosed after Shutdown, and otherwise only if l was closed.
func (d *Device) Serve(l net.Listener) error {
	if !d.track(l) {
		l.Close()
		return ErrClosed
	}
	defer d.untrack(l)
	pause := minPause
	for {
		c, err := l.Accept()
		switch {
		case err == nil:
			pause = minPause
			d.admit(c)
		case d.isClosing():
			return ErrClosed
		case errors.Is(err, net.ErrClosed):
			return err
		default:
			d.pace.Warn(d.log, "accepting a front end failed; trying again", "socket", l.Addr(), "error", err)
			d.sleep(pause)
			pause = min(2*pause, maxPause)
		}
	}
}

// admit serves a front end if there is no other, or once the other has left.
func (d *Device) admit(c net.Conn) {
	u, ok := c.(*net.UnixConn)
	if !ok {
		d.log.Warn("a client on a socket that cannot carry descriptors was refused: vhost-user needs a unix socket", "socket", c.LocalAddr())
		c.Close()
		return
	}
	peer := peerName(u)
	if !d.takeTurn(u.LocalAddr(), peer) {
		u.Close()
		return
	}
	go func() {
		defer func() { <-d.turn }()
		d.run(u, peer)
	}()
}

// takeTurn waits until no front end is served.
func (d *Device) takeTurn(socket net.Addr, peer string) bool {
	select {
	case d.turn <- struct{}{}:
		return true
	default:
	}
	first := d.Status().Peer
	d.pace.Info(d.log, "a second front end waits for the first to leave: a device has one at a time", "socket", socket, "front_end", peer, "first", first)
	t := time.NewTimer(d.cfg.wait)
	defer t.Stop()
	select {
	case d.turn <- struct{}{}:
		return true
	case <-d.done:
	case <-t.C:
		d.pace.Warn(d.log, "a second front end was refused: the device is in use: stop the first, or offer the disk on another socket", "socket", socket, "front_end", peer, "first", first)
	}
	return false
}

// run serves one front end to its end.
func (d *Device) run(u *net.UnixConn, peer string) {
	s := newSession(d, u, peer)
	d.mu.Lock()
	if d.closing {
		d.mu.Unlock()
		u.Close()
		return
	}
	d.current = s
	d.mu.Unlock()
	select { // a change that the newcomer cannot have missed
	case <-d.resized:
	default:
	}
	if d.cfg.Came != nil {
		d.cfg.Came()
	}
	s.run()
	d.mu.Lock()
	d.current = nil
	d.mu.Unlock()
	if d.cfg.Left != nil {
		d.cfg.Left()
	}
}

// arrived logs who came.
func (d *Device) arrived(s *session) {
	d.pace.Info(s.log, "a front end has connected")
}

// Connect goes to a front end that listens at path, and again whenever it has
// left, until Shutdown. It returns ErrClosed.
func (d *Device) Connect(path string) error {
	pause, told := minPause, false
	for !d.isClosing() {
		u, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			if !told {
				told = true
				d.log.Info("no front end listens yet: trying again until one does", "socket", path, "error", err)
			}
			d.sleep(pause)
			pause = min(2*pause, maxPause)
			continue
		}
		pause, told = minPause, false
		select {
		case d.turn <- struct{}{}:
			d.run(u, peerName(u))
			<-d.turn
			d.sleep(minPause)
		case <-d.done: // the turn is Shutdown's for good
			u.Close()
		}
	}
	return ErrClosed
}

func (d *Device) sleep(t time.Duration) {
	timer := time.NewTimer(t)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-d.done:
	}
}

func (d *Device) track(l net.Listener) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closing {
		d.listeners[l] = struct{}{}
	}
	return !d.closing
}

func (d *Device) untrack(l net.Listener) {
	l.Close()
	d.mu.Lock()
	delete(d.listeners, l)
	d.mu.Unlock()
}

func (d *Device) isClosing() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closing
}

// Shutdown lets nobody in any more, lets requests in flight finish and be
// published, and disconnects the front end. After an error the disk is still
// in use: storage has not finished some request.
func (d *Device) Shutdown(ctx context.Context) error {
	d.mu.Lock()
	if !d.closing {
		d.closing = true
		close(d.done)
	}
	for l := range d.listeners {
		l.Close()
	}
	if d.current != nil {
		d.current.conn.Close()
	}
	d.mu.Unlock()
	select {
	case d.turn <- struct{}{}: // for good: nobody comes after us
	case <-ctx.Done():
		return fmt.Errorf("vhost-user: disk %s: the front end is disconnected, but storage has not finished its requests: do not close the disk yet", d.cfg.Name)
	}
	d.unwatch()
	d.jobs.Close()
	return nil
}

// queueConfig is that of one of the device's queues.
func (d *Device) queueConfig(index, depth int) queue.Config {
	c := &d.cfg
	return queue.Config{
		Child: c.Child, Group: c.Group, Env: c.Env, Name: c.Name, Index: index, Depth: depth,
		Poll: c.Poll, Serial: c.Serial, Limiter: c.Limiter, Log: c.Log,
	}
}

// disk is what requests are checked against.
func (s *session) disk() virtio.BlkDisk {
	c := &s.d.cfg
	sectors, ranges := c.limits()
	return virtio.BlkDisk{
		Capacity: c.Child.Size(), Features: s.features | c.offered()&virtio.BlkFeatureRO,
		MaxDiscardSectors: sectors, MaxDiscardSeg: ranges,
		MaxWriteZeroesSectors: sectors, MaxWriteZeroesSeg: ranges,
	}
}

// peerName is what to call a front end in messages.
func peerName(u *net.UnixConn) string {
	name := "a process that cannot be seen from here"
	rc, err := u.SyscallConn()
	if err != nil {
		return name
	}
	_ = rc.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil && cred.Pid > 0 {
			name = fmt.Sprintf("process %d of user %d", cred.Pid, cred.Uid)
		}
	})
	return name
}
