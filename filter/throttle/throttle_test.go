package throttle

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/block/blocktest"
)

const second = int64(1e9)

// greedy takes requests of n bytes one after the other as soon as it may, and
// returns when each began.
func greedy(b *Bucket, dir int, n int64, from int64, count int) []int64 {
	var at []int64
	for now := from; len(at) < count; {
		now += b.Take(dir, n, now)
		at = append(at, now)
	}
	return at
}

// However limits are chosen: no second has more than a burst and what the rate
// allows, and who never rests gets the rate.
func TestTheRateHolds(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 300 {
		l := Limit{Avg: 1 + rng.Int64N(1<<rng.IntN(30)), MaxLength: 1}
		if rng.IntN(2) == 0 {
			l.Max, l.MaxLength = l.Avg+rng.Int64N(l.Avg+1), 1+rng.Int64N(5)
		}
		burst := max(l.Avg/10, 1)
		if l.Max > 0 {
			burst = l.Max * l.MaxLength
		}
		var lim Limits
		lim.Bytes[Total] = l
		n := max(burst/20, 1)
		at := greedy(NewBucket(lim), Reads, n, 0, 200)
		for first := range at {
			for last := first + 1; last < len(at); last += 1 + last/4 {
				got, span := float64(int64(last-first)*n), float64(at[last]-at[first])/1e9
				if most := float64(burst) + float64(l.Avg)*span + 1; got > most {
					t.Fatalf("case %d: %+v: %g bytes within %g s, %g may be", i, l, got, span, most)
				}
			}
		}
		sent, span := float64(200*n), float64(at[len(at)-1])/1e9
		if least := float64(l.Avg)*span - float64(n); sent < least {
			t.Fatalf("case %d: %+v: only %g bytes in %g s", i, l, sent, span)
		}
	}
}

// A burst that may last longer runs at its own rate.
func TestABurstHasARate(t *testing.T) {
	var lim Limits
	lim.Requests[Total] = Limit{Avg: 100, Max: 1000, MaxLength: 3}
	at := greedy(NewBucket(lim), Writes, 4096, 0, 4000)
	if n := before(at, second); n < 1000 || n > 1110 {
		t.Errorf("%d requests in the first second of a burst of 1000 a second", n)
	}
	if n := before(at, 10*second); n < 3900 || n > 4000 {
		t.Errorf("%d requests in 10 seconds: 3000 of the burst and 100 a second are 4000", n)
	}
}

func before(at []int64, end int64) (n int) {
	for _, x := range at {
		if x < end {
			n++
		}
	}
	return n
}

// What is longer than all that may come at once waits until all is there, and
// makes those wait that come after it.
func TestLongRequestsPass(t *testing.T) {
	var lim Limits
	lim.Bytes[Total] = Limit{Avg: 1 << 20, Max: 1 << 20, MaxLength: 1}
	b := NewBucket(lim)
	if w := b.Take(Reads, 16<<20, 0); w != 0 {
		t.Errorf("a long request waits %d ns though nothing was before it", w)
	}
	if w := b.Take(Reads, 1, 0); w < 14*second || w > 16*second {
		t.Errorf("the next byte waits %d ns; 16 s less one of burst were used up", w)
	}
}

// Reads and writes have limits of their own; a long request counts as several.
func TestDirectionsAndSizes(t *testing.T) {
	var lim Limits
	lim.Requests[Writes] = Limit{Avg: 10, MaxLength: 1}
	lim.RequestSize = 4096
	b := NewBucket(lim)
	for range 100 {
		if w := b.Take(Reads, 1<<20, 0); w != 0 {
			t.Fatalf("a read waits %d ns for the limit of writes", w)
		}
	}
	if w := b.Take(Writes, 4096, 0); w != 0 {
		t.Errorf("the first write waits %d ns", w)
	}
	if w := b.Take(Writes, 5*4096, 0); w != second/10 {
		t.Errorf("the second write waits %d ns, not a tenth of a second", w)
	}
	if w := b.Take(Writes, 1, 0); w != second*6/10 {
		t.Errorf("behind a write that counts as 5 the next waits %d ns, not 0.6 s", w)
	}
}

// Who asks first begins first, and trying does not overtake who waits.
func TestOrder(t *testing.T) {
	var lim Limits
	lim.Requests[Total] = Limit{Avg: 10, MaxLength: 1}
	b := NewBucket(lim)
	last := int64(-1)
	for i := range 20 {
		w := b.Take(i%2+1, 512, 0)
		if w < last {
			t.Fatalf("request %d waits %d ns, the one before it %d", i, w, last)
		}
		last = w
	}
	if b.TryTake(Reads, 512, last) {
		t.Error("a request overtook one whose turn comes now")
	}
	if !b.TryTake(Reads, 512, last+second/10) {
		t.Error("nobody waits and a request was declined")
	}
	w := b.Take(Reads, 512, last+second/10)
	b.Refund(Reads, 512)
	if again := b.Take(Reads, 512, last+second/10); again != w {
		t.Errorf("after a refund the wait is %d, was %d", again, w)
	}
}

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
		"read":    {Reads, func(c *blocktest.Client) error { return c.Read(0, b) }},
		"write":   {Writes, func(c *blocktest.Client) error { return c.Write(0, 0, b) }},
		"zero":    {Writes, func(c *blocktest.Client) error { return c.Zero(0, 512, 0) }},
		"discard": {Writes, func(c *blocktest.Client) error { return c.Discard(0, 512) }},
		"flush":   {-1, func(c *blocktest.Client) error { return c.Flush() }},
		"status":  {-1, func(c *blocktest.Client) error { _, err := c.Status(0, 512); return err }},
	} {
		for _, k := range kinds {
			rate := "10"
			if k.bytes {
				rate = "5120"
			}
			clk, _, c := over(t, fmt.Sprintf(",%s=%s", k.name, rate))
			for range 11 {
				if err := op.f(c); err != nil {
					t.Fatal(err)
				}
			}
			limited := op.dir >= 0 && (k.dir == Total || k.dir == op.dir)
			if took := clk.ns.Load(); limited != (took > 0) || limited && (took < second*99/100 || took > second*101/100) {
				t.Errorf("11 times %s under %s took %d ns", name, k.name, took)
			}
		}
	}
}

