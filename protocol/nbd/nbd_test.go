package nbd

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/block/blocktest"
	export "github.com/platter-storage/platter/export/nbd"
	"github.com/platter-storage/platter/internal/testutil"
	_ "github.com/platter-storage/platter/protocol/mem"
)

// patience bounds waiting for what must come.
const patience = 30 * time.Second

// server is one of ours on a unix socket. It can go and come back.
type server struct {
	t      testing.TB
	socket string
	in     *block.Instance
	cfg    export.Config
	exp    export.Export

	srv   *export.Server
	child *block.Child
	ended chan error

	mu    sync.Mutex
	conns []net.Conn // of this life
}

// shortDir is a folder with a short name: a socket's path has few bytes.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "nbc")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// serve offers a node until the test ends.
func serve(t testing.TB, in *block.Instance, cfg export.Config, exp export.Export) *server {
	t.Helper()
	s := &server{t: t, socket: filepath.Join(shortDir(t), "s"), in: in, cfg: cfg, exp: exp}
	s.start()
	t.Cleanup(s.stop)
	return s
}

// Accept keeps what it accepts, so that a test can cut it.
type keeper struct {
	net.Listener
	s *server
}

func (k keeper) Accept() (net.Conn, error) {
	c, err := k.Listener.Accept()
	if err == nil {
		k.s.mu.Lock()
		k.s.conns = append(k.s.conns, c)
		k.s.mu.Unlock()
	}
	return c, err
}

func (s *server) start() {
	s.t.Helper()
	perm := block.PermRead
	if !s.in.Info().ReadOnly && !s.exp.ReadOnly {
		perm |= block.PermWrite
	}
	var err error
	if s.child, err = s.in.NewChild("export", block.RoleRoot, perm, block.PermAll); err != nil {
		s.t.Fatal(err)
	}
	s.cfg.Env = s.in.Env()
	s.cfg.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	if s.srv, err = export.New(s.cfg); err != nil {
		s.t.Fatal(err)
	}
	exp := s.exp
	exp.Child = s.child
	if err := s.srv.AddExport(exp); err != nil {
		s.t.Fatal(err)
	}
	os.Remove(s.socket)
	l, err := net.Listen("unix", s.socket)
	if err != nil {
		s.t.Fatal(err)
	}
	ended, srv := make(chan error, 1), s.srv
	s.ended = ended
	go func() { ended <- srv.Serve(keeper{l, s}) }()
}

// cut ends all connections in the middle of what they do.
func (s *server) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		c.Close()
	}
	s.conns = nil
}

func (s *server) stop() {
	if s.srv == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := s.srv.Shutdown(ctx); err != nil {
		s.t.Errorf("shutdown: %v", err)
	}
	if err := <-s.ended; !errors.Is(err, export.ErrServerClosed) {
		s.t.Errorf("serve ended with %v", err)
	}
	s.child.Close()
	s.srv, s.conns = nil, nil
}

// values are the options for a client of s.
func (s *server) values(more block.Values) block.Values {
	vals := block.Values{"driver": "nbd", "path": s.socket}
	for k, v := range more {
		vals[k] = v
	}
	return vals
}

func memory(t testing.TB, env *block.Env, size string) *block.Instance {
	t.Helper()
	return blocktest.Open(t, env, block.Values{"driver": "mem", "size": size}, nil)
}

// Reads and writes allocate nothing, once both sides have made what they make
// once. The server runs in this process and makes some of it when it finds that
// requests are slow, so that one short round of many must be free of allocations:
// what each request costs would be in all of them.
func TestNoAllocations(t *testing.T) {
	env := blocktest.NewEnv(t)
	s := serve(t, memory(t, env, "1M"), export.Config{}, export.Export{})
	for _, places := range []int{1, 3} {
		in, c := s.client(t, block.Values{"connections": fmt.Sprint(places)})
		await(t, "all connections", func() bool { up, _ := connections(t, in); return up == places })
		for _, n := range []int{512, 64 << 10, 1 << 20} {
			v := block.Vec{make([]byte, n)}
			for name, f := range map[string]func(rq *block.Req) error{
				"read":  func(rq *block.Req) error { return c.Child.Preadv(rq, 0, v, 0) },
				"write": func(rq *block.Req) error { return c.Child.Pwritev(rq, 0, v, 0) },
			} {
				least := 1.0
				for round := 0; round < 200 && least > 0; round++ {
					least = min(least, testing.AllocsPerRun(10, func() {
						if err := c.Do(block.OpRead, f); err != nil {
							t.Fatal(err)
						}
					}))
				}
				if least > 0 {
					t.Errorf("%s of %d bytes over %d connections: each of 200 rounds has allocations", name, n, places)
				}
			}
		}
	}
}

// connections is how many there are, and how many there are to be.
func connections(t testing.TB, in *block.Instance) (up, places int) {
	t.Helper()
	lines := in.Info().Abilities.Explain()
	if _, err := fmt.Sscanf(lines[1], "nbd: %d of %d connections", &up, &places); err != nil {
		t.Fatalf("%q: %v", lines[1], err)
	}
	return up, places
}

