package queue

import (
	"bytes"
	"context"
	"fmt"
	"reflect"
	"runtime"
	"runtime/debug"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/block/blocktest"
	"github.com/platter-storage/platter/internal/race"
	"github.com/platter-storage/platter/virtio"
)

// What a request costs: request objects, tests B1 to B10 as far as they concern a queue.

// load is one kind of request, sent again and again.
type load struct {
	name   string
	disk   string // or "" for one that fails everything
	typ    virtio.BlkOp
	sector uint64
	n      int // bytes of data
	parts  int
	odd    bool // elements at odd addresses
	write  bool
	status byte
	path   block.Path // a way that all of them take; 0: not looked at
}

// loads are all types, with few and many elements, on every way.
func loads(t testing.TB) []load {
	file := onDisk(t, ".", 16<<20)
	direct, coarse := "driver=file,cache=none,linearise=never,filename="+file, "driver=file,cache=none,linearise=never,request-align=4096,filename="+file
	tmp := "driver=file,filename=" + onDisk(t, memDir(t), 16<<20)
	var ls []load
	for _, parts := range []int{1, 2, 8, 64, 126} {
		n := max(parts*512, 4096)
		for name, d := range map[string]string{"mem": "driver=mem,size=16M", "tmpfs": tmp, "direct": direct} {
			ls = append(ls, load{name: fmt.Sprintf("read %d %s", parts, name), disk: d, typ: virtio.BlkIn, n: n, parts: parts, path: block.PathFast},
				load{name: fmt.Sprintf("write %d %s", parts, name), disk: d, typ: virtio.BlkOut, n: n, parts: parts, write: true, path: block.PathFast})
		}
	}
	for name, d := range map[string]string{"mem": "driver=mem,size=16M", "direct": direct} {
		ls = append(ls,
			load{name: "flush " + name, disk: d, typ: virtio.BlkFlush},
			load{name: "discard " + name, disk: d, typ: virtio.BlkDiscard, n: 32, parts: 1, write: true},
			load{name: "write zeroes " + name, disk: d, typ: virtio.BlkWriteZeroes, n: 32, parts: 1, write: true},
			load{name: "get id " + name, disk: d, typ: virtio.BlkGetID, n: virtio.BlkIDSize, parts: 1})
	}
	return append(ls,
		load{name: "bounced read", disk: direct, typ: virtio.BlkIn, n: 4096, parts: 2, odd: true, path: block.PathBounceMem},
		load{name: "bounced write", disk: direct, typ: virtio.BlkOut, n: 4096, parts: 2, odd: true, write: true, path: block.PathBounceMem},
		load{name: "padded read", disk: coarse, typ: virtio.BlkIn, sector: 1, n: 1024, parts: 1, path: block.PathPadded},
		load{name: "read, modify, write", disk: coarse, typ: virtio.BlkOut, sector: 1, n: 1024, parts: 1, write: true, path: block.PathRMW},
		load{name: "beyond the end", disk: direct, typ: virtio.BlkIn, sector: 1 << 40, n: 512, parts: 1, status: virtio.BlkIOErr},
		load{name: "unknown type", disk: direct, typ: 77, n: 512, parts: 1, status: virtio.BlkUnsupported},
		load{name: "failed read", typ: virtio.BlkIn, n: 4096, parts: 1, status: virtio.BlkIOErr},
		load{name: "failed write", typ: virtio.BlkOut, n: 4096, parts: 1, write: true, status: virtio.BlkIOErr},
		load{name: "failed flush", typ: virtio.BlkFlush, status: virtio.BlkIOErr},
	)
}

// sick is a disk that fails everything.
type sick struct{ info block.Info }

func (s *sick) Info() *block.Info                                              { return &s.info }
func (s *sick) Preadv(*block.Req, int64, block.Vec, block.Flags) error         { return syscall.EIO }
func (s *sick) Pwritev(*block.Req, int64, block.Vec, block.Flags) error        { return syscall.EIO }
func (s *sick) WriteZeroes(*block.Req, int64, int64, block.Flags) error        { return syscall.EIO }
func (s *sick) Discard(*block.Req, int64, int64) error                         { return syscall.EIO }
func (s *sick) Flush(*block.Req) error                                         { return syscall.EIO }
func (s *sick) BlockStatus(*block.Req, int64, int64) (e block.Extent, _ error) { return e, syscall.EIO }
func (s *sick) Truncate(*block.Req, int64, block.Prealloc) error               { return syscall.EIO }
func (s *sick) Close() error                                                   { return nil }

// edge opens the disk of a load.
func (l *load) edge(t testing.TB) *block.Child {
	env := newEnv()
	if l.disk != "" {
		_, c := disk(t, env, l.disk, false)
		return c
	}
	n := &sick{}
	n.info.SetLimits(block.ByteLimits())
	n.info.SetSize(16 << 20)
	return blocktest.Edge(t, blocktest.Attach(t, env, n, "sick"))
}