// The fast lane passes what may begin, declines what must wait, and allocates
// nothing either way.
func TestFastLane(t *testing.T) {
	clk, _, c := over(t, ",iops-read=10")
	b := blocktest.Memory(t, 512)
	for i, want := range []bool{true, false} {
		if ok, err := c.ReadFast(0, b); ok != want || err != nil {
			t.Errorf("read %d: fast %v, %v", i, ok, err)
		}
	}
	if ok, err := c.WriteFast(0, 0, b); !ok || err != nil {
		t.Errorf("a write, which has no limit: fast %v, %v", ok, err)
	}
	clk.ns.Add(second)
	bucket := NewBucket(Limits{Requests: [3]Limit{{Avg: 1, MaxLength: 1}}})
	now := int64(0)
	if n := testing.AllocsPerRun(100, func() { bucket.TryTake(Reads, 512, now); now += second / 2 }); n != 0 {
		t.Errorf("%g allocations", n)
	}
}

// A request that is given up gives its share back.
func TestCancelledWhileWaiting(t *testing.T) {
	env := blocktest.NewEnv(t)
	env.Now = func() int64 { return 0 }
	e := blocktest.NewEmulator(t, blocktest.EmulatorConfig{Size: 1 << 20})
	in := openOver(t, env, e, ",iops-total=1,group=cancelled")
	child := blocktest.Edge(t, in)
	q := block.NewQueue(env, block.NewQueueGroup())
	defer q.Close()
	bucket, err := join("cancelled", Limits{}, false)
	if err != nil {
		t.Fatal(err)
	}
	defer leave("cancelled")
	if w := bucket.Take(Reads, 512, 0); w != 0 {
		t.Fatalf("the first request waits %d ns", w)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	rq := q.Begin()
	rq.SetContext(ctx)
	err = child.Preadv(rq, 0, block.Vec{make([]byte, 512)}, 0)
	q.End(rq, block.OpRead, 512, err)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled read gave %v", err)
	}
	if w := bucket.Take(Reads, 512, 0); w != second {
		t.Errorf("the next request waits %d ns: the one given up still counts", w)
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
	for i := range 31 {
		if err := clients[i%3].Read(0, make([]byte, 512)); err != nil {
			t.Fatal(err)
		}
	}
	if took := c.ns.Load(); took < second*299/100 || took > second*301/100 {
		t.Errorf("31 requests of three disks that share 10 a second took %d ns", took)
	}
}

// When the last disk of a group is closed the group is gone.
func TestGroupsEnd(t *testing.T) {
	for i := range MaxGroups + 10 {
		name := fmt.Sprint("short-lived-", i)
		if _, err := join(name, Limits{}, false); err != nil {
			t.Fatal(err)
		}
		leave(name)
	}
	var held []string
	defer func() {
		for _, name := range held {
			leave(name)
		}
	}()
	for i := range MaxGroups + 1 {
		name := fmt.Sprint("held-", i)
		_, err := join(name, Limits{}, false)
		if err == nil {
			held = append(held, name)
		} else if len(held) < MaxGroups-8 { // other tests hold a few
			t.Fatalf("group %d: %v", i, err)
		} else {
			return
		}
	}
	t.Error("there is no limit to the number of groups")
}

func TestOptionsAreChecked(t *testing.T) {
	env := blocktest.NewEnv(t)
	file := blocktest.Attach(t, env, blocktest.NewEmulator(t, blocktest.EmulatorConfig{Size: 4096}), "file")
	for text, ok := range map[string]bool{
		"":                                      true,
		",iops-total=1000000000000000":          true,
		",iops-total=1000000000000001":          false,
		",iops-total=-1":                        false,
		",iops-total-max=5":                     false,
		",iops-total=6,iops-total-max=5":        false,
		",iops-total=5,iops-total-max=5":        true,
		",iops-total=5,iops-total-max-length=2": false,
		",iops-total=5,iops-total-max=5,iops-total-max-length=0":          false,
		",bps-read=1,bps-read-max=1000000000000,bps-read-max-length=1000": true,
		",bps-read=1,bps-read-max=1000000000000,bps-read-max-length=1001": false,
		",iops-total=5,iops-read=5":                                       false,
		",iops-write=5,iops-read=5":                                       true,
		",bps-total=5,bps-write=5":                                        false,
		",bps-total=5,iops-write=5":                                       true,
		",iops-size=4K":                                                   false,
		",iops-size=4K,iops-write=1":                                      true,
		",bps-total=5,iops-size=4K":                                       false,
	} {
		vals, err := block.ParseOptions("driver=throttle" + text)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := blocktest.TryOpen(t, env, vals, map[string]*block.Instance{"file": file}, true); (err == nil) != ok {
			t.Errorf("%s: %v", text, err)
		}
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
