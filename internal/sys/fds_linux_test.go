package sys

import (
	"bytes"
	"errors"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func TestFdsTravel(t *testing.T) {
	c, fd, err := SocketPair()
	if err != nil {
		t.Fatal(err)
	}
	other, err := UnixConn(fd)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if n, err := SendFds(c, []byte("hello"), []int{int(w.Fd()), int(w.Fd())}); n != 5 || err != nil {
		t.Fatal(n, err)
	}
	w.Close()
	b, oob := make([]byte, 5), make([]byte, RightsRoom)
	n, fds, err := RecvFds(other, b, oob)
	if err != nil || !bytes.Equal(b[:n], []byte("hello")) || len(fds) != 2 {
		t.Fatal(n, fds, err)
	}
	if fl, err := unix.FcntlInt(uintptr(fds[0]), unix.F_GETFD, 0); err != nil || fl&unix.FD_CLOEXEC == 0 {
		t.Errorf("descriptor flags %#x, %v: a received descriptor must not be inherited", fl, err)
	}
	if _, err := unix.Write(fds[0], []byte("x")); err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		CloseFd(fd)
	}
	if got, err := io.ReadAll(r); err != nil || string(got) != "x" {
		t.Errorf("through the pipe: %q, %v", got, err)
	}
	c.Close()
	if _, _, err := RecvFds(other, b, oob); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v, want io.EOF", err)
	}
}

// A process without room for descriptors is told so; what did arrive is handed
// over to be closed.
func TestFdsLost(t *testing.T) {
	c, fd, err := SocketPair()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	other, err := UnixConn(fd)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := SendFds(c, []byte("x"), []int{0, 0, 0}); err != nil {
		t.Fatal(err)
	}
	n, fds, err := RecvFds(other, make([]byte, 1), make([]byte, unix.CmsgSpace(4)))
	if n != 1 || !errors.Is(err, ErrFdsLost) {
		t.Errorf("%d bytes, error %v: want 1 and ErrFdsLost", n, err)
	}
	for _, fd := range fds {
		CloseFd(fd)
	}
}

func TestUnixConnOfOtherThings(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fd, err := unix.Dup(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := UnixConn(fd); err == nil {
		t.Error("a file became a connection")
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
		t.Error("the descriptor is still open")
	}
	for _, family := range []int{unix.AF_INET, unix.AF_UNIX} {
		kind := map[int]int{unix.AF_INET: unix.SOCK_STREAM, unix.AF_UNIX: unix.SOCK_DGRAM}[family]
		s, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := UnixConn(s); err == nil {
			t.Errorf("a socket of family %d and type %d became a unix stream", family, kind)
		}
	}
	if _, err := UnixConn(-1); err == nil {
		t.Error("descriptor -1 became a connection")
	}
}
