package file

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/realenv"
	"github.com/platter-storage/platter/internal/sys"
)

// logged keeps what a test's nodes log.
type logged struct {
	mu sync.Mutex
	strings.Builder
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Builder.Write(p)
}

func (l *logged) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Builder.String()
}

// testEnv is the real environment, with a log that the test can read.
func testEnv(t testing.TB) (*block.Env, *logged) {
	t.Helper()
	log := &logged{}
	env := realenv.New(slog.New(slog.NewTextHandler(log, nil)), 0)
	t.Cleanup(func() { env.Buffers.Close() })
	return env, log
}

// options are checked values of the driver.
func options(t testing.TB, driver, opts string) *block.Options {
	t.Helper()
	d, err := block.FindDriver(driver)
	if err != nil {
		t.Fatal(err)
	}
	vals, err := block.ParseOptions(opts)
	if err != nil {
		t.Fatal(err)
	}
	o, err := d.Check(vals)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// tryOpen opens a node of the driver file.
func tryOpen(t testing.TB, env *block.Env, readOnly bool, opts string) (*node, error) {
	t.Helper()
	nd, err := open(&block.OpenArgs{Env: env, Options: options(t, "file", opts), ReadOnly: readOnly}, false)
	if err != nil {
		return nil, err
	}
	return nd.(*node), nil
}

// edge is an opened node with an edge to it, and a queue for requests.
type edge struct {
	*block.Child
	n   *node
	q   *block.Queue
	log *logged
}

// openEdge opens path with more options and connects to it; all is closed
// when the test ends.
func openEdge(t testing.TB, path, opts string) *edge {
	t.Helper()
	env, log := testEnv(t)
	n, err := tryOpen(t, env, false, join(filename(path), opts))
	if err != nil {
		t.Fatal(err)
	}
	return connect(t, n, env, log)
}

// filename is the option that names path.
func filename(path string) string { return "filename=" + strings.ReplaceAll(path, ",", ",,") }

func join(a, b string) string {
	if b == "" {
		return a
	}
	return a + "," + b
}

// connect makes the edge to an opened node.
func connect(t testing.TB, n *node, env *block.Env, log *logged) *edge {
	t.Helper()
	in := block.NewInstance(n, "disk", env)
	perm := block.PermAll
	if n.info.ReadOnly {
		perm = block.PermRead
	}
	c, err := in.NewChild("test", block.RoleRoot, perm, block.PermAll)
	if err != nil {
		t.Fatal(err)
	}
	e := &edge{Child: c, n: n, q: block.NewQueue(env, block.NewQueueGroup()), log: log}
	t.Cleanup(func() {
		c.Close()
		rq := e.q.Begin()
		if err := in.Close(rq); err != nil {
			t.Error(err)
		}
		e.q.End(rq, block.OpRead, 0, nil)
	})
	return e
}

// do runs one request.
func (e *edge) do(op block.Op, n int64, f func(rq *block.Req) error) error {
	rq := e.q.Begin()
	err := f(rq)
	e.q.End(rq, op, n, err)
	return err
}

func (e *edge) read(off int64, b ...[]byte) error {
	return e.do(block.OpRead, block.Vec(b).Len(), func(rq *block.Req) error { return e.Preadv(rq, off, b, 0) })
}

func (e *edge) write(off int64, b ...[]byte) error {
	return e.do(block.OpWrite, block.Vec(b).Len(), func(rq *block.Req) error { return e.Pwritev(rq, off, b, 0) })
}

func (e *edge) flush() error {
	return e.do(block.OpFlush, 0, func(rq *block.Req) error { return e.Flush(rq) })
}

// aligned is memory of n bytes whose address is lead past a multiple of 64 KiB.
func aligned(t testing.TB, n, lead int) []byte {
	t.Helper()
	b, m, err := sys.MapAligned(n+lead, block.MaxAlign)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sys.Unmap(m) })
	return b[lead : lead+n : lead+n]
}

// pattern fills b so that each byte tells its place and a seed.
func pattern(b []byte, seed int) []byte {
	for i := range b {
		b[i] = byte(seed + i + i>>8*7 + i>>16*13)
	}
	return b
}

// writeFile makes a file of content in dir.
func writeFile(t testing.TB, dir, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
	syncFile(t, path)
	return path
}

// syncFile makes the file's blocks be allocated, so that trial reads find them.
func syncFile(t testing.TB, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
}

// makeDisk creates a disk with the driver and returns its path.
func makeDisk(t testing.TB, dir string, size int64, opts string) string {
	t.Helper()
	env, _ := testEnv(t)
	path := filepath.Join(dir, fmt.Sprintf("disk-%d.img", size))
	if err := tryCreate(t, env, size, join(filename(path), opts)); err != nil {
		t.Fatal(err)
	}
	return path
}

func tryCreate(t testing.TB, env *block.Env, size int64, opts string) error {
	t.Helper()
	d, err := block.FindDriver("file")
	if err != nil {
		t.Fatal(err)
	}
	vals, err := block.ParseOptions(opts)
	if err != nil {
		t.Fatal(err)
	}
	o, err := d.CheckCreate(vals)
	if err != nil {
		t.Fatal(err)
	}
	return d.Create(context.Background(), &block.CreateArgs{Env: env, Options: o, Size: size})
}
