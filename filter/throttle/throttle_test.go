package throttle

import (
	"context"
	"errors"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/block/blocktest"
	"github.com/platter-storage/platter/internal/ratelimit"
)

const second = int64(1e9)

// clock is a time that passes only while somebody sleeps.
type clock struct{ ns atomic.Int64 }

func (c *clock) into(env *block.Env) {
	env.Now = c.ns.Load
	env.After = func(ns int64, f func()) func() bool {
		c.ns.Add(ns)
		env.Go(f)
		return func() bool { return false }
	}
}

func over(t testing.TB, text string) (*clock, *blocktest.Emulator, *blocktest.Client) {
	t.Helper()
	env := blocktest.NewEnv(t)
	c := &clock{}
	c.into(env)
	e := blocktest.NewEmulator(t, blocktest.EmulatorConfig{Size: 1 << 20, Fast: true, WriteFlags: block.FUA, ZeroFlags: block.FUA | block.MayUnmap})
	in := openOver(t, env, e, text)
	return c, e, blocktest.NewClient(t, blocktest.Edge(t, in))
}

func openOver(t testing.TB, env *block.Env, e *blocktest.Emulator, text string) *block.Instance {
	t.Helper()
	vals, err := block.ParseOptions("driver=throttle" + text)
	if err != nil {
		t.Fatal(err)
	}
	return blocktest.Open(t, env, vals, map[string]*block.Instance{"file": blocktest.Attach(t, env, e, "storage")})
}

// The filter changes when requests happen and nothing else, in both lanes.
func TestConformance(t *testing.T) {
	for _, text := range []string{"", ",iops-total=1000000", ",iops-read=100,bps-write=1M,bps-write-max=2M", ",bps-total=64K,iops-total=7,iops-size=512"} {
		t.Run(text, func(t *testing.T) {
			blocktest.Run(t, func(t testing.TB) *block.Child {
				_, _, c := over(t, text)
				return c.Child
			}, blocktest.Options{})
		})
	}
}

// Each operation but flush and status is held back, by the limit of its
// direction.
func TestWhatIsLimited(t *testing.T) {
	b := make([]byte, 512)
	for name, op := range map[string]struct {
		dir int
		f   func(c *blocktest.Client) error
	}{
		"read":    {ratelimit.Reads, func(c *blocktest.Client) error { return c.Read(0, b) }},
		"write":   {ratelimit.Writes, func(c *blocktest.Client) error { return c.Write(0, 0, b) }},
		"zero":    {ratelimit.Writes, func(c *blocktest.Client) error { return c.Zero(0, 512, 0) }},
		"discard": {ratelimit.Writes, func(c *blocktest.Client) error { return c.Discard(0, 512) }},
		"flush":   {-1, func(c *blocktest.Client) error { return c.Flush() }},
		"status":  {-1, func(c *blocktest.Client) error { _, err := c.Status(0, 512); return err }},
	} {
		for limit, dir := range map[string]int{
			"iops-total=10": ratelimit.Total, "iops-read=10": ratelimit.Reads, "iops-write=10": ratelimit.Writes,
			"bps-total=5120": ratelimit.Total, "bps-read=5120": ratelimit.Reads, "bps-write=5120": ratelimit.Writes,
		} {
			clk, _, c := over(t, ","+limit)
			for range 12 { // 2 at once, and 10 in a second
				if err := op.f(c); err != nil {
					t.Fatal(err)
				}
			}
			limited := op.dir >= 0 && (dir == ratelimit.Total || dir == op.dir)
			if took := clk.ns.Load(); limited != (took > 0) || limited && (took < second*99/100 || took > second*101/100) {
				t.Errorf("12 times %s under %s took %d ns", name, limit, took)
			}
		}
	}
}

// The fast lane passes what may begin and declines what must wait.
func TestFastLane(t *testing.T) {
	clk, _, c := over(t, ",iops-read=10")
	b := blocktest.Memory(t, 512)
	for i, want := range []bool{true, true, false} { // one before its time
		if ok, err := c.ReadFast(0, b); ok != want || err != nil {
			t.Errorf("read %d: fast %v, %v", i, ok, err)
		}
	}
	if ok, err := c.WriteFast(0, 0, b); !ok || err != nil {
		t.Errorf("a write, which has no limit: fast %v, %v", ok, err)
	}
	clk.ns.Add(second)
	if ok, err := c.ReadFast(0, b); !ok || err != nil {
		t.Errorf("a second later: fast %v, %v", ok, err)
	}
}

