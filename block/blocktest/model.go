package blocktest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/race"
)

// ModelConfig says how to run the model test. What is zero has a default.
type ModelConfig struct {
	// Ops is the number of operations (2000), Workers that of goroutines
	// (4), MaxLen the longest request in bytes (64 KiB), Area how much of
	// the disk, at its end, is used (256 KiB).
	Ops, Workers int
	MaxLen, Area int64
	// Seed makes the operations; 0 takes PLATTER_SEED, or a new one.
	Seed uint64
	// Forgets and AnyAfterDiscard are as in Options.
	Forgets, AnyAfterDiscard bool
	// Faults: requests may fail; a change that did may have happened.
	Faults bool
	// Durable, if not nil, is what a power cut would leave of the node that
	// open made last: it is checked at the end.
	Durable func() []byte

	exact bool // only operations whose result is one
}

// raceCost is by how much fewer operations a test runs because each costs more
// under the race detector.
const raceCost = 3

func (c *ModelConfig) setDefaults() {
	def := func(x *int, v int) {
		if *x == 0 {
			*x = v
		}
	}
	def(&c.Ops, 2000)
	if race.Enabled {
		c.Ops /= raceCost
	}
	def(&c.Workers, 4)
	if c.MaxLen == 0 {
		c.MaxLen = 64 << 10
	}
	if c.Area == 0 {
		c.Area = 256 << 10
	}
}

// Size is the number of operations that one seed makes: Ops or its default,
// less under the race detector, where each costs more.
func (c ModelConfig) Size() int {
	c.setDefaults()
	return c.Ops
}

// runLimit is how long one run of the model may take before it counts as hung.
const runLimit = 2 * time.Minute

// Soak is how long a test that can go on for any time should: its share of
// what PLATTER_SOAK says, or 0.
func Soak() time.Duration {
	d, _ := time.ParseDuration(os.Getenv("PLATTER_SOAK")) // empty or wrong: no soak
	return d / 16
}

// Model runs random operations on the edges that open makes, all of which lead
// to one disk, and checks all that they read and what status says against a
// model of what may be seen. A failure is shrunk and printed as a Go test.
func Model(t *testing.T, open func(t testing.TB) []*block.Child, cfg ModelConfig) {
	t.Helper()
	cfg.setDefaults()
	seeds := []uint64{cfg.Seed}
	if cfg.Seed == 0 {
		seeds[0] = newSeed(t)
	}
	for end := time.Now().Add(Soak()); ; {
		cfg.Seed = seeds[0]
		if f := runSeed(t, open, cfg); f != nil {
			t.Fatal(f.report(t.Name()))
		}
		if time.Now().After(end) {
			return
		}
		seeds[0]++
	}
}

func newSeed(t testing.TB) uint64 {
	s := os.Getenv("PLATTER_SEED")
	if s == "" {
		return uint64(time.Now().UnixNano())
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("PLATTER_SEED: %v", err)
	}
	return n
}

// Replay runs a list of operations that Model printed.
func Replay(t *testing.T, open func(t testing.TB) []*block.Child, cfg ModelConfig, ops []ModelOp) {
	t.Helper()
	cfg.setDefaults()
	r := runner{t: t, open: open, cfg: cfg}
	if err := r.run(ops); err != nil {
		t.Fatal(err)
	}
}

// Same runs one list of operations, in order, on the disks that variants open,
// all of one size, and checks that each ends up with the same content.
func Same(t *testing.T, variants map[string]func(t testing.TB) []*block.Child, cfg ModelConfig) {
	t.Helper()
	cfg.setDefaults()
	cfg.Workers, cfg.exact = 1, true
	if cfg.Seed == 0 {
		cfg.Seed = newSeed(t)
	}
	contents := map[string][]byte{}
	for _, name := range slices.Sorted(maps.Keys(variants)) {
		open := func(t testing.TB) []*block.Child {
			children := variants[name](t)
			c := NewClient(t, children[0])
			t.Cleanup(func() {
				b := make([]byte, c.Child.Size())
				if err := c.Read(0, b); err != nil {
					t.Error(err)
				}
				contents[name] = b
			})
			return children
		}
		if f := runSeed(t, open, cfg); f != nil {
			t.Fatalf("%s: %s", name, f.report(t.Name()))
		}
	}
	first := ""
	for _, name := range slices.Sorted(maps.Keys(contents)) {
		if first == "" {
			first = name
		}
		if at := firstDifference(contents[first], contents[name]); at >= 0 {
			t.Errorf("seed %d: %q and %q differ from byte %d", cfg.Seed, first, name, at)
		}
	}
}

