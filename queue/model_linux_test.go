package queue

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/race"
	"github.com/platter-storage/platter/virtio"
)

// Random operations, many at a time, against a model: over each kind of disk
// and engine, each kind of ring, and with the fast lane declining at random.

// rings are the ways to use a ring.
var rings = []struct {
	name     string
	features uint64
}{
	{"split", 0},
	{"split,event", virtio.FeatureEventIdx | virtio.FeatureIndirectDesc},
	{"split,event,inorder", virtio.FeatureEventIdx | virtio.FeatureInOrder | virtio.FeatureIndirectDesc},
	{"packed", virtio.FeatureRingPacked},
	{"packed,event", virtio.FeatureRingPacked | virtio.FeatureEventIdx | virtio.FeatureIndirectDesc},
	{"packed,event,inorder", virtio.FeatureRingPacked | virtio.FeatureEventIdx | virtio.FeatureInOrder | virtio.FeatureIndirectDesc},
}

// allOps are limits and features under which every operation is offered.
var allOps = virtio.BlkDisk{
	Features:          virtio.BlkFeatureFlush | virtio.BlkFeatureDiscard | virtio.BlkFeatureWriteZeroes,
	MaxDiscardSectors: 1 << 22, MaxDiscardSeg: 32,
	MaxWriteZeroesSectors: 1 << 22, MaxWriteZeroesSeg: 32,
}

// area is how much of the disk each request slot has to itself, in sectors.
const area = 128

// kept is what the model knows of a slot's area: content, and which sectors
// are known at all.
type kept struct {
	data  []byte
	known [area]bool
}

// modeller drives a guest and checks what it reads.
type modeller struct {
	*guest
	rng   *rand.Rand
	areas []kept
	todo  []action // by slot: what is in flight
	of    []int    // slot by chain
	free  []int
	seen  map[uint32]int
	alike bool // the disk forgets what is written, and reads as zeroes
}

// action is an operation in flight.
type action struct {
	typ         uint32
	from, n     int // sectors within the area
	from2, n2   int // the second range
	write, unit bool
}

func newModeller(g *guest, depth int, seed uint64) *modeller {
	m := &modeller{guest: g, rng: rand.New(rand.NewPCG(seed, 1)), seen: map[uint32]int{}}
	m.areas = make([]kept, depth)
	m.todo = make([]action, depth)
	m.of = make([]int, g.layout.Size)
	for k := range depth {
		m.areas[k].data = make([]byte, area*512)
		m.free = append(m.free, k)
	}
	return m
}

// pick makes up an operation for slot k.
func (m *modeller) pick(k int) action {
	var a action
	a.from = m.rng.IntN(area)
	a.n = m.rng.IntN(area - a.from + 1)
	a.from2 = m.rng.IntN(area)
	a.n2 = m.rng.IntN(area - a.from2 + 1)
	switch r := m.rng.IntN(100); {
	case r < 40:
		a.typ = uint32(virtio.BlkIn)
	case r < 80:
		a.typ, a.write = uint32(virtio.BlkOut), true
		m.fill(m.buffer(k)[:a.n*512])
	case r < 85:
		a.typ = uint32(virtio.BlkFlush)
	case r < 90:
		a.typ = uint32(virtio.BlkDiscard)
	case r < 97:
		a.typ, a.unit = uint32(virtio.BlkWriteZeroes), m.rng.IntN(2) == 0
	default:
		a.typ = uint32(virtio.BlkGetID)
	}
	return a
}

func (m *modeller) fill(b []byte) {
	for i := 0; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], m.rng.Uint64())
	}
}