// A request that is given up while it waits ends with its context, and leaves
// nothing behind.
func TestCancelledWhileWaiting(t *testing.T) {
	env := blocktest.NewEnv(t)
	env.Now = func() int64 { return 0 }
	e := blocktest.NewEmulator(t, blocktest.EmulatorConfig{Size: 1 << 20})
	in := openOver(t, env, e, ",bps-total=1M,group=cancelled")
	child := blocktest.Edge(t, in)
	q := block.NewQueue(env, block.NewQueueGroup())
	defer q.Close()
	bucket, err := ratelimit.Join(ratelimit.Setting{Group: "cancelled"})
	if err != nil {
		t.Fatal(err)
	}
	defer ratelimit.Leave("cancelled")
	if w := bucket.Admit(block.OpRead, 1<<19, 0); w != 0 {
		t.Fatalf("the first request waits %d ns", w)
	}
	want := bucket.Admit(block.OpRead, 512, 0)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	rq := q.Begin()
	rq.SetContext(ctx)
	err = child.Preadv(rq, 0, block.Vec{make([]byte, 1<<20)}, 0)
	q.End(rq, block.OpRead, 1<<20, err)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled read gave %v", err)
	}
	if w := bucket.Admit(block.OpRead, 512, 0); w != want {
		t.Errorf("the next request waits %d ns: the one given up still counts, it was %d", w, want)
	}
}

// What the node below declines in the fast lane is counted once, where it comes
// back.
func TestDeclinedBelowIsCountedOnce(t *testing.T) {
	env := blocktest.NewEnv(t)
	var c clock
	c.into(env)
	e := blocktest.NewEmulator(t, blocktest.EmulatorConfig{Size: 1 << 20})
	client := blocktest.NewClient(t, blocktest.Edge(t, openOver(t, env, e, ",iops-total=10")))
	b := blocktest.Memory(t, 512)
	for range 12 {
		if ok, err := client.ReadFast(0, b); ok || err != nil {
			t.Fatalf("fast %v, %v", ok, err)
		}
		if err := client.Read(0, b); err != nil {
			t.Fatal(err)
		}
	}
	if took := c.ns.Load(); took < second*99/100 || took > second*101/100 {
		t.Errorf("12 requests at 10 a second, 2 of them at once, took %d ns", took)
	}
}

// Disks of a group share what the first of them was given.
func TestGroups(t *testing.T) {
	env := blocktest.NewEnv(t)
	var c clock
	c.into(env)
	e := blocktest.NewEmulator(t, blocktest.EmulatorConfig{Size: 1 << 20})
	storage := blocktest.Attach(t, env, e, "storage")
	try := func(text string) (*block.Instance, error) {
		vals, err := block.ParseOptions("driver=throttle" + text)
		if err != nil {
			t.Fatal(err)
		}
		return blocktest.TryOpen(t, env, vals, map[string]*block.Instance{"file": storage}, true)
	}
	var clients []*blocktest.Client
	for _, text := range []string{",group=a,iops-total=10", ",group=a", ",group=a,iops-total=10"} {
		in, err := try(text)
		if err != nil {
			t.Fatal(err)
		}
		clients = append(clients, blocktest.NewClient(t, blocktest.Edge(t, in)))
	}
	if _, err := try(",group=a,iops-total=11"); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("other limits for the same group: %v", err)
	}
	if _, err := try(",group=b,iops-total=11"); err != nil {
		t.Errorf("another group: %v", err)
	}
	for i := range 32 {
		if err := clients[i%3].Read(0, make([]byte, 512)); err != nil {
			t.Fatal(err)
		}
	}
	if took := c.ns.Load(); took < second*299/100 || took > second*301/100 {
		t.Errorf("32 requests of three disks that share 10 a second took %d ns", took)
	}
}

// What the filter costs a request that may begin at once.
func BenchmarkMap(b *testing.B) {
	for _, text := range []string{"none", ",iops-total=1000000000000", ",iops-total=1000000000000,bps-total=1000000000000000"} {
		b.Run(text, func(b *testing.B) {
			env := blocktest.NewEnv(b)
			e := blocktest.NewEmulator(b, blocktest.EmulatorConfig{Size: 1 << 20, Fast: true})
			in := blocktest.Attach(b, env, e, "storage")
			if text != "none" {
				in = openOver(b, env, e, text)
			}
			child := blocktest.Edge(b, in)
			q := block.NewQueue(env, block.NewQueueGroup())
			defer q.Close()
			v := block.Vec{blocktest.Memory(b, 4096)}
			for b.Loop() {
				rq := q.Begin()
				if _, ok := child.Map(rq, block.OpRead, 0, v, 0); !ok {
					b.Fatal("declined")
				}
				child.Finish(rq, 4096, 4096, nil)
				q.End(rq, block.OpRead, 4096, nil)
			}
		})
	}
}
