package nbd

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/block/blocktest"
	"github.com/platter-storage/platter/internal/ratelimit"
	wire "github.com/platter-storage/platter/wire/nbd"
)

// gate is a limiter that admits nothing of one operation until it is opened, and
// everything else.
type gate struct {
	mu    sync.Mutex
	shut  block.Op
	open  bool
	wait  int64 // what it says, in nanoseconds
	held  int   // how often it said so
	asked []string
}

func (g *gate) Admit(op block.Op, n, _ int64) int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if op == g.shut && !g.open {
		g.held++
		return g.wait
	}
	g.asked = append(g.asked, fmt.Sprint(op, " ", n))
	return 0
}

func (g *gate) opened() {
	g.mu.Lock()
	g.open = true
	g.mu.Unlock()
}

// holding waits until somebody is told to wait.
func (g *gate) holding(t testing.TB) {
	t.Helper()
	waitFor(t, "a request that is held back", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.held > 0
	})
}

const forever = 1e17 // nanoseconds

// kinds are disks that are served in different ways.
var kinds = map[string]func(t testing.TB, env *block.Env) *block.Child{
	"memory": func(t testing.TB, env *block.Env) *block.Child { return disk(t, env, "mem", 8*mib) },
	"cached": func(t testing.TB, env *block.Env) *block.Child { return disk(t, env, "file", 8*mib) },
	"direct": func(t testing.TB, env *block.Env) *block.Child { return directFile(t, env, 8*mib) },
}

