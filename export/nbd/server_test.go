package nbd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/block/blocktest"
	"github.com/platter-storage/platter/internal/testutil"
	_ "github.com/platter-storage/platter/protocol/file"
	_ "github.com/platter-storage/platter/protocol/mem"
	_ "github.com/platter-storage/platter/protocol/null"
	wire "github.com/platter-storage/platter/wire/nbd"
)

const mib = 1 << 20

// rig is a server on a UNIX socket, ended with the test, and what it logged.
type rig struct {
	*Server
	t    testing.TB
	addr string
	log  *testutil.Output
	env  *block.Env
}

// newRig starts a server for tests with the exports given. The test fails if
// the server does not shut down in the end, or leaves a goroutine.
func newRig(t testing.TB, env *block.Env, cfg Config, exports ...Export) *rig {
	t.Helper()
	r := &rig{t: t, addr: filepath.Join(t.TempDir(), "s"), log: &testutil.Output{}, env: env}
	cfg.Env = env
	cfg.Log = slog.New(slog.NewTextHandler(r.log, nil))
	noLeaks(t)
	var err error
	if r.Server, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	for _, e := range exports {
		if err := r.AddExport(e); err != nil {
			t.Fatal(err)
		}
	}
	l, err := net.Listen("unix", r.addr)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- r.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := r.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		if err := <-ended; !errors.Is(err, ErrServerClosed) {
			t.Errorf("Serve returned %v", err)
		}
		if n := r.mem.held.Load(); n != 0 {
			t.Errorf("%d bytes of memory are held after the end", n)
		}
		if t.Failed() {
			t.Log(r.log.String())
		}
	})
	return r
}

// disk opens a node for an export: mem, null, or a file.
func disk(t testing.TB, env *block.Env, kind string, size int64) *block.Child {
	t.Helper()
	vals := block.Values{"driver": kind, "size": fmt.Sprint(size)}
	if kind == "file" {
		vals = block.Values{"driver": "file", "filename": sparseFile(t, size)}
	}
	return blocktest.Edge(t, blocktest.Open(t, env, vals, nil))
}

// modes are the ways in which replies travel.
var modes = []struct {
	name string
	cfg  wire.ClientConfig
}{
	{"simple", wire.ClientConfig{}},
	{"structured", wire.ClientConfig{WantStructured: true, Contexts: []string{wire.ContextAllocation}}},
	{"extended", wire.ClientConfig{WantExtended: true, Contexts: []string{wire.ContextAllocation, wire.ContextDepth}}},
}

// dial connects a client, closed at the end of the test.
func (r *rig) dial(cfg wire.ClientConfig, opts wire.ClientOptions) *wire.Client {
	r.t.Helper()
	c, err := wire.NewClient(r.session(cfg), opts)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	return c
}

// session connects and does the handshake; the connection is closed at the end
// of the test.
func (r *rig) session(cfg wire.ClientConfig) *wire.ClientSession {
	r.t.Helper()
	nc := r.connect()
	if err := nc.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		r.t.Fatal(err)
	}
	s, err := wire.ClientHandshake(nc, cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := nc.SetDeadline(time.Time{}); err != nil {
		r.t.Fatal(err)
	}
	return s
}

func (r *rig) connect() net.Conn {
	r.t.Helper()
	nc, err := net.Dial("unix", r.addr)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { nc.Close() })
	return nc
}

// raw is a client whose every byte the test writes.
type raw struct {
	io.ReadWriter
	nc net.Conn
	t  testing.TB
}

func (r *rig) raw(cfg wire.ClientConfig) *raw {
	s := r.session(cfg)
	nc := s.Conn.(net.Conn)
	if err := nc.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		r.t.Fatal(err)
	}
	return &raw{ReadWriter: s.Conn, nc: nc, t: r.t}
}

func (c *raw) send(b []byte) {
	c.t.Helper()
	if _, err := c.Write(b); err != nil {
		c.t.Fatal(err)
	}
}

// request is the header of a request without extended headers.
func request(t wire.Cmd, fl wire.CmdFlags, cookie, off, n uint64) []byte {
	b := make([]byte, wire.RequestLen)
	wire.PutRequest(b, &wire.Request{Type: t, Flags: fl, Cookie: cookie, Offset: off, Length: n}, false)
	return b
}

func (c *raw) recv(n int) []byte {
	c.t.Helper()
	b := make([]byte, n)
	if _, err := io.ReadFull(c, b); err != nil {
		c.t.Fatal(err)
	}
	return b
}

// simple reads a simple reply.
func (c *raw) simple() wire.Reply {
	c.t.Helper()
	rep, _, err := wire.ParseReply(c.recv(wire.SimpleReplyLen), false)
	if err != nil {
		c.t.Fatal(err)
	}
	return rep
}

// pattern is n bytes that differ from seed to seed.
func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for at := copy(b, noise[seed:]); at < n; at *= 2 {
		copy(b[at:], b[:at])
	}
	return b
}

// noise is long enough that no two blocks within a MiB of a pattern are alike
// at their beginnings.
var noise = func() []byte {
	b := make([]byte, 70001)
	rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}()

func wantErrno(t testing.TB, err error, want wire.Errno) {
	t.Helper()
	var e wire.Errno
	if !errors.As(err, &e) || e != want {
		t.Errorf("error %v, want %v", err, want)
	}
}

// waitFor waits until cond is true.
func waitFor(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for range 24000 { // two minutes: test machines are slow
		if cond() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("waited in vain for %s", what)
}

// alignedTo are limits of storage with blocks of the given size.
func alignedTo(align uint32) *block.Limits {
	l := *block.ByteLimits()
	l.ReadAlign, l.WriteAlign, l.SegmentAlign, l.MinMem = align, align, 512, 512
	return &l
}