// explained is all that a node says of itself.
func explained(in *block.Instance) string {
	return strings.Join(in.Info().Abilities.Explain(), "\n")
}

// await waits until f holds.
func await(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not there after %v", what, patience)
		}
	}
}

func TestConformance(t *testing.T) {
	for _, c := range []struct {
		name string
		size string
		vals block.Values
		exp  export.Export
	}{
		{"one connection", "1M", block.Values{"connections": "1"}, export.Export{}},
		{"several connections, odd size", "1000001", block.Values{"connections": "4"}, export.Export{}},
		{"with request-timeout", "1M", block.Values{"request-timeout": "3600", "reconnect-delay": "5"}, export.Export{Name: "a/b c"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			blocktest.Run(t, func(t testing.TB) *block.Child {
				env := blocktest.NewEnv(t)
				vals := serve(t, memory(t, env, c.size), export.Config{}, c.exp).values(c.vals)
				vals["export"] = c.exp.Name
				return blocktest.Edge(t, blocktest.Open(t, env, vals, nil))
			}, blocktest.Options{})
		})
	}
}

// Blocks that requests must keep to.
func TestConformanceWithBlocks(t *testing.T) {
	blocktest.Run(t, func(t testing.TB) *block.Child {
		env := blocktest.NewEnv(t)
		l := block.ByteLimits()
		l.ReadAlign, l.WriteAlign, l.ZeroAlign, l.DiscardAlign = 4096, 4096, 4096, 4096
		e := blocktest.NewEmulator(t, blocktest.EmulatorConfig{Size: 1 << 20, Limits: l})
		in := blocktest.Attach(t, env, e, "emulator")
		return blocktest.Edge(t, blocktest.Open(t, env, serve(t, in, export.Config{}, export.Export{}).values(nil), nil))
	}, blocktest.Options{AnyAfterDiscard: true})
}

// Requests through two nodes, over several connections each.
func TestModel(t *testing.T) {
	blocktest.Model(t, func(t testing.TB) []*block.Child {
		env := blocktest.NewEnv(t)
		s := serve(t, memory(t, env, "500001"), export.Config{}, export.Export{})
		a := blocktest.Open(t, env, s.values(nil), nil)
		b := blocktest.Open(t, env, s.values(block.Values{"connections": "3"}), nil)
		return []*block.Child{blocktest.Edge(t, a), blocktest.Edge(t, b)}
	}, blocktest.ModelConfig{Ops: 1500, MaxLen: 200 << 10, Area: 400 << 10})
}

// certificates are TLS for the server, which wants to know its clients.
func certificates(t testing.TB, dir string) *tls.Config {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "server-cert.pem"), filepath.Join(dir, "server-key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}}
}

func TestTLS(t *testing.T) {
	dir, other := testutil.Certs(t), testutil.Certs(t)
	env := blocktest.NewEnv(t)
	s := serve(t, memory(t, env, "1M"), export.Config{TLS: certificates(t, dir), TLSMode: export.TLSRequired}, export.Export{})
	for _, c := range []struct {
		vals block.Values
		ok   bool
	}{
		{block.Values{"tls-ca": filepath.Join(dir, "ca-cert.pem")}, true},
		{block.Values{"tls-ca": filepath.Join(dir, "ca-cert.pem"), "tls-cert": filepath.Join(dir, "client-cert.pem"), "tls-key": filepath.Join(dir, "client-key.pem")}, true},
		{block.Values{"tls-certificates": dir}, true},
		{block.Values{"tls": "on", "tls-verify-peer": "off"}, true},
		{block.Values{"tls-certificates": other}, false},
		{block.Values{"tls-certificates": dir, "tls-hostname": "elsewhere"}, false},
		{block.Values{}, false},
		{block.Values{"tls": "off", "tls-hostname": "localhost"}, false},
	} {
		in, err := blocktest.TryOpen(t, env, s.values(c.vals), nil, false)
		if (err == nil) != c.ok {
			t.Errorf("%v: %v", c.vals, err)
		}
		if err != nil {
			continue
		}
		cl := blocktest.NewClient(t, blocktest.Edge(t, in))
		want, got := bytes.Repeat([]byte{7}, 100000), make([]byte, 100000)
		if err := errors.Join(cl.Write(3, 0, want), cl.Read(3, got)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%v: %v", c.vals, err)
		}
	}
}

// A disk that is offered read-only is opened so, or not at all.
func TestReadOnly(t *testing.T) {
	env := blocktest.NewEnv(t)
	s := serve(t, memory(t, env, "1M"), export.Config{}, export.Export{ReadOnly: true})
	if _, err := blocktest.TryOpen(t, env, s.values(nil), nil, false); err == nil {
		t.Error("opened for writing")
	}
	in, err := blocktest.TryOpen(t, env, s.values(nil), nil, true)
	if err != nil {
		t.Fatal(err)
	}
	if err := blocktest.NewClient(t, blocktest.Edge(t, in)).Read(0, make([]byte, 512)); err != nil {
		t.Error(err)
	}
}
