package sys

import (
	"errors"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxRights is how many descriptors the kernel passes with one message at most
// (SCM_MAX_FD).
const maxRights = 253

// RightsRoom is the length in bytes of the control buffer that RecvFds wants:
// with it nothing is cut off for lack of room.
var RightsRoom = unix.CmsgSpace(4 * maxRights)

// ErrFdsLost says that descriptors came that this process had no room for.
var ErrFdsLost = errors.New("descriptors that came with the message were lost: the process has too many open: raise ulimit -n")

// CloseFd closes a descriptor that came over a socket.
func CloseFd(fd int) {
	// Nothing can be done about an error, and the descriptor is gone.
	_ = unix.Close(fd)
}

// SendFds sends the beginning of b with the descriptors fds, and says how much
// of it. The descriptors stay the caller's.
func SendFds(c *net.UnixConn, b []byte, fds []int) (int, error) {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	n, _, err := c.WriteMsgUnix(b, oob, nil)
	return n, err
}

// RecvFds receives some of the bytes that are on their way, into b, and the
// descriptors that came with them, which are the caller's even with an error.
// oob has RightsRoom bytes. The end of the stream is io.EOF.
func RecvFds(c *net.UnixConn, b, oob []byte) (n int, fds []int, err error) {
	n, oobn, flags, _, err := c.ReadMsgUnix(b, oob)
	if oobn > 0 {
		var bad error
		if fds, bad = parseRights(oob[:oobn]); bad != nil && err == nil {
			err = bad
		}
	}
	if flags&unix.MSG_CTRUNC != 0 && err == nil {
		err = ErrFdsLost
	}
	return n, fds, err
}

// parseRights takes the descriptors out of a control buffer.
func parseRights(oob []byte) (fds []int, err error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for i := range messages {
		if messages[i].Header.Level != unix.SOL_SOCKET || messages[i].Header.Type != unix.SCM_RIGHTS {
			continue
		}
		some, bad := unix.ParseUnixRights(&messages[i])
		fds = append(fds, some...)
		if bad != nil && err == nil {
			err = bad
		}
	}
	return fds, err
}

// UnixConn makes a connection of a stream socket's descriptor, which it takes
// over, also when it fails.
func UnixConn(fd int) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), "socket")
	if f == nil {
		return nil, syscall.EBADF
	}
	defer f.Close()
	if kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE); err != nil || kind != unix.SOCK_STREAM {
		return nil, errors.Join(errors.New("the descriptor is no stream socket"), err)
	}
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, errors.New("the descriptor is no unix socket")
	}
	return u, nil
}

// SocketPair makes two unix stream sockets that are connected: a connection,
// and the descriptor of its other end, to be sent to somebody.
func SocketPair() (c *net.UnixConn, fd int, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, -1, err
	}
	c, err = UnixConn(pair[0])
	if err != nil {
		CloseFd(pair[1])
		return nil, -1, err
	}
	return c, pair[1], nil
}
