package nbd

import (
	"bytes"
	"errors"
	"io"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// quietPair is a quiet socket and its peer.
func quietPair(t *testing.T) (*quiet, *net.UnixConn) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	peer, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	nc, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	q, ok := quieten(nc).(*quiet)
	if !ok {
		t.Fatal("a UNIX socket was not taken over")
	}
	t.Cleanup(func() {
		q.Close()
		peer.Close()
	})
	return q, peer.(*net.UnixConn)
}

// What the peer takes out of the socket is no event; what it sends is one.
func TestQuietSocketHearsOnlyWhatArrives(t *testing.T) {
	q, peer := quietPair(t)
	ready := func() int {
		n := -1
		if err := q.in.rc.Control(func(ep uintptr) {
			n, _ = unix.EpollWait(int(ep), make([]unix.EpollEvent, 1), 0)
		}); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if _, err := q.Write(make([]byte, 4096)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(peer, make([]byte, 4096)); err != nil {
		t.Fatal(err)
	}
	if n := ready(); n != 0 {
		t.Errorf("%d events after the peer had read", n)
	}
	if _, err := peer.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if n := ready(); n != 1 {
		t.Errorf("%d events after the peer had sent a byte", n)
	}
}

// More than the socket holds goes through in both directions at once.
func TestQuietSocketMovesBytes(t *testing.T) {
	q, peer := quietPair(t)
	want := bytes.Repeat([]byte("0123456789abcde\n"), 1<<17)
	var wg sync.WaitGroup
	send := func(w io.Writer) {
		if n, err := w.Write(want); n != len(want) || err != nil {
			t.Errorf("%d of %d bytes written: %v", n, len(want), err)
		}
	}
	take := func(r io.Reader) {
		got := make([]byte, len(want))
		if _, err := io.ReadFull(r, got); err != nil || !bytes.Equal(got, want) {
			t.Errorf("other bytes arrived (%v)", err)
		}
	}
	for range 3 {
		wg.Go(func() { send(q) })
		wg.Go(func() { send(peer) })
		wg.Go(func() { take(q) })
		wg.Go(func() { take(peer) })
		wg.Wait()
	}
	if err := q.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if n, err := peer.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("behind the end the peer read %d bytes: %v", n, err)
	}
	peer.Close()
	if n, err := q.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("behind the end %d bytes were read: %v", n, err)
	}
}

// outQueued is what the peer has not read yet, in bytes.
func outQueued(t *testing.T, q *quiet) (n int) {
	t.Helper()
	if err := (quietConn{q}).Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCOUTQ) }); err != nil {
		t.Fatal(err)
	}
	return n
}

// A client that is connected does not feel that there are no more descriptors.
func TestQuietSocketNeedsNoMoreDescriptors(t *testing.T) {
	q, peer := quietPair(t)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	none := limit
	none.Cur = 3
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	got := make(chan error, 1)
	go func() {
		_, err := io.CopyN(io.Discard, peer, 8<<20)
		got <- err
	}()
	if n, err := q.Write(make([]byte, 8<<20)); n != 8<<20 || err != nil {
		t.Errorf("%d bytes were written: %v", n, err)
	}
	if err := <-got; err != nil {
		t.Error(err)
	}
}

// Deadlines end reading and writing, before they wait and while they do.
func TestQuietSocketDeadlines(t *testing.T) {
	q, _ := quietPair(t)
	big := make([]byte, 64<<20)
	for _, at := range []time.Duration{-time.Second, 20 * time.Millisecond} {
		if err := q.SetDeadline(time.Now().Add(at)); err != nil {
			t.Fatal(err)
		}
		if _, err := q.Read(make([]byte, 1)); !isTimeout(err) {
			t.Errorf("deadline %v: read: %v", at, err)
		}
		if n, err := q.Write(big); !isTimeout(err) {
			t.Errorf("deadline %v: write: %d bytes, %v", at, n, err)
		}
	}
	if err := q.SetDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
}

// Close wakes who reads and who writes, and leaves no descriptor.
func TestQuietSocketCloses(t *testing.T) {
	before := descriptors(t)
	q, peer := quietPair(t)
	if _, err := q.Write(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	errs := make(chan error, 2)
	go func() {
		_, err := q.Read(make([]byte, 1))
		errs <- err
	}()
	go func() {
		_, err := q.Write(make([]byte, 64<<20))
		errs <- err
	}()
	waitFor(t, "the writer to wait for room", func() bool {
		free := q.writing.TryLock()
		if free {
			q.writing.Unlock()
		}
		return !free && outQueued(t, q) > 0
	})
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-errs; !errors.Is(err, net.ErrClosed) {
			t.Errorf("woken with %v", err)
		}
	}
	if err := q.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed twice: %v", err)
	}
	if _, err := q.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("read after close: %v", err)
	}
	if _, err := q.Write(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("write after close: %v", err)
	}
	peer.Close()
	if after := descriptors(t); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}
