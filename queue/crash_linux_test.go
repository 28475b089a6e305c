package queue

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/virtio"
)

// A queue whose process dies between any two steps: the successor does again
// what was in flight, the guest gets each answer once, and nothing is lost.

// mortal is a queue that ends at the n-th step of any kind, as if killed: its
// loop goes no further.
func mortal(t *testing.T, c *block.Child, n int) (q *Queue, dead <-chan struct{}) {
	q, err := Start(Config{Child: c, Env: c.Instance().Env(), Group: block.NewQueueGroup(), Name: "disk", Poll: -1})
	if err != nil {
		t.Fatal(err)
	}
	died := make(chan struct{})
	step := func() {
		if n--; n == 0 {
			close(died)
			runtime.Goexit()
		}
	}
	whileIdle(t, q, func() {
		q.ringHook = func(virtio.Step) { step() }
		q.hook = func(point) { step() }
	})
	return q, died
}

// bury frees what a dead queue leaves, once its requests have ended: a
// successor waits for that (protocol/file has the lock).
func bury(t *testing.T, q *Queue) {
	q.work.close()
	if err := q.eng.Close(); err != nil {
		t.Error(err)
	}
	q.bq.Close()
	q.table.close()
	ReserveProcs(-1)
	busyLoops.Add(-1)
}

// closes ends a queue. It may die yet: behind the last answer there are steps as
// well.
func closes(t *testing.T, q *Queue, dead <-chan struct{}) bool {
	t.Helper()
	closed := make(chan error, 1)
	go func() { closed <- q.Close(long(t)) }()
	select {
	case err := <-closed:
		if err != nil {
			t.Fatal(err)
		}
		return true
	case <-dead:
		return false
	}
}

const crashRequests = 9

func recordIn(record []uint64) Record { return Record{Mem: bytesOf(record), Size: 32} }

