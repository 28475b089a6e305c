package vhostuser

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/block/blocktest"
	export "github.com/platter-storage/platter/export/vhostuser"
	_ "github.com/platter-storage/platter/protocol/mem"
)

// patience bounds waiting for what must come.
const patience = 2 * time.Minute

// server is a device of ours on a socket.
type server struct {
	t      testing.TB
	socket string
	dev    *export.Device
	child  *block.Child
	ended  chan error
}

// shortDir is a folder with a short name: a socket's path has few bytes.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "vuc")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// serve offers a node until the test ends.
func serve(t testing.TB, in *block.Instance, cfg export.Config) *server {
	t.Helper()
	s := &server{t: t, socket: filepath.Join(shortDir(t), "s")}
	s.start(in, cfg)
	t.Cleanup(s.stop)
	return s
}

func (s *server) start(in *block.Instance, cfg export.Config) {
	s.t.Helper()
	perm := block.PermRead
	if !in.Info().ReadOnly {
		perm |= block.PermWrite
	}
	var err error
	if s.child, err = in.NewChild("export", block.RoleRoot, perm, block.PermAll); err != nil {
		s.t.Fatal(err)
	}
	cfg.Child, cfg.Env, cfg.Name = s.child, in.Env(), "disk0"
	cfg.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	if s.dev, err = export.New(cfg); err != nil {
		s.t.Fatal(err)
	}
	os.Remove(s.socket)
	l, err := net.Listen("unix", s.socket)
	if err != nil {
		s.t.Fatal(err)
	}
	s.ended = make(chan error, 1)
	go func() { s.ended <- s.dev.Serve(l) }()
}

func (s *server) stop() {
	if s.dev == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := s.dev.Shutdown(ctx); err != nil {
		s.t.Errorf("shutdown: %v", err)
	}
	if err := <-s.ended; !errors.Is(err, export.ErrClosed) {
		s.t.Errorf("serve ended with %v", err)
	}
	s.child.Close()
	s.dev = nil
}

// memDisk is a disk in memory.
func memDisk(t testing.TB, env *block.Env, size string) *block.Instance {
	return blocktest.Open(t, env, block.Values{"driver": "mem", "size": size}, nil)
}

// with are options of the driver.
func (s *server) with(vals block.Values) block.Values {
	all := block.Values{"driver": "vhostuser", "path": s.socket}
	for k, v := range vals {
		all[k] = v
	}
	return all
}

// Each kind of ring, many queues and one, memory in plenty and hardly any.
var ways = map[string]struct {
	client block.Values
	server export.Config
}{
	"split":        {block.Values{}, export.Config{}},
	"packed":       {block.Values{"packed": "on", "queues": "2"}, export.Config{}},
	"in order":     {block.Values{"in-order": "on", "queues": "1"}, export.Config{InOrder: true}},
	"flags":        {block.Values{"event-idx": "off", "queues": "3"}, export.Config{NoPacked: true}},
	"small":        {block.Values{"queue-size": "4", "memory": "1M", "queues": "1"}, export.Config{}},
	"small packed": {block.Values{"queue-size": "8", "memory": "1M", "packed": "on", "in-order": "on", "queues": "1"}, export.Config{InOrder: true}},
	"blocks of 4K": {block.Values{"queues": "1"}, export.Config{BlockSize: 4096}},
	"polling":      {block.Values{"poll-ns": "50000", "queues": "1"}, export.Config{}},
}

func TestConformance(t *testing.T) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			blocktest.Run(t, func(t testing.TB) *block.Child {
				env := blocktest.NewEnv(t)
				s := serve(t, memDisk(t, env, "1M"), way.server)
				return blocktest.Edge(t, blocktest.Open(t, env, s.with(way.client), nil))
			}, blocktest.Options{NoAllocations: true})
		})
	}
}

