package queue

import (
	"bytes"
	"errors"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/block/blocktest"
	"github.com/platter-storage/platter/internal/testutil"
	"github.com/platter-storage/platter/virtio"
)

// lines is a log that tests read.
type lines struct{ testutil.Output }

func (l *lines) log() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// shortMemory is guest memory in a file that can be cut.
func shortMemory(t testing.TB, fd *int) func(n int) []byte {
	return func(n int) []byte {
		var err error
		if *fd, err = unix.MemfdCreate("guest", unix.MFD_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(*fd) })
		if err := unix.Ftruncate(*fd, int64(n)); err != nil {
			t.Fatal(err)
		}
		b, err := unix.Mmap(*fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Munmap(b) })
		return b
	}
}

// Memory behind a request's data that is gone fails that request, whoever
// touches it: the loop that copies, a worker, or the kernel. The queue goes on.
func TestDataThatIsGone(t *testing.T) {
	file := onDisk(t, ".", 16<<20)
	for name, text := range map[string]string{
		"in place": "driver=mem,size=16M", "nowhere": "driver=null,size=16M",
		"kernel": "driver=file,cache=none,filename=" + file, "page cache": "driver=file,filename=" + file,
		"worker":   "driver=fault,errno=none,delay-ns=1,file.driver=mem,file.size=16M",
		"bounced":  "driver=file,cache=none,request-align=4096,filename=" + file,
		"threads":  "driver=file,cache=none,aio=threads,filename=" + file,
		"in a mem": "driver=raw,file.driver=mem,file.size=16M",
	} {
		for _, write := range []bool{false, true} {
			t.Run(name+map[bool]string{false: "/read", true: "/write"}[write], func(t *testing.T) {
				env := newEnv()
				_, c := disk(t, env, text, false)
				fd := 0
				g := newGuest(t, guestConfig{size: 32, memory: shortMemory(t, &fd)})
				typ := uint32(virtio.BlkIn)
				if write {
					typ = uint32(virtio.BlkOut)
				}
				// A write to mem, so that there is something to read.
				if st, _ := one(t, g, c, uint32(virtio.BlkOut), 8192, true); st != virtio.BlkOK {
					t.Fatalf("status %d while the memory is there", st)
				}
				q := start(t, g.again(), Config{Child: c})
				if err := unix.Ftruncate(fd, int64(g.dataBase)); err != nil {
					t.Fatal(err)
				}
				want := byte(virtio.BlkIOErr)
				if name == "nowhere" && write {
					want = virtio.BlkOK // nobody looks
				}
				for range 3 {
					if st, _ := g.one(typ, 1, 1024, 1, write); st != want {
						t.Errorf("status %d, want %d", st, want)
					}
				}
				if st, _ := g.one(uint32(virtio.BlkFlush), 0, 0, 0, false); st != virtio.BlkOK {
					t.Errorf("a flush afterwards: status %d", st)
				}
				if s := q.Stats(); s.State != Enabled {
					t.Errorf("%+v", s)
				}
				if n := env.Buffers.Stats().InUse; n != 0 {
					t.Errorf("%d bytes of buffers in use", n)
				}
			})
		}
	}
}

// one runs one request through a queue of its own.
func one(t *testing.T, g *guest, c *block.Child, typ uint32, n int, write bool) (status byte, written uint32) {
	t.Helper()
	t.Run("before", func(t *testing.T) {
		start(t, g, Config{Child: c})
		status, written = g.one(typ, 0, n, 1, write)
	})
	return status, written
}

// again is the guest with a fresh ring in the same memory.
func (g *guest) again() *guest {
	clear(g.mem[:g.headers])
	d, err := virtio.NewDriver(g.layout, virtio.Tables{})
	if err != nil {
		g.t.Fatal(err)
	}
	g.driver = d
	return g
}