// submit puts an operation into the ring; its data in pieces of any length.
func (m *modeller) submit(k int, a action) bool {
	m.header(k, a.typ, uint64(k*area+a.from))
	m.out = append(m.out[:0], virtio.Seg{Addr: m.gpa(m.headers + k*32), Len: headLen})
	m.in = m.in[:0]
	data := m.gpa(m.dataBase + k*m.slotLen)
	switch virtio.BlkOp(a.typ) {
	case virtio.BlkIn:
		m.in = m.ragged(m.in, data, a.n*512)
	case virtio.BlkOut:
		m.out = m.ragged(m.out, data, a.n*512)
	case virtio.BlkGetID:
		m.in = append(m.in, virtio.Seg{Addr: data, Len: virtio.BlkIDSize})
	case virtio.BlkDiscard, virtio.BlkWriteZeroes:
		b := m.buffer(k)
		putRange(b, k*area+a.from, a.n, a.unit)
		putRange(b[16:], k*area+a.from2, a.n2, a.unit)
		m.out = append(m.out, virtio.Seg{Addr: data, Len: 32})
	}
	m.in = append(m.in, virtio.Seg{Addr: m.gpa(m.headers + k*32 + headLen), Len: 1})
	id, ok := m.driver.Add(m.out, m.in, m.rng.IntN(2) == 0)
	if ok {
		m.of[id], m.todo[k] = k, a
	}
	return ok
}

func putRange(b []byte, sector, n int, unmap bool) {
	binary.LittleEndian.PutUint64(b, uint64(sector))
	binary.LittleEndian.PutUint32(b[8:], uint32(n))
	binary.LittleEndian.PutUint32(b[12:], 0)
	if unmap {
		b[12] = 1
	}
}

// ragged cuts n bytes into a few pieces, at sectors or anywhere.
func (m *modeller) ragged(segs []virtio.Seg, at uint64, n int) []virtio.Seg {
	unit := 512
	if m.rng.IntN(3) == 0 {
		unit = 1
	}
	for left := 3; n > 0 && left > 0; left-- {
		l := max(m.rng.IntN(n/unit+1)*unit, unit)
		segs = append(segs, virtio.Seg{Addr: at, Len: uint32(l)})
		at, n = at+uint64(l), n-l
	}
	if n > 0 {
		segs = append(segs, virtio.Seg{Addr: at, Len: uint32(n)})
	}
	return segs
}

// finish checks the operation that has ended, and takes it into the model.
func (m *modeller) finish(k int, written uint32) {
	a, x := m.todo[k], &m.areas[k]
	m.seen[a.typ]++
	if st := m.status(k); st != virtio.BlkOK {
		m.t.Fatalf("%v of %d sectors from %d in area %d: status %d", virtio.BlkOp(a.typ), a.n, a.from, k, st)
	}
	want := uint32(1)
	b := m.buffer(k)
	switch virtio.BlkOp(a.typ) {
	case virtio.BlkIn:
		want += uint32(a.n * 512)
		m.compare(k, a, x, b)
	case virtio.BlkOut:
		copy(x.data[a.from*512:], b[:a.n*512])
		m.know(x, a.from, a.n, true)
	case virtio.BlkGetID:
		want += virtio.BlkIDSize
		if got := string(bytes.TrimRight(b[:virtio.BlkIDSize], "\x00")); got != "a serial number" {
			m.t.Fatalf("serial %q", got)
		}
	case virtio.BlkDiscard:
		m.know(x, a.from, a.n, false)
		m.know(x, a.from2, a.n2, false)
	case virtio.BlkWriteZeroes:
		clear(x.data[a.from*512 : (a.from+a.n)*512])
		clear(x.data[a.from2*512 : (a.from2+a.n2)*512])
		m.know(x, a.from, a.n, true)
		m.know(x, a.from2, a.n2, true)
	}
	if written != want {
		m.t.Fatalf("%v: %d bytes written, want %d", virtio.BlkOp(a.typ), written, want)
	}
}

func (m *modeller) know(x *kept, from, n int, known bool) {
	for s := from; s < from+n; s++ {
		x.known[s] = known
	}
}

func (m *modeller) compare(k int, a action, x *kept, b []byte) {
	zeroes := make([]byte, 512)
	for s := range a.n {
		got, want := b[s*512:(s+1)*512], x.data[(a.from+s)*512:(a.from+s+1)*512]
		if m.alike {
			want = zeroes
		} else if !x.known[a.from+s] {
			continue
		}
		if !bytes.Equal(got, want) {
			m.t.Fatalf("area %d, sector %d of a read of %d from %d: content is wrong", k, s, a.n, a.from)
		}
	}
}

