package nbd

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/block/blocktest"
	wire "github.com/platter-storage/platter/wire/nbd"
)

// shutdown ends the server, which may take a minute if it must; the test fails
// where it takes half of it.
func shutdown(t *testing.T, r *rig, what string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	began := time.Now()
	if err := r.Shutdown(ctx); err != nil {
		t.Errorf("%s: %v", what, err)
	}
	if d := time.Since(began); d > 30*time.Second {
		t.Errorf("%s: the end took %v", what, d)
	}
}

// A client that asks for much and reads nothing does not hold up the end, and
// the log says who it was.
func TestEndDoesNotWaitForWhoDoesNotRead(t *testing.T) {
	for _, kind := range []string{"mem", "cached", "emulator"} {
		for _, network := range []string{"unix", "tcp"} {
			env := blocktest.NewEnv(t)
			var child *block.Child
			if kind == "emulator" {
				_, child = emulated(t, env, blocktest.EmulatorConfig{Size: 64 * mib, Fast: true})
			} else {
				child = disk(t, env, map[string]string{"mem": "mem", "cached": "file"}[kind], 64*mib)
			}
			r := newRig(t, env, Config{}, Export{Child: child})
			r.unreadWait = 300 * time.Millisecond
			nc := r.connect()
			if network == "tcp" {
				nc = r.connectTCP()
			}
			s, err := wire.ClientHandshake(nc, wire.ClientConfig{})
			if err != nil {
				t.Fatal(err)
			}
			for k := range uint64(64) {
				if _, err := s.Conn.Write(request(wire.CmdRead, 0, k, 0, 4*mib)); err != nil {
					t.Fatal(err)
				}
			}
			awaitUnread(t, r)
			shutdown(t, r, kind+", "+network)
			if !strings.Contains(r.log.String(), "client cut: it does not read its answers\" peer=") {
				t.Errorf("%s, %s: nothing says who was cut: %s", kind, network, r.log.String())
			}
		}
	}
}

// awaitUnread waits until the server cannot send for as long as it takes a
// socket to move what is on its way: one look may hit a moment in which buffers
// grow, and all that was asked for so far would fit into them then.
func awaitUnread(t *testing.T, r *rig) {
	t.Helper()
	blocked := 0
	waitFor(t, "answers that nobody reads", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		for c := range r.conns {
			if !blocksWriter(c.nc) {
				blocked = 0
				return false
			}
		}
		blocked++
		time.Sleep(10 * time.Millisecond)
		return blocked > 20 && len(r.conns) > 0
	})
}

// connectTCP makes the server listen on TCP too, and connects there, with a
// receive buffer that is small and stays so.
func (r *rig) connectTCP() net.Conn {
	r.t.Helper()
	l, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		r.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- r.Serve(l) }()
	r.t.Cleanup(func() { <-ended })
	small := net.Dialer{Control: func(_, _ string, rc syscall.RawConn) error {
		var bad error
		err := rc.Control(func(fd uintptr) { bad = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 16<<10) })
		return errors.Join(err, bad)
	}}
	nc, err := small.Dial("tcp", l.Addr().String())
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { nc.Close() })
	return nc
}

// A client whose request takes long in the storage is waited for, and gets its
// answer, however little is sent to it meanwhile.
func TestEndWaitsForWhatTheStorageTakes(t *testing.T) {
	env := blocktest.NewEnv(t)
	e, child := emulated(t, env, blocktest.EmulatorConfig{Size: mib, Fast: true})
	r := newRig(t, env, Config{}, Export{Child: child})
	r.unreadWait = 100 * time.Millisecond
	c := r.raw(wire.ClientConfig{})
	stall := e.Stall(block.OpRead, 0, 0, 1)
	c.send(request(wire.CmdRead, 0, 7, 0, 4096))
	stall.Held()
	go func() {
		time.Sleep(5 * unreadLook) // looks that must not count
		stall.Release()
	}()
	shutdown(t, r, "a slow read")
	if got := c.recv(16 + 4096); !bytes.Equal(got[8:16], []byte{0, 0, 0, 0, 0, 0, 0, 7}) {
		t.Errorf("the answer is %x", got[:16])
	}
	if strings.Contains(r.log.String(), "client cut") {
		t.Errorf("log: %s", r.log.String())
	}
}
