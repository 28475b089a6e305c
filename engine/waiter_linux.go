package engine

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// waiter waits for an eventfd of completions and for watched descriptors,
// for the engines that have no ring to do it. Everything is edge triggered:
// nothing is ever read.
type waiter struct {
	epfd, efd int
	watches   [MaxWatch]waiterWatch
	events    [MaxWatch + 1]unix.EpollEvent
	fired     int // watches that Wait saw and Reap has not run yet
}

type waiterWatch struct {
	fired func()
	fd    int32
	hit   bool
}

// ownEvent is the place of the completions' eventfd among the events.
const ownEvent = -1

func newWaiter() (*waiter, error) {
	w := &waiter{epfd: -1, efd: -1}
	var err error
	if w.epfd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("epoll_create1: %w", err)
	}
	if w.efd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		w.close()
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	if err = w.add(w.efd, ownEvent); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func (w *waiter) add(fd, place int) error {
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(place)}
	if err := unix.EpollCtl(w.epfd, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		return fmt.Errorf("epoll: adding descriptor %d: %w", fd, err)
	}
	return nil
}

// Wake is Queue's.
func (w *waiter) Wake() { wakeEventfd(w.efd) }

// wait blocks until an event or for timeout (negative: no limit).
func (w *waiter) wait(timeout time.Duration) error {
	if w.fired > 0 || timeout == 0 {
		return nil
	}
	ms := -1
	if timeout > 0 {
		if err := pollFd(w.epfd, timeout); err != nil {
			return err
		}
		ms = 0
	}
	n, err := unix.EpollWait(w.epfd, w.events[:], ms)
	if err == unix.EINTR {
		return nil
	}
	if err != nil {
		return fmt.Errorf("epoll_wait: %w", err)
	}
	for _, ev := range w.events[:n] {
		if ev.Fd != ownEvent && w.watches[ev.Fd].fired != nil {
			w.watches[ev.Fd].hit = true
			w.fired++
		}
	}
	return nil
}

// reap runs the functions of the watches that wait saw.
func (w *waiter) reap() {
	if w.fired == 0 {
		return
	}
	w.fired = 0
	for i := range w.watches {
		if w.watches[i].hit {
			w.watches[i].hit = false
			w.watches[i].fired()
		}
	}
}

// Watch and Unwatch are Queue's.
func (w *waiter) Watch(fd int, fired func()) error {
	for i := range w.watches {
		if w.watches[i].fired == nil {
			if err := w.add(fd, i); err != nil {
				return err
			}
			w.watches[i] = waiterWatch{fired: fired, fd: int32(fd)}
			return nil
		}
	}
	return fmt.Errorf("a queue watches at most %d descriptors", MaxWatch)
}

func (w *waiter) Unwatch(fd int) {
	for i := range w.watches {
		if w.watches[i].fired != nil && w.watches[i].fd == int32(fd) {
			w.watches[i] = waiterWatch{}
			_ = unix.EpollCtl(w.epfd, unix.EPOLL_CTL_DEL, fd, nil) // a closed descriptor has left by itself
		}
	}
}

func (w *waiter) NotifyFd() int { return w.efd }

func (w *waiter) close() {
	for _, fd := range []int{w.epfd, w.efd} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// pollFd waits until fd is readable, for at most timeout.
func pollFd(fd int, timeout time.Duration) error {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	ts := unix.NsecToTimespec(int64(timeout))
	if _, err := unix.Ppoll(fds, &ts, nil); err != nil && err != unix.EINTR {
		return fmt.Errorf("ppoll: %w", err)
	}
	return nil
}

var eventOne = []byte{1, 0, 0, 0, 0, 0, 0, 0} // the number 1, little-endian as all our Linux machines are

// wakeEventfd adds one to an eventfd. It cannot block: the counter has 64 bits.
func wakeEventfd(efd int) {
	for {
		if _, err := unix.Write(efd, eventOne); err != unix.EINTR {
			return
		}
	}
}
