package vhostuser

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/internal/sys"
)

// checkEventFd holds a descriptor for kicks or calls to what it must be. A
// socket, a pipe or a file of the front end's own could make a queue's thread
// wait for as long as the front end likes; an eventfd can be made to go on by
// whoever has it.
func checkEventFd(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	link, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err == nil && link != "anon_inode:[eventfd]" || st.Mode&unix.S_IFMT != 0 {
		return fmt.Errorf("the descriptor is %s: an eventfd is needed", link)
	}
	// Whoever shares it sees this too; those there are all do not mind, and a
	// queue must not sleep because nobody reads what it signals.
	return unix.SetNonblock(fd, true)
}

// unstickEvery is how often the eventfds of a session that ends are emptied.
const unstickEvery = 100 * time.Millisecond

// unstick keeps emptying full eventfds that queues signal, until stop. A front end
// that made its eventfd block and filled it up would otherwise keep the queue,
// and with it the disk, for good.
func unstick(fds []int) (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		t := time.NewTicker(unstickEvery)
		defer t.Stop()
		for {
			select {
			case <-end:
				return
			case <-t.C:
				for _, fd := range fds {
					drain(fd)
				}
			}
		}
	}()
	return func() {
		close(end)
		<-ended
	}
}

// drain empties an eventfd that is full. One that can be signalled is left
// alone: what is in it is for the guest.
func drain(fd int) {
	var b [8]byte
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN | unix.POLLOUT}}
	if n, err := unix.Poll(p, 0); n == 1 && err == nil && p[0].Revents == unix.POLLIN {
		_, _ = unix.Read(fd, b[:])
	}
}

// closeFd closes a descriptor, if there is one.
func closeFd(fd int) {
	if fd >= 0 {
		sys.CloseFd(fd)
	}
}