// driver sends a load.
type pump struct {
	*guest
	l     *load
	depth int
	of    []int
	free  []int
}

func newPump(t testing.TB, l *load, depth int) *pump {
	g := newGuest(t, guestConfig{size: 256, buffer: 128 << 10, tableLen: 160, features: virtio.FeatureEventIdx | virtio.FeatureIndirectDesc})
	p := &pump{guest: g, l: l, depth: depth, of: make([]int, 256), free: make([]int, 0, depth)}
	for k := range depth {
		p.free = append(p.free, k)
		putRange(p.buffer(k), k*64, 8, false)
		putRange(p.buffer(k)[16:], k*64+16, 8, false)
	}
	return p
}

func (p *pump) send(k int) {
	l := p.l
	p.header(k, uint32(l.typ), l.sector+uint64(k)*256)
	p.out = append(p.out[:0], virtio.Seg{Addr: p.gpa(p.headers + k*32), Len: headLen})
	p.in = p.in[:0]
	at := p.gpa(p.dataBase + k*p.slotLen)
	if l.odd {
		at++
	}
	for i := range l.parts {
		seg := virtio.Seg{Addr: at + uint64(i)*1024, Len: uint32(l.n / l.parts)} // with gaps: they do not merge
		if l.n/l.parts >= 1024 {
			seg.Addr = at + uint64(i*(l.n/l.parts+512))
		}
		if l.write {
			p.out = append(p.out, seg)
		} else {
			p.in = append(p.in, seg)
		}
	}
	p.in = append(p.in, virtio.Seg{Addr: p.gpa(p.headers + k*32 + headLen), Len: 1})
	id, ok := p.driver.Add(p.out, p.in, len(p.out)+len(p.in) > 3)
	if !ok {
		p.t.Fatal("the ring is full")
	}
	p.of[id] = k
}

// run sends n requests and checks their status.
func (p *pump) run(n int) {
	for sent, got := 0, 0; got < n; {
		for len(p.free) > 0 && sent < n {
			k := p.free[len(p.free)-1]
			p.free = p.free[:len(p.free)-1]
			p.send(k)
			sent++
		}
		p.kickNow()
		id, _ := p.await()
		for ok := true; ok; {
			k := p.of[id]
			if st := p.status(k); st != p.l.status {
				p.t.Fatalf("%s: status %d, want %d", p.l.name, st, p.l.status)
			}
			p.free = append(p.free, k)
			got++
			var err error
			if id, _, ok, err = p.driver.Next(); err != nil {
				p.t.Fatal(err)
			}
		}
	}
}

// mallocs is how many objects the program has allocated so far.
func mallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}

// No request allocates, whatever its type, its elements, and the way it takes.
// What the process allocates beside (the log's line a second, the runtime's
// own) is a handful, not one for each request.
func TestB1NoAllocation(t *testing.T) {
	n := 3000
	switch {
	case race.Enabled:
		n = 300
	case soaking():
		n = 1_000_000
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // a collection allocates, too
	for _, l := range loads(t) {
		t.Run(l.name, func(t *testing.T) {
			group := block.NewQueueGroup()
			p := newPump(t, &l, 8)
			startOver(t, p.guest, Config{Child: l.edge(t), Group: group})
			p.run(300) // whatever is made at first is made
			from := mallocs()
			p.run(n)
			if got := mallocs() - from; got > 100 && !race.Enabled {
				t.Errorf("%d allocations for %d requests", got, n)
			}
			if s := group.Stats(); l.path != 0 && s.Path(l.path) < uint64(n) {
				t.Errorf("only %d of %d requests took the way that they are to show: %v", s.Path(l.path), n, s.Paths)
			}
		})
	}
}

// whileIdle runs f on the queue's loop while nothing is in flight.
func whileIdle(t testing.TB, q *Queue, f func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := q.command(ctx, true, func() error { f(); return nil }); err != nil {
		t.Fatal(err)
	}
}

// Slots full of poison give the same results and the same statistics as slots
// that were never used.
func TestB2PoisonedSlotsAreEqual(t *testing.T) {
	type outcome struct {
		content                 []byte
		requests, bytes, errors [block.NumOps]uint64
		paths                   [block.NumPaths]uint64
	}
	run := func(t *testing.T, l *load, poison bool) outcome {
		group := block.NewQueueGroup()
		p := newPump(t, l, 4)
		q := startOver(t, p.guest, Config{Child: l.edge(t), Group: group})
		for range 10 {
			if poison {
				whileIdle(t, q, q.table.poison)
			}
			p.run(4)
		}
		s := group.Stats()
		return outcome{slices.Clone(p.mem[p.headers:]), s.Requests, s.Bytes, s.Errors, s.Paths}
	}
	for _, l := range loads(t) {
		var got [2]outcome
		for i := range got {
			t.Run(fmt.Sprintf("%s/%v", l.name, i == 1), func(t *testing.T) { got[i] = run(t, &l, i == 1) })
		}
		if !bytes.Equal(got[0].content, got[1].content) {
			t.Errorf("%s: what the guest sees differs", l.name)
		}
		if got[0].content = got[1].content; !reflect.DeepEqual(got[0], got[1]) {
			t.Errorf("%s: statistics differ:\n%v %v\n%v %v", l.name, got[0].requests, got[0].paths, got[1].requests, got[1].paths)
		}
	}
}

// No collection is caused by requests, and the number of objects on the heap
// does not grow with the depth by more than what each slot has there.
func TestB9NoCollection(t *testing.T) {
	n := 200_000
	if soaking() {
		n = 10_000_000
	}
	l := load{name: "read", disk: "driver=null,size=16M", typ: virtio.BlkIn, n: 4096, parts: 1}
	p := newPump(t, &l, 64)
	startOver(t, p.guest, Config{Child: l.edge(t)})
	p.run(1000)
	runtime.GC()
	var from, to runtime.MemStats
	runtime.ReadMemStats(&from)
	p.run(n)
	runtime.ReadMemStats(&to)
	if to.NumGC != from.NumGC {
		t.Errorf("%d collections during %d requests", to.NumGC-from.NumGC, n)
	}
	t.Logf("%d requests: %d objects, %d bytes allocated", n, to.Mallocs-from.Mallocs, to.TotalAlloc-from.TotalAlloc)
}

// A collection while requests run delays none of them beyond what a generous
// bound allows, and loses none.
func TestB9ForcedCollection(t *testing.T) {
	l := load{name: "read", disk: "driver=null,size=16M", typ: virtio.BlkIn, n: 4096, parts: 1}
	p := newPump(t, &l, 32)
	startOver(t, p.guest, Config{Child: l.edge(t)})
	end := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-end:
				return
			case <-time.After(time.Millisecond):
				runtime.GC()
			}
		}
	}()
	p.run(50_000)
	close(end)
	<-done
}

