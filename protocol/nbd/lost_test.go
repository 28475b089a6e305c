package nbd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/block/blocktest"
	export "github.com/platter-storage/platter/export/nbd"
	wire "github.com/platter-storage/platter/wire/nbd"
)

// stalling is a disk that can be told to keep requests.
func stalling(t testing.TB, env *block.Env, size int64) (*blocktest.Emulator, *block.Instance) {
	t.Helper()
	e := blocktest.NewEmulator(t, blocktest.EmulatorConfig{Size: size})
	return e, blocktest.Attach(t, env, e, "emulator")
}

func (s *server) client(t testing.TB, vals block.Values) (*block.Instance, *blocktest.Client) {
	t.Helper()
	in := blocktest.Open(t, s.in.Env(), s.values(vals), nil)
	return in, blocktest.NewClient(t, blocktest.Edge(t, in))
}

// Without reconnect-delay requests that a server takes with it fail, and once
// it is back new ones go on. A flush does not: what was in doubt stays so.
func TestServerGoes(t *testing.T) {
	env := blocktest.NewEnv(t)
	s := serve(t, memory(t, env, "1M"), export.Config{}, export.Export{})
	in, c := s.client(t, block.Values{"connections": "1"})
	b := bytes.Repeat([]byte{1}, 4096)
	if err := c.Write(0, 0, b); err != nil {
		t.Fatal(err)
	}
	s.stop()
	await(t, "the loss", func() bool { up, _ := connections(t, in); return up == 0 })
	if err := c.Read(0, b); !errors.Is(err, syscall.ENOTCONN) || !strings.Contains(err.Error(), "reconnect-delay") {
		t.Errorf("read: %v, want ENOTCONN and what to do", err)
	}
	if err := c.Flush(); !errors.Is(err, syscall.ENOTCONN) {
		t.Errorf("flush: %v, want ENOTCONN", err)
	}
	s.start()
	await(t, "the server", func() bool { up, _ := connections(t, in); return up == 1 })
	if err := c.Read(0, b); err != nil || b[0] != 1 {
		t.Errorf("read once it is back: %v", err)
	}
	if err := c.Flush(); err == nil {
		t.Error("a flush succeeds after one that failed")
	}
}

// Connections that are lost with requests in flight, again and again, lose no
// request and no byte.
func TestConnectionsAreLost(t *testing.T) {
	for _, connections := range []string{"1", "3"} {
		env := blocktest.NewEnv(t)
		s := serve(t, memory(t, env, "1M"), export.Config{}, export.Export{})
		_, c := s.client(t, block.Values{"reconnect-delay": "3600", "connections": connections})
		var stop atomic.Bool
		var rounds atomic.Int64
		var workers sync.WaitGroup
		for w := range 6 {
			workers.Go(func() { churn(t, c, int64(w)*131072, 100000+w, &stop, &rounds) })
		}
		for i := range 8 {
			seen := rounds.Load()
			await(t, "progress", func() bool { return rounds.Load() >= seen+10 || t.Failed() })
			if s.cut(); i%4 == 3 {
				s.stop()
				s.start()
			}
		}
		stop.Store(true)
		workers.Wait()
		if err := c.Flush(); err != nil {
			t.Errorf("%s connections: flush: %v", connections, err)
		}
	}
}

// churn writes and reads back, until stop.
func churn(t *testing.T, c *blocktest.Client, off int64, n int, stop *atomic.Bool, rounds *atomic.Int64) {
	want, got := make([]byte, n), make([]byte, n)
	for seed := uint64(off); !stop.Load(); seed++ {
		blocktest.Pattern(want, seed)
		if err := errors.Join(c.Write(off, 0, want), c.Read(off, got)); err != nil || !bytes.Equal(want, got) {
			t.Errorf("at %d: %v, or other bytes", off, err)
			return
		}
		rounds.Add(1)
	}
}

// After-loss says what a flush is worth on another connection than the one on
// which writes were acknowledged.
func TestAfterLoss(t *testing.T) {
	for _, c := range []struct {
		policy string
		write  bool // before the loss, unflushed
		flags  block.Flags
		ok     bool
	}{
		{"trust", true, 0, true},
		{"fail", true, 0, false},
		{"fail", true, block.FUA, true},
		{"fail", false, 0, true},
	} {
		env := blocktest.NewEnv(t)
		s := serve(t, memory(t, env, "1M"), export.Config{}, export.Export{})
		in, cl := s.client(t, block.Values{"reconnect-delay": "3600", "connections": "1", "after-loss": c.policy})
		b := make([]byte, 4096)
		if err := errors.Join(cl.Write(0, 0, b), cl.Flush()); err != nil {
			t.Fatal(err)
		}
		if c.write {
			if err := cl.Write(0, c.flags, b); err != nil {
				t.Fatal(err)
			}
		}
		s.stop()
		await(t, "the loss", func() bool { up, _ := connections(t, in); return up == 0 })
		s.start()
		if err := errors.Join(cl.Read(0, b), cl.Write(4096, 0, b)); err != nil {
			t.Fatal(err)
		}
		if err := cl.Flush(); (err == nil) != c.ok {
			t.Errorf("%+v: flush: %v", c, err)
		}
	}
}