// A ring whose memory is gone stops its queue, which says so once, in the log
// and on the error descriptor. The other queues go on, and it stops and closes
// as any other.
func TestRingThatIsGone(t *testing.T) {
	for _, r := range rings {
		t.Run(r.name, func(t *testing.T) {
			_, c := disk(t, newEnv(), "driver=mem,size=16M", false)
			fd := 0
			var log lines
			g := newGuest(t, guestConfig{size: 32, features: r.features, memory: shortMemory(t, &fd)})
			healthy := newGuest(t, guestConfig{size: 32, features: r.features})
			q := start(t, g, Config{Child: c, Log: log.log(), Name: "sick"})
			start(t, healthy, Config{Child: c, Index: 1})
			if st, _ := g.one(uint32(virtio.BlkIn), 0, 512, 1, false); st != virtio.BlkOK {
				t.Fatalf("status %d", st)
			}
			if err := unix.Ftruncate(fd, 0); err != nil {
				t.Fatal(err)
			}
			signal(g.kick)
			if !readable(g.errFd, patience) {
				t.Fatal("nobody was told on the error descriptor")
			}
			if s := q.Stats(); s.State != Broken {
				t.Errorf("%+v", s)
			}
			if st, _ := healthy.one(uint32(virtio.BlkIn), 0, 512, 1, false); st != virtio.BlkOK {
				t.Errorf("the other queue: status %d", st)
			}
			signal(g.kick)
			if _, err := q.Stop(long(t)); err != nil {
				t.Error(err)
			}
			if n := strings.Count(log.String(), "level=ERROR"); n != 1 || !strings.Contains(log.String(), "sick: queue 0 stops: the memory of the ring, of its records or of its dirty log is gone") {
				t.Errorf("the log: %s", log.String())
			}
			fresh := newGuest(t, guestConfig{size: 32, features: r.features})
			if err := errors.Join(q.Attach(fresh.vring()), q.Enable(true)); err != nil {
				t.Fatal(err)
			}
			if st, _ := fresh.one(uint32(virtio.BlkIn), 0, 512, 1, false); st != virtio.BlkOK {
				t.Errorf("after a reset: status %d", st)
			}
		})
	}
}

// A dirty log whose memory is gone stops the queue: to go on would let a
// migration lose what was written.
func TestLogThatIsGone(t *testing.T) {
	_, c := disk(t, newEnv(), "driver=mem,size=16M", false)
	for name, ring := range map[string]RingLog{"requests": {}, "ring": {On: true, Desc: guestBase, Device: guestBase}} {
		t.Run(name, func(t *testing.T) {
			fd := 0
			bits := shortMemory(t, &fd)(1 << 20)
			log, err := virtio.NewLog(bits)
			if err != nil {
				t.Fatal(err)
			}
			g := newGuest(t, guestConfig{size: 32})
			q := start(t, g, Config{Child: c})
			if err := q.SetLog(log, RingLog{}); err != nil {
				t.Fatal(err)
			}
			if err := unix.Ftruncate(fd, 0); err != nil {
				t.Fatal(err)
			}
			if err := q.SetLog(log, ring); err != nil {
				t.Fatal(err)
			}
			g.offer(0, uint32(virtio.BlkIn), 0, 512, 1, false)
			g.kickNow()
			if !readable(g.errFd, patience) {
				t.Fatal("nobody was told on the error descriptor")
			}
			if s := q.Stats(); s.State != Broken {
				t.Errorf("%+v", s)
			}
			if err := q.SetMap(long(t), g.m, nil, nil, nil); err != nil {
				t.Errorf("new memory for a broken ring: %v", err)
			}
			if _, err := q.Stop(long(t)); err != nil {
				t.Error(err)
			}
		})
	}
}