// What goes to the storage is asked for, with its size; flushes, block status
// and what is refused are not.
func TestWhatTheLimiterIsAskedFor(t *testing.T) {
	env := blocktest.NewEnv(t)
	g := &gate{open: true}
	r := newRig(t, env, Config{}, Export{Child: disk(t, env, "mem", 64*mib), Limiter: g})
	c := r.dial(wire.ClientConfig{WantStructured: true, Contexts: []string{wire.ContextAllocation}}, wire.ClientOptions{})
	for _, op := range []block.Op{block.OpRead, block.OpWrite, block.OpFlush, block.OpZero, block.OpDiscard, block.OpStatus} {
		n := uint64(op+1) * 4096
		if err := askOp(c, op, 0, n); err != nil {
			t.Fatalf("%v: %v", op, err)
		}
	}
	wantErrno(t, c.Pread(make([]byte, 4096), 64*mib, 0), wire.EINVAL)
	if err := c.Cache(0, 48*mib); err != nil {
		t.Fatal(err)
	}
	want := []string{
		fmt.Sprint(block.OpRead, " ", int(block.OpRead+1)*4096), fmt.Sprint(block.OpWrite, " ", int(block.OpWrite+1)*4096),
		fmt.Sprint(block.OpZero, " ", int(block.OpZero+1)*4096), fmt.Sprint(block.OpDiscard, " ", int(block.OpDiscard+1)*4096),
		fmt.Sprint(block.OpRead, " ", maxPrefetch),
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !slices.Equal(g.asked, want) {
		t.Errorf("asked for %q, want %q", g.asked, want)
	}
}

// A request that is held back holds up neither what came before it nor another
// connection; it is served when it may be, and its data is what was sent.
func TestHeldBackHoldsNobodyUp(t *testing.T) {
	for name, open := range kinds {
		t.Run(name, func(t *testing.T) {
			env := blocktest.NewEnv(t)
			g := &gate{shut: block.OpWrite, wait: 1e6}
			r := newRig(t, env, Config{}, Export{Child: open(t, env), Limiter: g})
			c, other := r.raw(wire.ClientConfig{}), r.dial(wire.ClientConfig{}, wire.ClientOptions{})
			b := append(request(wire.CmdRead, 0, 1, 4096, 4096), request(wire.CmdFlush, 0, 2, 0, 0)...)
			b = append(b, request(wire.CmdWrite, 0, 3, 0, 4096)...)
			b = append(append(b, pattern(4096, 7)...), request(wire.CmdRead, 0, 4, 4096, 4096)...)
			c.send(b)
			g.holding(t)
			first := []uint64{}
			for range 2 {
				rep := c.simple()
				if first = append(first, rep.Cookie); rep.Cookie == 1 {
					c.recv(4096)
				}
			}
			if slices.Sort(first); !slices.Equal(first, []uint64{1, 2}) {
				t.Errorf("answered while a write is held back: %v, want 1 and 2", first)
			}
			if err := other.Flush(); err != nil {
				t.Errorf("flush of another connection: %v", err)
			}
			if err := other.Pread(make([]byte, 64<<10), 0, 0); err != nil {
				t.Errorf("read of another connection: %v", err)
			}
			// A slot comes free just behind its answer.
			waitFor(t, "connections to hold nothing", func() bool {
				return !slices.ContainsFunc(r.Connections(), func(i ConnInfo) bool { return i.InFlight+int(i.Held) != 0 })
			})
			g.opened()
			for range 2 {
				if c.simple().Cookie == 4 {
					c.recv(4096)
				}
			}
			got := make([]byte, 4096)
			if err := other.Pread(got, 0, 0); err != nil || !slices.Equal(got, pattern(4096, 7)) {
				t.Errorf("the write that was held back is not what was sent (%v)", err)
			}
		})
	}
}

// Clients of one disk get together what its limits allow.
func TestClientsShareALimit(t *testing.T) {
	env := blocktest.NewEnv(t)
	bucket := ratelimit.NewBucket(ratelimit.Limits{Requests: [3]ratelimit.Limit{{Avg: 40, MaxLength: 1}}})
	child := disk(t, env, "file", 8*mib)
	r := newRig(t, env, Config{}, Export{Child: child, Limiter: bucket}, Export{Name: "again", Child: child, Limiter: bucket})
	var wg sync.WaitGroup
	start := time.Now()
	for i := range 3 {
		c := r.dial(wire.ClientConfig{Export: []string{"", "again", ""}[i]}, wire.ClientOptions{})
		wg.Go(func() {
			for range 4 {
				if err := c.Pwrite(make([]byte, 512), 512, 0); err != nil {
					t.Error(err)
				}
				if err := c.Pread(make([]byte, 512), 0, 0); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if took, least := time.Since(start), 19*time.Second/40; took < least { // 4 at once, and one before its time
		t.Errorf("24 requests of three clients took %v, %v is the least under 40 a second", took, least)
	}
	if bucket.Waits() == 0 {
		t.Error("nobody was told to wait")
	}
}

// A client that goes while its requests are held back leaves nothing, however
// long they would have waited.
func TestGoneWhileHeldBack(t *testing.T) {
	env := blocktest.NewEnv(t)
	g := &gate{shut: block.OpRead, wait: forever}
	group := block.NewQueueGroup()
	r := newRig(t, env, Config{}, Export{Child: disk(t, env, "file", 8*mib), Limiter: g, Group: group})
	c := r.raw(wire.ClientConfig{})
	var b []byte
	for i := range 500 {
		b = append(b, request(wire.CmdRead, 0, uint64(i), 0, 4096)...)
	}
	c.send(b)
	g.holding(t)
	c.nc.Close()
	waitFor(t, "the connection to end", func() bool { return len(r.Connections()) == 0 })
	if n := group.Stats().Requests[block.OpRead]; n != 0 {
		t.Errorf("%d reads were made", n)
	}
}

// Neither the end of an export nor that of the server waits for what is held
// back: it is answered that it was not done.
func TestEndWhileHeldBack(t *testing.T) {
	for name, end := range map[string]func(r *rig, ctx context.Context) error{
		"shutdown": func(r *rig, ctx context.Context) error { return r.Shutdown(ctx) },
		"removal":  func(r *rig, ctx context.Context) error { return r.RemoveExport(ctx, "") },
		"cut": func(r *rig, _ context.Context) error {
			gone, cancel := context.WithCancel(context.Background())
			cancel()
			return r.RemoveExport(gone, "")
		},
	} {
		t.Run(name, func(t *testing.T) {
			env := blocktest.NewEnv(t)
			g := &gate{shut: block.OpWrite, wait: forever}
			group := block.NewQueueGroup()
			r := newRig(t, env, Config{}, Export{Child: disk(t, env, "file", 8*mib), Limiter: g, Group: group})
			c := r.raw(wire.ClientConfig{})
			b := append(request(wire.CmdWrite, 0, 1, 0, 4096), pattern(4096, 1)...)
			c.send(append(b, request(wire.CmdRead, 0, 2, 0, 4096)...))
			g.holding(t)
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if err := end(r, ctx); err != nil || ctx.Err() != nil {
				t.Errorf("%v, %v", err, ctx.Err())
			}
			if name != "cut" {
				for cookie := range uint64(2) {
					if rep := c.simple(); rep.Cookie != cookie+1 || rep.Errno != wire.ESHUTDOWN {
						t.Errorf("%+v", rep)
					}
				}
			}
			if n := group.Stats().Requests[block.OpWrite]; n != 0 {
				t.Errorf("%d writes were made", n)
			}
		})
	}
}