// crashAt runs the script with a death at step n, and reports whether there was
// one.
func crashAt(t *testing.T, features uint64, n int) (died bool) {
	d := newGated()
	c := d.edge(t)
	g := newGuest(t, guestConfig{size: 32, features: features})
	packed := features&virtio.FeatureRingPacked != 0
	record := make([]uint64, virtio.InflightSize(32, packed)/8)
	q, dead := mortal(t, c, n)
	v := g.vring()
	v.Record = recordIn(record)
	attached := make(chan error, 1)
	go func() { attached <- errors.Join(q.Attach(v), q.Enable(true)) }()
	select {
	case err := <-attached:
		if err != nil {
			t.Fatal(err)
		}
	case <-dead: // at once: taking up the records is a step, too
	}
	answers := map[int]int{}
	of := offerWrites(t, g, crashRequests)
	take := func(id uint16) {
		k := of[id]
		if answers[k]++; answers[k] > 1 {
			t.Errorf("step %d: request %d was answered twice", n, k)
		}
		if g.status(k) != virtio.BlkOK {
			t.Errorf("step %d: request %d has status %d", n, k, g.status(k))
		}
	}
	for len(answers) < crashRequests && !died {
		if id, _, ok := g.awaitFor(time.Millisecond); ok {
			take(id)
		}
		select {
		case <-dead:
			died = true
		default:
		}
	}
	if !died && closes(t, q, dead) {
		return len(answers) < crashRequests
	}
	bury(t, q)
	next := startDetached(t, Config{Child: c, Poll: -1})
	v.Record = recordIn(record)
	if err := errors.Join(next.Attach(v), next.Enable(true)); err != nil {
		t.Fatalf("step %d: %v", n, err)
	}
	for len(answers) < crashRequests {
		id, _, ok := g.awaitFor(patience)
		if !ok {
			t.Fatalf("step %d: %d of %d requests were lost", n, crashRequests-len(answers), crashRequests)
		}
		take(id)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for k := range crashRequests {
		if runs := d.runs[k].Load(); runs < 1 || runs > 2 || d.data[k*512] != byte(k+1) {
			t.Errorf("step %d: request %d was done %d times, content %d", n, k, runs, d.data[k*512])
		}
	}
	return true
}

func TestRecoveryAtEachStep(t *testing.T) {
	for _, r := range rings {
		t.Run(r.name, func(t *testing.T) {
			steps := 0
			for n := 1; ; n++ {
				died := false
				t.Run(fmt.Sprint(n), func(t *testing.T) { died = crashAt(t, r.features, n) })
				if !died {
					break
				}
				steps = n
			}
			if steps < 5*crashRequests {
				t.Errorf("only %d steps for %d requests: the hooks are not called", steps, crashRequests)
			}
		})
	}
}

// The pages that a request has written are in the log before the guest can see
// that it is done, and those of the ring soon after.
func TestDirtyLogComesFirst(t *testing.T) {
	for _, r := range rings {
		t.Run(r.name, func(t *testing.T) {
			_, c := disk(t, newEnv(), "driver=mem,size=16M", false)
			g := newGuest(t, guestConfig{size: 32, features: r.features})
			bits := make([]uint64, (guestBase+len(g.mem))/virtio.LogPage/64+1)
			log, err := virtio.NewLog(bytesOf(bits))
			if err != nil {
				t.Fatal(err)
			}
			marked := func(off int) bool {
				p := (guestBase + off) / virtio.LogPage
				return bits[p/64]&(1<<(p%64)) != 0
			}
			q := startDetached(t, Config{Child: c})
			var late atomic.Int32
			whileIdle(t, q, func() {
				q.hook = func(p point) {
					if p == pointPublished && !(marked(g.dataBase) && marked(g.dataBase+4096) && marked(g.headers)) {
						late.Add(1)
					}
				}
			})
			v := g.vring()
			v.Log = log
			v.RingLog = RingLog{On: true, Desc: guestBase, Device: guestBase + uint64(g.deviceAt)}
			if err := errors.Join(q.Attach(v), q.Enable(true)); err != nil {
				t.Fatal(err)
			}
			if st, _ := g.one(uint32(virtio.BlkIn), 0, 8192, 2, false); st != virtio.BlkOK {
				t.Fatalf("status %d", st)
			}
			if err := q.SetLog(nil, RingLog{}); err != nil {
				t.Fatal(err)
			}
			if late.Load() != 0 {
				t.Error("pages were marked after the used entry was published")
			}
			if !marked(g.deviceAt) {
				t.Error("the ring's own page is not marked")
			}
			if marked(g.dataBase + 8192) {
				t.Error("a page is marked that was not written")
			}
			clear(bits)
			g.one(uint32(virtio.BlkIn), 0, 8192, 2, false)
			for _, b := range bits {
				if b != 0 {
					t.Fatal("pages are marked in a log that was taken away")
				}
			}
			if s := q.Stats(); s.Logged != 1 || s.Unlogged != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// A write marks its status byte's page alone: its data was read.
func TestDirtyLogOfWrites(t *testing.T) {
	_, c := disk(t, newEnv(), "driver=mem,size=16M", false)
	g := newGuest(t, guestConfig{size: 32})
	bits := make([]uint64, (guestBase+len(g.mem))/virtio.LogPage/64+1)
	log, err := virtio.NewLog(bytesOf(bits))
	if err != nil {
		t.Fatal(err)
	}
	q := start(t, g, Config{Child: c})
	if err := q.SetLog(log, RingLog{}); err != nil {
		t.Fatal(err)
	}
	g.one(uint32(virtio.BlkOut), 0, 8192, 2, true)
	if err := q.SetLog(nil, RingLog{}); err != nil {
		t.Fatal(err)
	}
	for p := range len(g.mem) / virtio.LogPage {
		at := guestBase/virtio.LogPage + p
		if got := bits[at/64]&(1<<(at%64)) != 0; got != (p == g.headers/virtio.LogPage) {
			t.Errorf("page %d of %d: marked %v", p, len(g.mem)/virtio.LogPage, got)
		}
	}
}