// A guest that writes anything anywhere in its ring, its tables and its
// requests, while they are being read: the queue may stop, but it neither dies
// nor hangs, and the next guest is served.
func TestGuestThatCorruptsEverything(t *testing.T) {
	rounds := 10
	if soaking() {
		rounds = 500
	}
	for _, r := range rings {
		t.Run(r.name, func(t *testing.T) {
			_, c := disk(t, newEnv(), "driver=raw,file.driver=mem,file.size=16M", false)
			q := startDetached(t, Config{Child: c, Depth: 16})
			for round := range rounds {
				g := newGuest(t, guestConfig{size: 32, buffer: 4096, features: r.features})
				v := g.vring()
				v.Disk = allOps
				if err := errors.Join(q.Attach(v), q.Enable(true)); err != nil {
					t.Fatal(err)
				}
				vandalise(g, uint64(round))
				if _, err := q.Stop(long(t)); err != nil {
					t.Fatal(err)
				}
			}
			g := newGuest(t, guestConfig{size: 32, features: r.features})
			if err := errors.Join(q.Attach(g.vring()), q.Enable(true)); err != nil {
				t.Fatal(err)
			}
			if st, _ := g.one(uint32(virtio.BlkIn), 0, 512, 1, false); st != virtio.BlkOK {
				t.Errorf("after all that: status %d", st)
			}
		})
	}
}

// vandalise offers good requests and spoils the memory at the same time.
func vandalise(g *guest, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 3))
	words := wordsOf(g.mem[:g.dataBase])
	for range 60 {
		for k := range 32 {
			typ := []uint32{0, 1, 4, 8, 11, 13, 99}[rng.IntN(7)]
			if _, ok := g.offer(k, typ, rng.Uint64N(40000), 512*(1+rng.IntN(7)), 1+rng.IntN(4), typ != 0); !ok {
				break
			}
		}
		g.driver.Kick()
		for range rng.IntN(4) {
			words.spoil(rng)
		}
		signal(g.kick)
		time.Sleep(time.Duration(rng.IntN(50)) * time.Microsecond)
		if _, _, _, err := g.driver.Next(); err != nil {
			g.again()
		}
	}
}

// Requests that must not succeed, and exactly how they do not.
func TestRefusals(t *testing.T) {
	_, c := disk(t, newEnv(), "driver=mem,size=1M", false)
	_, ro := disk(t, newEnv(), "driver=mem,size=1M", true)
	for _, x := range []struct {
		name   string
		c      *block.Child
		typ    uint32
		sector uint64
		n      int
		write  bool
		want   byte
	}{
		{"read at the end", c, 0, 2040, 4096, false, virtio.BlkOK},
		{"read across the end", c, 0, 2041, 4096, false, virtio.BlkIOErr},
		{"read far beyond", c, 0, 1 << 62, 512, false, virtio.BlkIOErr},
		{"read of an odd length", c, 0, 0, 511, false, virtio.BlkIOErr},
		{"read of nothing", c, 0, 0, 0, false, virtio.BlkOK},
		{"write of nothing at the end", c, 1, 2048, 0, true, virtio.BlkOK},
		{"write to a read-only disk", ro, 1, 0, 512, true, virtio.BlkIOErr},
		{"read of a read-only disk", ro, 0, 0, 512, false, virtio.BlkOK},
		{"discard that is not offered", c, 11, 0, 16, true, virtio.BlkUnsupported},
		{"secure erase", c, 14, 0, 16, true, virtio.BlkUnsupported},
		{"lifetime", c, 10, 0, 16, false, virtio.BlkUnsupported},
		{"no such type", c, 12345, 0, 16, false, virtio.BlkUnsupported},
		{"flush", c, 4, 0, 0, false, virtio.BlkOK},
		{"flush of a read-only disk", ro, 4, 0, 0, false, virtio.BlkOK},
	} {
		t.Run(x.name, func(t *testing.T) {
			g := newGuest(t, guestConfig{size: 32})
			start(t, g, Config{Child: x.c})
			parts := 1
			if x.n == 0 {
				parts = 0
			}
			if st, _ := g.one(x.typ, x.sector, x.n, parts, x.write); st != x.want {
				t.Errorf("status %d, want %d", st, x.want)
			}
		})
	}
}