// Requests of many through two edges and both lanes, declined at random.
func TestModel(t *testing.T) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			blocktest.Model(t, func(t testing.TB) []*block.Child {
				env := blocktest.NewEnv(t)
				rand := blocktest.NewRand(1)
				env.FastLane = func() bool { return rand()&1 == 0 }
				s := serve(t, memDisk(t, env, "512K"), way.server)
				in := blocktest.Open(t, env, s.with(way.client), nil)
				return []*block.Child{blocktest.Edge(t, in), blocktest.Edge(t, in)}
			}, blocktest.ModelConfig{Ops: 1500, Workers: 4, MaxLen: 200 << 10, Area: 400 << 10})
		})
	}
}

func TestReadOnly(t *testing.T) {
	env := blocktest.NewEnv(t)
	s := serve(t, memDisk(t, env, "1M"), export.Config{ReadOnly: true})
	if _, err := blocktest.TryOpen(t, env, s.with(nil), nil, false); !errors.Is(err, syscall.EROFS) {
		t.Errorf("opening a read-only disk for writing: %v", err)
	}
	in, err := blocktest.TryOpen(t, env, s.with(nil), nil, true)
	if err != nil {
		t.Fatal(err)
	}
	c := blocktest.NewClient(t, blocktest.Edge(t, in))
	if err := c.Read(0, make([]byte, 4096)); err != nil {
		t.Error(err)
	}
}

// A disk that grows is seen to grow.
func TestResize(t *testing.T) {
	env := blocktest.NewEnv(t)
	disk := memDisk(t, env, "1M")
	s := serve(t, disk, export.Config{})
	in := blocktest.Open(t, env, s.with(nil), nil)
	seen := make(chan int64, 10)
	defer in.Info().WatchSize(func() { seen <- in.Info().Size() })()
	if err := blocktest.NewClient(t, blocktest.Edge(t, disk)).Truncate(3 << 20); err != nil {
		t.Fatal(err)
	}
	select {
	case n := <-seen:
		if n != 3<<20 {
			t.Errorf("the size became %d", n)
		}
	case <-time.After(patience):
		t.Fatal("the new size did not arrive")
	}
	c := blocktest.NewClient(t, blocktest.Edge(t, in))
	want := blocktest.Pattern(make([]byte, 1<<20), 5)
	if err := c.Write(2<<20, 0, want); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	if err := c.Read(2<<20, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("what it grew by does not hold data: %v", err)
	}
}

// What the server's storage answers arrives as what it is.
func TestErrorsOfTheStorage(t *testing.T) {
	env := blocktest.NewEnv(t)
	e := blocktest.NewEmulator(t, blocktest.EmulatorConfig{Size: 1 << 20, NoZero: true})
	s := serve(t, blocktest.Attach(t, env, e, "disk"), export.Config{})
	c := blocktest.NewClient(t, blocktest.Edge(t, blocktest.Open(t, env, s.with(nil), nil)))
	if err := c.Zero(0, 4096, block.NoFallback); !block.IsNotSupported(err) {
		t.Errorf("write zeroes that must be quick: %v", err)
	}
	if err := c.Zero(0, 65536, 0); err != nil {
		t.Errorf("write zeroes: %v", err)
	}
	if err := c.Truncate(1 << 21); !block.IsNotSupported(err) {
		t.Errorf("truncate: %v", err)
	}
}

func TestExplain(t *testing.T) {
	env := blocktest.NewEnv(t)
	s := serve(t, memDisk(t, env, "1M"), export.Config{})
	in := blocktest.Open(t, env, s.with(block.Values{"packed": "on", "queues": "2"}), nil)
	text := fmt.Sprint(in.Info().Abilities.Explain())
	for _, want := range []string{"packed rings", "2 of 128", "CONFIG", "write zeroes", "blocks of 512"} {
		if !bytes.Contains([]byte(text), []byte(want)) {
			t.Errorf("%q does not say %q", text, want)
		}
	}
	if err := in.Info().Abilities.Refresh(); err != nil {
		t.Error(err)
	}
}