// runSeed runs and, on failure, shrinks.
func runSeed(t testing.TB, open func(t testing.TB) []*block.Child, cfg ModelConfig) *failure {
	r := runner{t: t, open: open, cfg: cfg}
	var ops []ModelOp
	err := r.attempt(func(t testing.TB) error {
		children := open(t)
		g := generator{Rand: rand.New(rand.NewPCG(cfg.Seed, 1)), cfg: cfg}
		g.from, g.end = r.part(children[0])
		ops = g.ops(len(children), children[0].Perm()&block.PermWrite != 0)
		return r.runOn(t, children, ops)
	})
	if err == nil {
		return nil
	}
	return r.shrink(ops, err)
}

// runner runs lists of operations, each on a fresh disk.
type runner struct {
	t    testing.TB
	open func(t testing.TB) []*block.Child
	cfg  ModelConfig
}

// run runs ops on a fresh disk.
func (r *runner) run(ops []ModelOp) error {
	return r.attempt(func(t testing.TB) error { return r.runOn(t, r.open(t), ops) })
}

// part is the part of the disk that is used: its end.
func (r *runner) part(c *block.Child) (from, end int64) {
	end = c.Size()
	return max(end-r.cfg.Area, 0) &^ (block.MaxAlign - 1), end
}

func (r *runner) runOn(t testing.TB, children []*block.Child, ops []ModelOp) error {
	x := &execution{cfg: r.cfg}
	x.from, x.end = r.part(children[0])
	for _, c := range children {
		x.clients = append(x.clients, NewClient(t, c))
	}
	base := make([]byte, x.end-x.from)
	if err := x.clients[0].Flush(); err != nil {
		return fmt.Errorf("flush before the first operation: %w", err)
	}
	if err := x.clients[0].Read(x.from, base); err != nil {
		return fmt.Errorf("read before the first operation: %w", err)
	}
	x.history = newHistory(x.from, base, r.cfg.Durable != nil)
	return x.all(t, ops)
}

// execution is one run on one disk.
type execution struct {
	cfg       ModelConfig
	from, end int64
	clients   []*Client
	history   *history

	mu    sync.Mutex
	first error
}

// all runs the operations, each worker's in order, and checks everything in
// the end.
func (x *execution) all(t testing.TB, ops []ModelOp) error {
	lists := make([][]int, x.cfg.Workers)
	for i, o := range ops {
		lists[o.Worker%len(lists)] = append(lists[o.Worker%len(lists)], i)
	}
	var wg sync.WaitGroup
	for _, list := range lists {
		mem := Memory(t, memoryFor(x.end-x.from))
		wg.Add(1)
		go func() {
			defer wg.Done()
			for _, i := range list {
				if x.failed() != nil {
					return
				}
				if err := x.one(i, &ops[i], mem); err != nil {
					x.fail(fmt.Errorf("operation %d, %s: %w", i, ops[i], err))
				}
			}
		}()
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(runLimit):
		panic(fmt.Sprintf("the model test hangs, seed %d:\n%s", x.cfg.Seed, allStacks()))
	}
	if err := x.failed(); err != nil {
		return err
	}
	return x.final()
}

func allStacks() []byte {
	b := make([]byte, 1<<20)
	return b[:runtime.Stack(b, true)]
}

func (x *execution) fail(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.first == nil {
		x.first = err
	}
}

func (x *execution) failed() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.first
}

