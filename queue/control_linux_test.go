package queue

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/block/blocktest"
	"github.com/platter-storage/platter/virtio"
)

// gated is a disk in memory whose requests wait at a gate.
type gated struct {
	info block.Info
	mu   sync.Mutex
	data []byte
	gate atomic.Pointer[chan struct{}]
	at   atomic.Int32     // requests at the gate
	runs [64]atomic.Int32 // how often each sector was written
}

const gatedSize = 1 << 20

func newGated() *gated {
	d := &gated{data: make([]byte, gatedSize)}
	d.info.WriteFlags = block.FUA
	d.info.SetLimits(block.ByteLimits())
	d.info.SetSize(gatedSize)
	return d
}

func (d *gated) shut() { c := make(chan struct{}); d.gate.Store(&c) }
func (d *gated) open() {
	if c := d.gate.Swap(nil); c != nil {
		close(*c)
	}
}

func (d *gated) pass() {
	if c := d.gate.Load(); c != nil {
		d.at.Add(1)
		<-*c
		d.at.Add(-1)
	}
}

func (d *gated) Info() *block.Info { return &d.info }
func (d *gated) Preadv(_ *block.Req, off int64, v block.Vec, _ block.Flags) error {
	d.pass()
	d.mu.Lock()
	defer d.mu.Unlock()
	v.CopyIn(d.data[off:off+v.Len()], 0)
	return nil
}

func (d *gated) Pwritev(_ *block.Req, off int64, v block.Vec, _ block.Flags) error {
	d.pass()
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := off / 512; int(s) < len(d.runs) {
		d.runs[s].Add(1)
	}
	v.CopyOut(d.data[off:off+v.Len()], 0)
	return nil
}

func (d *gated) WriteZeroes(*block.Req, int64, int64, block.Flags) error {
	return block.ErrNotSupported
}
func (d *gated) Discard(*block.Req, int64, int64) error { return block.ErrNotSupported }
func (d *gated) Flush(*block.Req) error                 { d.pass(); return nil }
func (d *gated) BlockStatus(_ *block.Req, _, n int64) (block.Extent, error) {
	return block.Extent{Len: n, Data: true, Host: -1}, nil
}
func (d *gated) Truncate(*block.Req, int64, block.Prealloc) error { return nil }
func (d *gated) Close() error                                     { return nil }

func (d *gated) edge(t testing.TB) *block.Child {
	t.Cleanup(d.open)
	return blocktest.Edge(t, blocktest.Attach(t, newEnv(), d, "gated"))
}

// until waits for something that must come.
func until(t testing.TB, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !f(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not after %v", what, patience)
		}
	}
}