// A slot or a buffer that another guest's data has gone through shows nothing
// of it: not in a read that fails, nor in one that is padded and bounced.
func TestB10NothingOfOthersShows(t *testing.T) {
	mark := bytes.Repeat([]byte("another guest's "), 1<<12)
	file := onDisk(t, ".", 16<<20)
	env := newEnv()
	_, c := disk(t, env, "driver=file,cache=none,linearise=never,filename="+file, false)
	a := load{name: "write", typ: virtio.BlkOut, n: 8192, parts: 2, odd: true, write: true}
	pa := newPump(t, &a, 8)
	for k := range 8 {
		copy(pa.buffer(k), mark)
	}
	startOver(t, pa.guest, Config{Child: c})
	pa.run(64)

	n := &sick{}
	n.info.SetLimits(c.Limits()) // aligned memory is asked for, so reads are bounced
	n.info.SetSize(16 << 20)
	b := load{name: "failed read", typ: virtio.BlkIn, n: 8192, parts: 2, odd: true, status: virtio.BlkIOErr}
	pb := newPump(t, &b, 8)
	startOver(t, pb.guest, Config{Child: blocktest.Edge(t, blocktest.Attach(t, env, n, "sick")), Env: env})
	pb.run(64)
	if bytes.Contains(pb.mem, mark[:16]) {
		t.Error("a failed read shows what another guest wrote")
	}
	if got := env.Buffers.Stats(); got.InUse != 0 {
		t.Errorf("%d bytes of buffers in use", got.InUse)
	}
}

// Each loop has a place of its own among the running threads, and two are left
// for the rest.
func TestProcessorsAreReserved(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	ReserveProcs(before + 5)
	if got := runtime.GOMAXPROCS(0); got < before+5+2 {
		t.Errorf("GOMAXPROCS %d with %d loops", got, before+5)
	}
	ReserveProcs(-before - 5)
	runtime.GOMAXPROCS(before)
}

// clearing clears what the reference's request object had of it, for each
// request: what a virtio server paid that cleared its request objects. It poses as a limiter.
type clearing struct{ object []byte }

func (c *clearing) Admit(block.Op, int64, int64) int64 {
	clear(c.object)
	return 0
}

// BenchmarkClearing is what clearing 40 KiB for each request would cost: four
// readers of 8 KiB from a disk in memory.
func BenchmarkClearing(b *testing.B) {
	for name, l := range map[string]Limiter{"none": nil, "40KiB": &clearing{make([]byte, 40<<10)}} {
		b.Run(name, func(b *testing.B) {
			ld := load{name: "read", disk: "driver=mem,size=16M", typ: virtio.BlkIn, n: 8192, parts: 2}
			p := newPump(b, &ld, 4)
			q := start(b, p.guest, Config{Child: ld.edge(b), Limiter: l})
			tid := threadOf(b, q)
			p.run(100)
			from, _ := threadNs(b, tid)
			b.ResetTimer()
			p.run(b.N)
			b.StopTimer()
			to, _ := threadNs(b, tid)
			b.ReportMetric(float64(to-from)/float64(b.N), "server-ns/op")
		})
	}
}