// A request that waits for a server ends with its context.
func TestContext(t *testing.T) {
	env := blocktest.NewEnv(t)
	s := serve(t, memory(t, env, "1M"), export.Config{}, export.Export{})
	in, c := s.client(t, block.Values{"reconnect-delay": "3600", "connections": "1"})
	s.stop()
	await(t, "the loss", func() bool { up, _ := connections(t, in); return up == 0 })
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- c.Do(block.OpRead, func(rq *block.Req) error {
			rq.SetContext(ctx)
			return c.Child.Preadv(rq, 0, block.Vec{make([]byte, 512)}, 0)
		})
	}()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want the end of the context", err)
	}
}

// A server that comes back with more disk is used so; with less it is not.
func TestSizeChanges(t *testing.T) {
	env := blocktest.NewEnv(t)
	small, large := memory(t, env, "1M"), memory(t, env, "2M")
	s := serve(t, small, export.Config{}, export.Export{})
	in, c := s.client(t, block.Values{"connections": "1"})
	s.stop()
	s.in = large
	s.start()
	await(t, "the new size", func() bool { return in.Info().Size() == 2<<20 })
	if err := c.Write(2<<20-512, 0, make([]byte, 512)); err != nil {
		t.Error(err)
	}
	s.stop()
	s.in = small
	s.start()
	await(t, "a refusal", func() bool { return strings.Contains(explained(in), "it may be another disk") })
	if err := c.Read(0, make([]byte, 512)); err == nil {
		t.Error("a smaller disk is read from")
	}
}

// A server that answers nothing counts as lost after request-timeout.
func TestRequestTimeout(t *testing.T) {
	env := blocktest.NewEnv(t)
	e, below := stalling(t, env, 1<<20)
	s := serve(t, below, export.Config{}, export.Export{})
	_, c := s.client(t, block.Values{"request-timeout": "1", "connections": "1"})
	stall := e.Stall(block.OpRead, 0, 4096, 1)
	ended := make(chan error, 1)
	go func() { ended <- c.Read(0, make([]byte, 4096)) }()
	stall.Held()
	if err := <-ended; !errors.Is(err, syscall.ENOTCONN) || !strings.Contains(err.Error(), "answered nothing") {
		t.Errorf("%v, want that it answered nothing", err)
	}
	stall.Release()
}

// fake is a server that does the handshake and leaves the rest to serve.
func fake(t *testing.T, serve func(s *wire.Session)) block.Values {
	t.Helper()
	socket := filepath.Join(shortDir(t), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	t.Cleanup(func() { l.Close(); all.Wait() })
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer conn.Close()
				if s, err := wire.ServerHandshake(conn, &wire.ServerConfig{Exports: onlyExport{}}); err == nil && s != nil {
					serve(s)
				}
			})
		}
	})
	return block.Values{"driver": "nbd", "path": socket, "connections": "1"}
}

type onlyExport struct{}

func (onlyExport) Find(string) (wire.ExportInfo, bool) {
	return wire.ExportInfo{Size: 1 << 20, Flags: wire.FlagHasFlags | wire.FlagSendFlush}, true
}
func (o onlyExport) List() []wire.ExportInfo { return nil }

// A server that lies is left for good: one clear error for all requests.
func TestServerLies(t *testing.T) {
	for name, answer := range map[string][]byte{
		"no reply":       []byte("HTTP/1.1 400 Bad Request\r\n\r\nHTTP/1.1 400 Bad Request"),
		"unknown cookie": {0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9},
		"wrong chunk":    {0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 5, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0xff},
	} {
		vals := fake(t, func(s *wire.Session) {
			b := make([]byte, 64)
			if _, err := s.Conn.Read(b); err == nil {
				s.Conn.Write(append(answer, make([]byte, 64)...))
				io.Copy(io.Discard, s.Conn)
			}
		})
		vals["reconnect-delay"] = "3600"
		c := blocktest.NewClient(t, blocktest.Edge(t, blocktest.Open(t, blocktest.NewEnv(t), vals, nil)))
		for range 3 {
			if err := c.Read(0, make([]byte, 512)); !errors.Is(err, syscall.EPROTO) {
				t.Errorf("%s: %v, want EPROTO", name, err)
			}
		}
	}
}

// A server that hangs up on the same request each time is tried for as long as
// reconnect-delay says, not for ever.
func TestServerAlwaysGoes(t *testing.T) {
	vals := fake(t, func(s *wire.Session) { s.Conn.Read(make([]byte, 64)) })
	vals["reconnect-delay"] = "1"
	c := blocktest.NewClient(t, blocktest.Edge(t, blocktest.Open(t, blocktest.NewEnv(t), vals, nil)))
	if err := c.Read(0, make([]byte, 512)); !errors.Is(err, syscall.ENOTCONN) {
		t.Errorf("%v, want ENOTCONN", err)
	}
}
