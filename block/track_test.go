package block

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/platter-storage/platter/internal/bufpool"
)

// testEnv is an environment for tests inside this package.
func testEnv(t testing.TB) *Env {
	start := time.Now()
	env := &Env{
		Now: func() int64 { return int64(time.Since(start)) }, Go: func(f func()) { go f() },
		Buffers: bufpool.New(bufpool.Config{Limit: 4 << 20}),
	}
	t.Cleanup(func() {
		if err := env.CloseBuffers(); err != nil {
			t.Error(err)
		}
	})
	return env
}

// watch ends the test with all stacks if it takes too long: a lost wake-up
// shows as that.
func watch(t *testing.T, limit time.Duration) {
	timer := time.AfterFunc(limit, func() {
		b := make([]byte, 1<<20)
		panic(fmt.Sprintf("%s hangs:\n%s", t.Name(), b[:runtime.Stack(b, true)]))
	})
	t.Cleanup(func() { timer.Stop() })
}

// soak is how long a stress test goes on: longer where PLATTER_SOAK says so.
func soak(least time.Duration) time.Duration {
	d, _ := time.ParseDuration(os.Getenv("PLATTER_SOAK")) // empty or wrong: no soak
	return max(d/16, least)
}

// arena checks exclusion: each cell counts the ordinary requests that run over
// it, and a serialising one is alone in all of its cells.
type arena struct {
	cells   [64]atomic.Int64
	drained atomic.Bool
}

const alone = 1 << 32

// hold runs inside a request over cells [from, to).
func (a *arena) hold(from, to int, serialising bool, rnd *rand.Rand) error {
	weight := int64(1)
	if serialising {
		weight = alone
	}
	defer func() {
		for i := from; i < to; i++ {
			a.cells[i].Add(-weight)
		}
	}()
	var err error
	for i := from; i < to; i++ {
		now := a.cells[i].Add(weight)
		if serialising && now != alone || !serialising && now >= alone {
			err = fmt.Errorf("cell %d has %d ordinary and %d serialising requests at once", i, now%alone, now/alone)
		}
	}
	if a.drained.Load() {
		err = fmt.Errorf("a request runs on a drained node")
	}
	for range rnd.IntN(4) {
		runtime.Gosched()
	}
	return err
}

// Random overlapping requests, serialising, ordinary and of the fast lane,
// with drains and truncates among them: a serialising one is alone in its
// range, a drained node is at rest, and nobody waits for ever.
func TestTrackerExcludes(t *testing.T) {
	watch(t, soak(0)+2*time.Minute)
	var tr tracker
	var a arena
	env, group := testEnv(t), NewQueueGroup()
	end := time.Now().Add(soak(300 * time.Millisecond))
	var wg sync.WaitGroup
	var requests, waits, givenUp, drains atomic.Int64
	seed := uint64(time.Now().UnixNano())
	for w := range 12 {
		wg.Go(func() {
			q := NewQueue(env, group)
			rnd := rand.New(rand.NewPCG(seed, uint64(w)))
			for time.Now().Before(end) {
				if err := trackOne(&tr, &a, q, rnd, &waits, &givenUp); err != nil {
					t.Errorf("seed %d: %v", seed, err)
					return
				}
				requests.Add(1)
			}
		})
	}
	wg.Go(func() {
		q := NewQueue(env, group)
		for time.Now().Before(end) {
			if err := drainOne(&tr, &a, q); err != nil {
				t.Error(err)
			}
			drains.Add(1)
			time.Sleep(time.Millisecond)
		}
	})
	wg.Wait()
	if len(tr.barriers) != 0 || tr.raised.Load() != 0 || tr.drains != 0 || len(tr.waiting) != 0 {
		t.Errorf("left behind: %d barriers, %d raised, %d drains, %d waiting", len(tr.barriers), tr.raised.Load(), tr.drains, len(tr.waiting))
	}
	for i := range tr.shards {
		if tr.shards[i].head != nil {
			t.Errorf("shard %d is not empty", i)
		}
	}
	t.Logf("%d requests, of which %d waited and %d gave up, and %d drains", requests.Load(), waits.Load(), givenUp.Load(), drains.Load())
	if requests.Load() == 0 || waits.Load() == 0 || givenUp.Load() == 0 || drains.Load() == 0 {
		t.Error("nothing met")
	}
}

// trackOne is one request of a random kind over a random range.
func trackOne(tr *tracker, a *arena, q *Queue, rnd *rand.Rand, waits, givenUp *atomic.Int64) error {
	rq := q.Begin()
	defer q.End(rq, OpRead, 0, nil)
	if rnd.IntN(3) == 0 { // some give up
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rnd.IntN(50))*time.Microsecond)
		defer cancel()
		rq.SetContext(ctx)
	}
	f := rq.push()
	defer rq.pop()
	from := rnd.IntN(len(a.cells))
	to := from + 1 + rnd.IntN(min(8, len(a.cells)-from))
	if rnd.IntN(200) == 0 {
		from, to = 0, len(a.cells)
	}
	off, end := int64(from), int64(to)
	switch rnd.IntN(5) {
	case 0, 1:
		waited, err := tr.enterBarrier(f, off, end)
		if err != nil {
			givenUp.Add(1)
			return nil
		}
		defer tr.leaveBarrier(f)
		if waited {
			waits.Add(1)
		}
		return a.hold(from, to, true, rnd)
	case 2:
		if !tr.tryEnter(f, off, end) {
			return nil
		}
	default:
		waited, err := tr.enter(f, off, end)
		if err != nil {
			givenUp.Add(1)
			return nil
		}
		if waited {
			waits.Add(1)
		}
	}
	defer tr.leave(f)
	return a.hold(from, to, false, rnd)
}

// drainOne drains, looks, and lets go.
func drainOne(tr *tracker, a *arena, q *Queue) error {
	rq := q.Begin()
	defer q.End(rq, OpFlush, 0, nil)
	tr.drain(rq)
	defer tr.undrain()
	a.drained.Store(true)
	defer a.drained.Store(false)
	for i := range a.cells {
		if n := a.cells[i].Load(); n != 0 {
			return fmt.Errorf("cell %d is in use on a drained node", i)
		}
	}
	runtime.Gosched()
	return nil
}

// A request that waits for a serialising one does not hold up a third that
// touches neither.
func TestTrackerIndependentRanges(t *testing.T) {
	watch(t, time.Minute)
	var tr tracker
	env, group := testEnv(t), NewQueueGroup()
	q := NewQueue(env, group)
	one, two, three := q.Begin(), q.Begin(), q.Begin()
	f1 := one.push()
	mustEnter(t)(tr.enterBarrier(f1, 0, 10))
	waited := make(chan bool)
	f2 := two.push()
	go func() { waited <- mustEnter(t)(tr.enter(f2, 5, 15)) }()
	f3 := three.push()
	if mustEnter(t)(tr.enter(f3, 10, 20)) {
		t.Error("a request beside the serialising one waited")
	}
	if tr.tryEnter(two.push(), 9, 10) {
		t.Error("the fast lane got into the serialising one's range")
	}
	two.pop()
	tr.leave(f3)
	for tr.waiters() == 0 {
		time.Sleep(time.Millisecond)
	}
	tr.leaveBarrier(f1)
	if !<-waited {
		t.Error("the request that overlaps did not wait")
	}
	tr.leave(f2)
}

// mustEnter is whether a request without a context had to wait.
func mustEnter(t *testing.T) func(waited bool, err error) bool {
	return func(waited bool, err error) bool {
		if err != nil {
			t.Error(err)
		}
		return waited
	}
}

func (t *tracker) waiters() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.waiting)
}