// Several ranges in one request; the first that fails fails it.
func TestManyRanges(t *testing.T) {
	e := blocktest.NewEmulator(t, blocktest.EmulatorConfig{Size: 1 << 20, ZeroFlags: block.FUA | block.MayUnmap})
	c := blocktest.Edge(t, blocktest.Attach(t, newEnv(), e, "disk"))
	e.Fill(bytes.Repeat([]byte{7}, 1<<20))
	g := newGuest(t, guestConfig{size: 32})
	startOver(t, g, Config{Child: c})
	for i := range 20 { // more than a slot has room for
		putRange(g.buffer(0)[16*i:], 4*i, 2, i%2 == 0)
	}
	if st, _ := g.one(uint32(virtio.BlkWriteZeroes), 0, 16*20, 1, true); st != virtio.BlkOK {
		t.Fatalf("status %d", st)
	}
	got := e.Content()
	for s := range 100 {
		want := byte(7)
		if s < 80 && s%4 < 2 {
			want = 0
		}
		if got[s*512] != want {
			t.Errorf("sector %d is %d, want %d", s, got[s*512], want)
		}
	}
	for i, x := range e.Calls() {
		if unmap := x.Flags&block.MayUnmap != 0; unmap != (i%2 == 0) {
			t.Errorf("range %d: unmap %v", i, unmap)
		}
	}
	if st, _ := g.one(uint32(virtio.BlkDiscard), 0, 16*33, 1, true); st != virtio.BlkIOErr {
		t.Errorf("one range more than announced: status %d", st)
	}
}

// Without a write cache that the guest knows of, each write is durable when it
// ends; with one, a flush makes it so.
func TestDurability(t *testing.T) {
	for _, fast := range []bool{false, true} {
		e := blocktest.NewEmulator(t, blocktest.EmulatorConfig{Size: 1 << 20, Fast: fast, WriteFlags: block.FUA, ZeroFlags: block.FUA | block.MayUnmap})
		c := blocktest.Edge(t, blocktest.Attach(t, newEnv(), e, "disk"))
		g := newGuest(t, guestConfig{size: 32})
		q := startOver(t, g, Config{Child: c})
		durable := func() bool { return e.Durable()[0] == g.buffer(0)[0] }
		whileIdle(t, q, q.table.poison) // what was durable before does not make this so
		g.buffer(0)[0] = 1
		if st, _ := g.one(uint32(virtio.BlkOut), 0, 512, 1, true); st != virtio.BlkOK || durable() {
			t.Errorf("fast %v: a write with a cache: status %d, durable %v", fast, st, durable())
		}
		if st, _ := g.one(uint32(virtio.BlkFlush), 0, 0, 0, false); st != virtio.BlkOK || !durable() {
			t.Errorf("fast %v: after a flush: status %d, durable %v", fast, st, durable())
		}
		q.SetWriteback(false)
		g.buffer(0)[0] = 2
		if st, _ := g.one(uint32(virtio.BlkOut), 0, 512, 1, true); st != virtio.BlkOK || !durable() {
			t.Errorf("fast %v: a write without a cache: status %d, durable %v", fast, st, durable())
		}
		putRange(g.buffer(1), 0, 1, false)
		copy(g.buffer(0), g.buffer(1)[:16])
		if st, _ := g.one(uint32(virtio.BlkWriteZeroes), 0, 16, 1, true); st != virtio.BlkOK || e.Durable()[0] != 0 {
			t.Errorf("fast %v: zeroes without a cache: status %d", fast, st)
		}
	}
}

// miser admits one request at a time, each after some calls.
type miser struct {
	mu    sync.Mutex
	asked int
	sizes []int64
}

func (m *miser) Admit(_ block.Op, n, _ int64) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.asked++; m.asked%3 != 0 {
		return 20_000
	}
	m.sizes = append(m.sizes, n)
	return 0
}

