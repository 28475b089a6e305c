package sys

import "golang.org/x/sys/unix"

var eventOne = [8]byte{1} // the number 1, little-endian as all our Linux machines are

// SignalEvent adds one to the eventfd fd. It does not wait where the descriptor
// is non-blocking, as it should be: a counter that is full is a signal that
// has not been taken yet, and no error.
func SignalEvent(fd int) error {
	for {
		switch _, err := unix.Write(fd, eventOne[:]); err {
		case nil, unix.EAGAIN:
			return nil
		case unix.EINTR:
		default:
			return err
		}
	}
}