func brief(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

func long(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// offerWrites puts writes of one sector each into the ring, and gives the slot
// of each chain.
func offerWrites(t testing.TB, g *guest, n int) map[uint16]int {
	t.Helper()
	of := map[uint16]int{}
	for k := range n {
		copy(g.buffer(k), bytes.Repeat([]byte{byte(k + 1)}, 512))
		id, ok := g.offer(k, uint32(virtio.BlkOut), uint64(k), 512, 1, true)
		if !ok {
			t.Fatal("the ring is full")
		}
		of[id] = k
	}
	g.kickNow()
	return of
}

// A stalled disk: Stop waits, and says so when its time is up; statistics
// answer; the other queue serves. Once the disk answers all is published and
// the queue stops where it was.
func TestStopWaitsForTheDisk(t *testing.T) {
	for _, r := range rings {
		t.Run(r.name, func(t *testing.T) {
			d := newGated()
			c := d.edge(t)
			g := newGuest(t, guestConfig{size: 32, features: r.features})
			q := start(t, g, Config{Child: c})
			healthy := newGuest(t, guestConfig{size: 32})
			_, quick := disk(t, newEnv(), "driver=null", false)
			start(t, healthy, Config{Child: quick, Index: 1})
			d.shut()
			of := offerWrites(t, g, 8)
			until(t, "requests at the gate", func() bool { return d.at.Load() == 8 })
			if _, err := q.Stop(brief(t)); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("stopping over a stalled disk: %v", err)
			}
			if s := q.Stats(); s.InFlight != 8 || s.State != Enabled {
				t.Errorf("statistics of a stalled queue: %+v", s)
			}
			if err := q.SetCall(g.called); err != nil {
				t.Error(err)
			}
			if st, _ := healthy.one(uint32(virtio.BlkIn), 0, 4096, 1, false); st != virtio.BlkOK {
				t.Errorf("the other queue: status %d", st)
			}
			if id, ok := g.offer(20, uint32(virtio.BlkIn), 0, 512, 1, false); !ok {
				t.Fatal("the ring is full")
			} else {
				of[id] = 20
			}
			g.kickNow() // what comes after the order to stop is not taken
			d.open()
			base, err := q.Stop(long(t))
			if err != nil {
				t.Fatal(err)
			}
			for range 8 {
				id, _ := g.await()
				if k := of[id]; k == 20 || g.status(k) != virtio.BlkOK {
					t.Fatalf("request %d: status %d", k, g.status(k))
				}
			}
			if s := q.Stats(); s.State != Detached || s.InFlight != 0 || s.Taken != 8 {
				t.Errorf("statistics of a stopped queue: %+v", s)
			}
			v := g.vring()
			v.Base = base
			if err := errors.Join(q.Attach(v), q.Enable(true)); err != nil {
				t.Fatal(err)
			}
			if id, _ := g.await(); of[id] != 20 || g.status(20) != virtio.BlkOK {
				t.Error("what was offered to the stopped queue was not done by its successor")
			}
		})
	}
}

// remappable is guest memory of which a device can have any number of views.
type remappable struct {
	*guest
	fd int
}

func newRemappable(t *testing.T, features uint64) *remappable {
	g := &remappable{}
	g.guest = newGuest(t, guestConfig{size: 32, features: features, memory: shortMemory(t, &g.fd)})
	return g
}

// view maps the memory once more, and says where the ring lies there.
func (g *remappable) view(t *testing.T) (mem []byte, m *virtio.Map, desc, driver, device []byte) {
	mem, err := unix.Mmap(g.fd, 0, len(g.mem), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	if m, err = virtio.NewMap([]virtio.Region{{Guest: guestBase, User: 1 << 40, Mem: mem}}); err != nil {
		t.Fatal(err)
	}
	cut := func(b []byte) []byte {
		at := blocktest.Address(b) - blocktest.Address(g.mem)
		return mem[at : int(at)+len(b)]
	}
	return mem, m, cut(g.layout.Desc), cut(g.layout.Driver), cut(g.layout.Device)
}

// A change of memory waits for what touches it, in the slow lane too, and the
// queue goes on in the new mapping with the old one gone.
func TestSetMapWaitsForTheDisk(t *testing.T) {
	for _, r := range rings {
		t.Run(r.name, func(t *testing.T) {
			d := newGated()
			g := newRemappable(t, r.features)
			q := startDetached(t, Config{Child: d.edge(t)})
			v := g.vring()
			var old []byte
			old, v.Map, v.Layout.Desc, v.Layout.Driver, v.Layout.Device = g.view(t)
			if err := errors.Join(q.Attach(v), q.Enable(true)); err != nil {
				t.Fatal(err)
			}
			d.shut()
			of := offerWrites(t, g.guest, 4)
			until(t, "requests at the gate", func() bool { return d.at.Load() == 4 })
			next, m, desc, driver, device := g.view(t)
			done := make(chan error, 1)
			go func() { done <- q.SetMap(context.Background(), m, desc, driver, device) }()
			select {
			case err := <-done:
				t.Fatalf("the memory was changed under requests in flight: %v", err)
			case <-time.After(20 * time.Millisecond):
			}
			d.open()
			if err := errors.Join(<-done, unix.Munmap(old)); err != nil {
				t.Fatal(err)
			}
			for range 4 {
				if id, _ := g.await(); g.status(of[id]) != virtio.BlkOK {
					t.Errorf("status %d", g.status(of[id]))
				}
			}
			clear(g.buffer(0))
			if st, _ := g.one(uint32(virtio.BlkIn), 3, 512, 1, false); st != virtio.BlkOK || g.buffer(0)[511] != 4 {
				t.Errorf("in the new memory: status %d, content %d", st, g.buffer(0)[511])
			}
			if _, err := q.Stop(long(t)); err != nil {
				t.Fatal(err)
			}
			if err := unix.Munmap(next); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// Memory that is added waits for nothing, whatever the disk does, and what is in
// flight in the memory that was there ends in it.
func TestAddedMemoryWaitsForNothing(t *testing.T) {
	for _, r := range rings {
		t.Run(r.name, func(t *testing.T) {
			d := newGated()
			g := newGuest(t, guestConfig{size: 32, features: r.features})
			bits := make([]uint64, 2*guestBase/virtio.LogPage/64)
			log, err := virtio.NewLog(bytesOf(bits))
			if err != nil {
				t.Fatal(err)
			}
			q := startDetached(t, Config{Child: d.edge(t)})
			v := g.vring()
			v.Log = log
			if err := errors.Join(q.Attach(v), q.Enable(true)); err != nil {
				t.Fatal(err)
			}
			d.shut()
			if _, ok := g.offer(0, uint32(virtio.BlkIn), 7, 512, 1, false); !ok {
				t.Fatal("the ring is full")
			}
			d.data[7*512] = 77
			g.kickNow()
			until(t, "a request at the gate", func() bool { return d.at.Load() == 1 })

			const newAt = guestBase - 1<<20
			more := anonymous(t, 4096)
			regions := []virtio.Region{{Guest: guestBase, User: 1 << 40, Mem: g.mem}, {Guest: newAt, User: 1 << 41, Mem: more}}
			m, err := virtio.NewMap(regions)
			if err != nil {
				t.Fatal(err)
			}
			if err := q.SetMap(long(t), m, g.layout.Desc, g.layout.Driver, g.layout.Device); err != nil {
				t.Fatalf("adding memory over a stalled disk: %v", err)
			}
			// A request into it is taken while the first one is still out.
			g.header(1, uint32(virtio.BlkIn), 7)
			head := g.gpa(g.headers + 32)
			if _, ok := g.driver.Add([]virtio.Seg{{Addr: head, Len: headLen}}, []virtio.Seg{{Addr: newAt, Len: 512}, {Addr: head + headLen, Len: 1}}, false); !ok {
				t.Fatal("the ring is full")
			}
			g.kickNow()
			until(t, "both at the gate", func() bool { return d.at.Load() == 2 })
			d.open()
			g.await()
			g.await()
			if g.status(0) != virtio.BlkOK || g.buffer(0)[0] != 77 || g.status(1) != virtio.BlkOK || more[0] != 77 {
				t.Errorf("status %d and %d, content %d and %d", g.status(0), g.status(1), g.buffer(0)[0], more[0])
			}
			for _, gpa := range []uint64{newAt, g.gpa(g.dataBase)} {
				if page := gpa / virtio.LogPage; atomic.LoadUint64(&bits[page/64])>>(page%64)&1 == 0 {
					t.Errorf("page %#x was written and is not in the log", page)
				}
			}
			if s := q.Stats(); s.Unlogged != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// A queue that is not enabled takes nothing; what is in flight ends.
func TestDisabledTakesNothing(t *testing.T) {
	d := newGated()
	g := newGuest(t, guestConfig{size: 32})
	q := start(t, g, Config{Child: d.edge(t)})
	d.shut()
	of := offerWrites(t, g, 3)
	until(t, "requests at the gate", func() bool { return d.at.Load() == 3 })
	if err := q.Enable(false); err != nil {
		t.Fatal(err)
	}
	d.open()
	for range 3 {
		id, _ := g.await()
		delete(of, id)
	}
	g.offer(5, uint32(virtio.BlkIn), 0, 512, 1, false)
	g.kickNow()
	if err := q.Drain(long(t)); err != nil {
		t.Fatal(err)
	}
	if s := q.Stats(); s.Taken != 3 || s.State != Disabled {
		t.Errorf("%+v", s)
	}
	if err := q.Enable(true); err != nil {
		t.Fatal(err)
	}
	g.await()
}

// Other descriptors take the place of those there were while the queue runs.
func TestDescriptorsChange(t *testing.T) {
	_, c := disk(t, newEnv(), "driver=null", false)
	g := newGuest(t, guestConfig{size: 32})
	q := start(t, g, Config{Child: c, Poll: -1})
	for range 20 {
		kick, call := eventfd(t), eventfd(t)
		if err := errors.Join(q.SetKick(kick), q.SetCall(call)); err != nil {
			t.Fatal(err)
		}
		g.kick, g.called = kick, call
		if st, _ := g.one(uint32(virtio.BlkIn), 0, 512, 1, false); st != virtio.BlkOK {
			t.Fatalf("status %d", st)
		}
	}
}

// A ring without descriptors is looked at.
func TestNoDescriptors(t *testing.T) {
	_, c := disk(t, newEnv(), "driver=null", false)
	g := newGuest(t, guestConfig{size: 32})
	v := g.vring()
	v.Kick, v.Call, v.Err = -1, -1, -1
	q := startDetached(t, Config{Child: c})
	if err := errors.Join(q.Attach(v), q.Enable(true)); err != nil {
		t.Fatal(err)
	}
	g.offer(0, uint32(virtio.BlkIn), 0, 512, 1, false)
	g.driver.Kick()
	until(t, "an answer", func() bool {
		_, _, ok, err := g.driver.Next()
		if err != nil {
			t.Fatal(err)
		}
		return ok
	})
}

// More requests than slots: the rest waits on the ring, and is served.
func TestB8DepthIsKept(t *testing.T) {
	d := newGated()
	g := newGuest(t, guestConfig{size: 64})
	q := start(t, g, Config{Child: d.edge(t), Depth: 4, Workers: 64})
	d.shut()
	of := offerWrites(t, g, 20)
	until(t, "requests at the gate", func() bool { return d.at.Load() == 4 })
	if s := q.Stats(); s.InFlight != 4 || s.Taken != 4 {
		t.Errorf("%+v", s)
	}
	d.open()
	for range 20 {
		if id, _ := g.await(); g.status(of[id]) != virtio.BlkOK {
			t.Errorf("status %d", g.status(of[id]))
		}
	}
}

// More long requests than slabs: they wait for one, and are served.
func TestB8LongRequestsWaitForRoom(t *testing.T) {
	d := newGated()
	g := newGuest(t, guestConfig{size: 128, buffer: 16 << 10, tableLen: 34, features: virtio.FeatureIndirectDesc})
	q := start(t, g, Config{Child: d.edge(t), Depth: 128, Workers: 128})
	d.shut()
	for k := range maxSlabs + 8 {
		if _, ok := g.offer(k, uint32(virtio.BlkOut), uint64(k)*16, 16<<10-512, 31, true); !ok {
			t.Fatal("the ring is full")
		}
	}
	g.kickNow()
	until(t, "as many requests as slabs", func() bool { return d.at.Load() == maxSlabs })
	until(t, "one that waits", func() bool { return q.Stats().Crowded == 1 })
	d.open()
	for range maxSlabs + 8 {
		g.await()
	}
	for k := range maxSlabs + 8 {
		if g.status(k) != virtio.BlkOK {
			t.Errorf("request %d: status %d", k, g.status(k))
		}
	}
}

// Closing waits for what is in flight, and leaves no goroutine of the queue.
func TestCloseWaits(t *testing.T) {
	d := newGated()
	g := newGuest(t, guestConfig{size: 32})
	c := d.edge(t)
	q, err := Start(Config{Child: c, Env: c.Instance().Env(), Group: block.NewQueueGroup(), Name: "disk"})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(q.Attach(g.vring()), q.Enable(true)); err != nil {
		t.Fatal(err)
	}
	d.shut()
	of := offerWrites(t, g, 2)
	until(t, "requests at the gate", func() bool { return d.at.Load() == 2 })
	if err := q.Close(brief(t)); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("closed over a stalled disk: %v", err)
	}
	d.open()
	for range 2 {
		id, _ := g.await()
		delete(of, id)
	}
	until(t, "the end", func() bool { return errors.Is(q.Enable(true), ErrClosed) })
	if err := q.Close(long(t)); err != nil {
		t.Errorf("a second Close: %v", err)
	}
}

// An idle queue does not run: not once in a while.
func TestIdleIsIdle(t *testing.T) {
	_, c := disk(t, newEnv(), "driver=null", false)
	g := newGuest(t, guestConfig{size: 32})
	q := start(t, g, Config{Child: c})
	g.one(uint32(virtio.BlkIn), 0, 512, 1, false)
	tid := threadOf(t, q)
	until(t, "sleep", func() bool {
		s := q.Stats().Sleeps
		time.Sleep(5 * time.Millisecond)
		return q.asleep.Load() && q.Stats().Sleeps == s
	})
	// The runtime may interrupt it for a collection, so it may take several
	// looks. One that wakes by itself is idle in none.
	for look := range 20 {
		ns, runs := threadNs(t, tid)
		time.Sleep(300 * time.Millisecond)
		ns2, runs2 := threadNs(t, tid)
		if runs2 <= runs+2 {
			return
		}
		t.Logf("look %d: an idle loop ran %d times in 300 ms, %d ns", look, runs2-runs, ns2-ns)
	}
	t.Error("the loop is never idle")
}