// A limiter holds requests back, in order; none is lost, and a stop does not
// wait for it.
func TestLimiterHoldsBack(t *testing.T) {
	_, c := disk(t, newEnv(), "driver=null", false)
	g := newGuest(t, guestConfig{size: 64})
	m := &miser{}
	q := start(t, g, Config{Child: c, Limiter: m})
	for k := range 10 {
		g.offer(k, uint32(virtio.BlkIn), 0, 512*(k+1), 1, false)
	}
	g.kickNow()
	for range 10 {
		g.await()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, n := range m.sizes {
		if n != int64(512*(i+1)) {
			t.Errorf("the limiter saw %v", m.sizes)
			break
		}
	}
	if s := q.Stats(); s.Held < 10 {
		t.Errorf("%+v", s)
	}
}

// never admits nothing.
type never struct{}

func (never) Admit(block.Op, int64, int64) int64 { return 1e15 }

func TestStopDoesNotWaitForTheLimiter(t *testing.T) {
	_, c := disk(t, newEnv(), "driver=null", false)
	g := newGuest(t, guestConfig{size: 64})
	q := start(t, g, Config{Child: c, Limiter: never{}})
	for k := range 3 {
		g.offer(k, uint32(virtio.BlkIn), 0, 512, 1, false)
	}
	g.kickNow()
	until(t, "a request that is held back", func() bool { return q.Stats().Held > 0 })
	if _, err := q.Stop(long(t)); err != nil {
		t.Fatal(err)
	}
	if s := q.Stats(); s.Taken != 1 {
		t.Errorf("%+v", s)
	}
	g.await()
}

// A guest that offers the same chain for ever, faster than it is taken, does
// not keep the loop from its orders, nor from publishing.
func TestFloodIsServedInBatches(t *testing.T) {
	for range 5 {
		_, c := disk(t, newEnv(), "driver=null", false)
		g := newGuest(t, guestConfig{size: 32})
		q := start(t, g, Config{Child: c})
		if st, _ := g.one(uint32(virtio.BlkIn), 0, 512, 1, false); st != virtio.BlkOK {
			t.Fatalf("status %d", st)
		}
		end, ended := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			flood(g.layout.Driver, 32, end)
		}()
		signal(g.kick)
		for range 50 {
			if err := q.Drain(long(t)); err != nil {
				t.Fatal(err)
			}
		}
		if s := q.Stats(); s.State == Enabled && s.Batches > 1 && s.Taken > 32*s.Batches {
			t.Errorf("batches are longer than the ring: %+v", s)
		}
		if _, err := q.Stop(long(t)); err != nil {
			t.Error(err)
		}
		close(end)
		<-ended
	}
}