// run does n operations.
func (m *modeller) run(n int) {
	m.t.Helper()
	for sent, got := 0, 0; got < n; {
		for len(m.free) > 0 && sent < n {
			k := m.free[len(m.free)-1]
			if !m.submit(k, m.pick(k)) {
				break // the ring is full
			}
			m.free = m.free[:len(m.free)-1]
			sent++
			if m.rng.IntN(4) == 0 {
				m.kickNow()
			}
		}
		m.kickNow()
		id, written := m.await()
		for ok := true; ok; {
			k := m.of[id]
			m.finish(k, written)
			m.free = append(m.free, k)
			got++
			var err error
			if id, written, ok, err = m.driver.Next(); err != nil {
				m.t.Fatal(err)
			}
		}
	}
}

// disks are the kinds of storage, each with the ways to it.
func disks(t testing.TB) map[string]string {
	const size = 64 << 20
	d := map[string]string{
		"null":                 "driver=null,size=64M",
		"mem":                  "driver=mem,size=64M",
		"raw over mem":         "driver=raw,file.driver=mem,file.size=64M",
		"tmpfs":                "driver=file,filename=" + onDisk(t, memDir(t), size),
		"cached,auto":          "driver=file,cache=writeback,filename=" + onDisk(t, ".", size),
		"direct,auto":          "driver=file,cache=none,filename=" + onDisk(t, ".", size),
		"direct,io_uring":      "driver=file,cache=none,aio=io_uring,filename=" + onDisk(t, ".", size),
		"direct,native":        "driver=file,cache=none,aio=native,filename=" + onDisk(t, ".", size),
		"direct,threads":       "driver=file,cache=none,aio=threads,filename=" + onDisk(t, ".", size),
		"directsync":           "driver=file,cache=directsync,filename=" + onDisk(t, ".", size),
		"stalling over direct": "driver=fault,op=flush,errno=none,delay-ns=100000,file.driver=file,file.cache=none,file.filename=" + onDisk(t, ".", size),
	}
	return d
}

func TestRandomOperations(t *testing.T) {
	n := 400
	switch {
	case race.Enabled:
		n = 150
	case soaking():
		n = 20_000
	}
	depths := []int{1, 7, 32, 256}
	i := 0
	for name, text := range disks(t) {
		for _, r := range rings {
			depth := depths[i%len(depths)]
			i++
			t.Run(fmt.Sprintf("%s/%s/%d", name, r.name, depth), func(t *testing.T) {
				env := newEnv()
				_, c := disk(t, env, text, false)
				g := newGuest(t, guestConfig{size: 256, features: r.features})
				m := newModeller(g, depth, uint64(i))
				m.alike = name == "null"
				q := startOver(t, g, Config{Child: c, Serial: "a serial number", Depth: 192})
				m.run(n)
				if s := q.Stats(); s.Taken != uint64(n) || s.Bad != 0 || s.Faults != 0 {
					t.Errorf("%+v", s)
				}
			})
		}
	}
}

// The fast lane that declines at random gives the same answers.
func TestLanesAreEqual(t *testing.T) {
	for _, name := range []string{"mem", "tmpfs", "direct,auto", "direct,native"} {
		t.Run(name, func(t *testing.T) {
			env := newEnv()
			_, c := disk(t, env, disks(t)[name], false)
			env.FastLane = func() bool { return env.Rand()%2 == 0 }
			g := newGuest(t, guestConfig{size: 64, features: virtio.FeatureEventIdx})
			m := newModeller(g, 16, 5)
			group := block.NewQueueGroup()
			startOver(t, g, Config{Child: c, Serial: "a serial number", Group: group})
			m.run(1000)
			s := group.Stats()
			if s.Path(block.PathFast) == 0 || s.Path(block.PathSlow) == 0 {
				t.Errorf("one lane was never used: %v", s.Paths)
			}
		})
	}
}

// startOver is start with all operations offered.
func startOver(t testing.TB, g *guest, cfg Config) *Queue {
	t.Helper()
	q := startDetached(t, cfg)
	v := g.vring()
	v.Disk = allOps
	if err := q.Attach(v); err != nil {
		t.Fatal(err)
	}
	if err := q.Enable(true); err != nil {
		t.Fatal(err)
	}
	return q
}