// final reads all through each edge, twice: what is seen once is seen again.
func (x *execution) final() error {
	for range 2 {
		for i, c := range x.clients {
			b := make([]byte, x.end-x.from)
			began := x.history.beginRead()
			if err := c.Read(x.from, b); err != nil {
				x.history.forget(began)
				if x.cfg.Faults {
					continue
				}
				return fmt.Errorf("read of all at the end through edge %d: %w", i, err)
			}
			if err := x.history.endRead(began, x.from, b); err != nil {
				return fmt.Errorf("read of all at the end through edge %d: %w", i, err)
			}
		}
	}
	if x.cfg.Durable == nil {
		return nil
	}
	if err := x.history.checkDurable(x.from, x.cfg.Durable()[x.from:x.end]); err != nil {
		return fmt.Errorf("what a power cut would leave: %w", err)
	}
	return nil
}

// one runs operation number i.
func (x *execution) one(i int, o *ModelOp, mem []byte) error {
	c := x.clients[o.Edge%len(x.clients)]
	switch o.Op {
	case block.OpRead:
		return x.read(c, o, mem)
	case block.OpFlush:
		return x.flush(c)
	case block.OpStatus:
		return x.status(c, o)
	}
	return x.change(c, i, o, mem)
}

// tolerated is nil for errors that the configuration expects.
func (x *execution) tolerated(err error) error {
	if x.cfg.Faults {
		return nil
	}
	return err
}

func (x *execution) read(c *Client, o *ModelOp, mem []byte) error {
	v := o.vec(mem)
	for _, e := range v {
		for i := range e {
			e[i] = 0xDB
		}
	}
	began := x.history.beginRead()
	ok, err := false, error(nil)
	if o.Fast {
		ok, err = c.fast(block.OpRead, o.Off, v, o.Flags)
	}
	if !ok && err == nil {
		err = c.do(block.OpRead, o.Len, func(rq *block.Req) error { return c.Child.Preadv(rq, o.Off, v, o.Flags) })
	}
	if err != nil {
		x.history.forget(began)
		return x.tolerated(err)
	}
	got := make([]byte, o.Len)
	v.CopyOut(got, 0)
	return x.history.endRead(began, o.Off, got)
}

func (x *execution) flush(c *Client) error {
	began := x.history.beginRead()
	err := c.Flush()
	x.history.endFlush(began, err == nil)
	return x.tolerated(err)
}

func (x *execution) status(c *Client, o *ModelOp) error {
	began := x.history.beginRead()
	e, err := c.Status(o.Off, o.Len)
	switch {
	case err != nil:
		x.history.forget(began)
		return x.tolerated(err)
	case e.Len < 1 || e.Len > o.Len:
		return fmt.Errorf("the length of the extent is %d", e.Len)
	case e.EOF != (o.Off+e.Len == c.Child.Size()):
		return fmt.Errorf("eof of the extent %+v is wrong", e)
	case e.Zero:
		return x.history.endZero(began, o.Off, e.Len)
	}
	x.history.forget(began)
	return nil
}

func (x *execution) change(c *Client, i int, o *ModelOp, mem []byte) error {
	ch := &change{id: i, op: o.Op, off: o.Off, end: o.Off + o.Len, anything: o.Op == block.OpDiscard && x.cfg.AnyAfterDiscard}
	var v block.Vec
	if o.Op == block.OpWrite {
		data := make([]byte, o.Len)
		ch.fill(data, o.Off)
		v = o.vec(mem)
		v.CopyIn(data, 0)
	}
	if x.cfg.Forgets {
		ch.end = ch.off
	}
	x.history.begin(ch)
	err := x.do(c, o, v)
	refused := o.Flags&block.NoFallback != 0 && block.IsNotSupported(err)
	x.history.end(ch, err == nil && o.Op != block.OpDiscard, o.Flags&block.FUA != 0)
	if err == nil || refused {
		return nil
	}
	return x.tolerated(err)
}

func (x *execution) do(c *Client, o *ModelOp, v block.Vec) error {
	switch o.Op {
	case block.OpZero:
		return c.Zero(o.Off, o.Len, o.Flags)
	case block.OpDiscard:
		return c.Discard(o.Off, o.Len)
	}
	if o.Fast {
		if ok, err := c.fast(block.OpWrite, o.Off, v, o.Flags); ok || err != nil {
			return err
		}
	}
	return c.do(block.OpWrite, o.Len, func(rq *block.Req) error { return c.Child.Pwritev(rq, o.Off, v, o.Flags) })
}