// A broken ring's requests end without an answer. What stays on record of them
// must not be done on the ring that follows the guest's reset, nor stand in its
// way.
func TestBrokenRingLeavesNoRecord(t *testing.T) {
	for _, r := range rings {
		t.Run(r.name, func(t *testing.T) {
			d := newGated()
			g := newGuest(t, guestConfig{size: 32, features: r.features})
			packed := r.features&virtio.FeatureRingPacked != 0
			record := make([]uint64, virtio.InflightSize(32, packed)/8)
			q := startDetached(t, Config{Child: d.edge(t)})
			v := g.vring()
			v.Record = recordIn(record)
			if err := errors.Join(q.Attach(v), q.Enable(true)); err != nil {
				t.Fatal(err)
			}
			d.shut()
			offerWrites(t, g, 4)
			until(t, "requests at the gate", func() bool { return d.at.Load() == 4 })
			if err := q.command(long(t), false, func() error { q.breakRing("the test says so"); return nil }); err != nil {
				t.Fatal(err)
			}
			d.open()
			if _, err := q.Stop(long(t)); err != nil {
				t.Fatal(err)
			}
			for i, w := range record {
				if w != 0 {
					t.Fatalf("word %d of the record is %#x", i, w)
				}
			}
			again := g.again()
			if err := errors.Join(q.Attach(v), q.Enable(true)); err != nil {
				t.Fatal(err)
			}
			if st, _ := again.one(uint32(virtio.BlkIn), 3, 512, 1, false); st != virtio.BlkOK || g.buffer(0)[0] != 4 {
				t.Errorf("after the reset: status %d, content %d", st, g.buffer(0)[0])
			}
			if s := q.Stats(); s.State != Enabled || s.Resumed != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// Records that are gone before the ring starts, or when it is given up broken,
// cost the ring and nobody his life.
func TestRecordThatIsGone(t *testing.T) {
	for _, r := range rings {
		t.Run(r.name, func(t *testing.T) {
			_, c := disk(t, newEnv(), "driver=mem,size=16M", false)
			packed := r.features&virtio.FeatureRingPacked != 0
			fd := 0
			n := virtio.InflightSize(32, packed)
			mem := shortMemory(t, &fd)(n)
			g := newGuest(t, guestConfig{size: 32, features: r.features})
			q := startDetached(t, Config{Child: c})
			v := g.vring()
			v.Record = Record{Mem: mem, Size: 32}
			cut := func(size int) {
				if err := unix.Ftruncate(fd, int64(size)); err != nil {
					t.Fatal(err)
				}
			}
			cut(0)
			if err := q.Attach(v); !errors.Is(err, unix.EFAULT) || !strings.Contains(err.Error(), "of its records") {
				t.Fatalf("attaching: %v", err)
			}
			cut(n)
			if err := errors.Join(q.Attach(v), q.Enable(true)); err != nil {
				t.Fatal(err)
			}
			cut(0)
			g.offer(0, uint32(virtio.BlkIn), 0, 512, 1, false)
			g.kickNow()
			until(t, "a broken ring", func() bool { return q.Stats().State == Broken })
			if _, err := q.Stop(long(t)); err != nil {
				t.Error(err)
			}
		})
	}
}

// A driver is never told of more bytes than were written in one piece from the
// first on: a short answer that ends before the status does not count it, nor
// does a request that has room and no use for it (2.7.8.2).
func TestUsedLength(t *testing.T) {
	_, c := disk(t, newEnv(), "driver=mem,size=1M", false)
	for _, x := range []struct {
		name   string
		typ    virtio.BlkOp
		sector uint64
		room   int
		status byte
		want   uint32
	}{
		{"id with as much room as it has", virtio.BlkGetID, 0, virtio.BlkIDSize, virtio.BlkOK, virtio.BlkIDSize + 1},
		{"id with less", virtio.BlkGetID, 0, 5, virtio.BlkOK, 6},
		{"id with more", virtio.BlkGetID, 0, 512, virtio.BlkOK, virtio.BlkIDSize},
		{"id with none", virtio.BlkGetID, 0, 0, virtio.BlkOK, 1},
		{"read", virtio.BlkIn, 0, 1024, virtio.BlkOK, 1025},
		{"read of nothing", virtio.BlkIn, 0, 0, virtio.BlkOK, 1},
		{"read beyond the end", virtio.BlkIn, 4096, 512, virtio.BlkIOErr, 0},
		{"flush", virtio.BlkFlush, 0, 0, virtio.BlkOK, 1},
		{"flush with room", virtio.BlkFlush, 0, 512, virtio.BlkOK, 0},
		{"write of nothing with room", virtio.BlkOut, 0, 512, virtio.BlkOK, 0},
		{"no such type", 77, 0, 512, virtio.BlkUnsupported, 0},
		{"no such type, no room", 77, 0, 0, virtio.BlkUnsupported, 1},
	} {
		for _, r := range rings {
			t.Run(x.name+"/"+r.name, func(t *testing.T) {
				g := newGuest(t, guestConfig{size: 32, features: r.features})
				start(t, g, Config{Child: c, Serial: "abc"})
				parts := min(x.room, 1)
				if st, n := g.one(uint32(x.typ), x.sector, x.room, parts, false); st != x.status || n != x.want {
					t.Errorf("status %d, %d bytes written; want %d, %d", st, n, x.status, x.want)
				}
			})
		}
	}
}
