package virtio

import (
	"errors"
	"slices"
	"testing"
)

func TestNewMapRules(t *testing.T) {
	mem := func(n int) []byte { return make([]byte, n) }
	many := func(n int) (r []Region) {
		for i := range n {
			r = append(r, Region{Guest: uint64(n-i) * 16, Mem: mem(16)})
		}
		return r
	}
	for _, c := range []struct {
		name string
		r    []Region
		ok   bool
	}{
		{"none", nil, true},
		{"as many as can be, backwards", many(MaxRegions), true},
		{"one more", many(MaxRegions + 1), false},
		{"empty", []Region{{Guest: 0}}, false},
		{"the same twice", []Region{{Guest: 8, Mem: mem(4)}, {Guest: 8, Mem: mem(4)}}, false},
		{"overlapping by one byte", []Region{{Guest: 8, Mem: mem(4)}, {Guest: 5, Mem: mem(4)}}, false},
		{"one within another", []Region{{Guest: 0, Mem: mem(100)}, {Guest: 5, Mem: mem(1)}}, false},
		{"side by side", []Region{{Guest: 9, Mem: mem(4)}, {Guest: 5, Mem: mem(4)}}, true},
		{"up to the end of addresses", []Region{{Guest: 1<<64 - 4, Mem: mem(4)}}, true},
		{"past the end of addresses", []Region{{Guest: 1<<64 - 3, Mem: mem(4)}}, false},
		{"user addresses past the end", []Region{{User: 1<<64 - 3, Mem: mem(4)}}, false},
		{"user addresses that overlap: one memory in two places", []Region{{Guest: 0, User: 8, Mem: mem(4)}, {Guest: 4, User: 8, Mem: mem(4)}}, true},
	} {
		m, err := NewMap(c.r)
		if (err == nil) != c.ok || err != nil && !errors.Is(err, ErrMemory) {
			t.Errorf("%s: %v", c.name, err)
		}
		if err == nil && len(m.regions) != len(c.r) {
			t.Errorf("%s: %d regions", c.name, len(m.regions))
		}
	}
}

// threeRegions are [0x1000, 0x1010), [0x1010, 0x1030) and, behind a gap, [0x2000,
// 0x2008). Each byte of them has a value of its own.
func threeRegions(t *testing.T) *Map {
	t.Helper()
	all := make([]byte, 56)
	for i := range all {
		all[i] = byte(i)
	}
	m, err := NewMap([]Region{
		{Guest: 0x2000, User: 0x100, Mem: all[48:]},
		{Guest: 0x1000, User: 0x300, Mem: all[:16]},
		{Guest: 0x1010, User: 0x200, Mem: all[16:48]},
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestMapEveryRange looks every range up, with a cache that has anything in it,
// and compares with what is there byte by byte.
func TestMapEveryRange(t *testing.T) {
	m := threeRegions(t)
	value := func(gpa uint64) (byte, bool) {
		switch {
		case gpa >= 0x1000 && gpa < 0x1030:
			return byte(gpa - 0x1000), true
		case gpa >= 0x2000 && gpa < 0x2008:
			return byte(gpa - 0x2000 + 48), true
		}
		return 0, false
	}
	var c Cache
	ranges := 0
	check := func(gpa uint64, n uint32) {
		ranges++
		v, ok := m.Append(make([][]byte, 1, 8), gpa, n, &c)
		want := true
		for i := range uint64(n) {
			b, has := value(gpa + i)
			want = want && has
			if ok && content(v)[i] != b {
				t.Fatalf("%d bytes at %#x: byte %d is %d", n, gpa, i, content(v)[i])
			}
		}
		if ok != want || !ok && len(v) != 1 || ok && len(content(v)) != int(n) {
			t.Fatalf("%d bytes at %#x: %v, %s", n, gpa, ok, lens(v))
		}
		one := m.Guest(gpa, uint64(n))
		if inOne := ok && len(v) == 2; (one != nil) != inOne {
			t.Fatalf("%d bytes at %#x in one region: %v", n, gpa, one != nil)
		}
		for _, b := range v[1:] {
			if cap(b) != len(b) {
				t.Fatalf("%d bytes at %#x: a piece can grow to %d", n, gpa, cap(b))
			}
			if at, ok := m.Address(b); !ok || at < gpa || at >= gpa+uint64(n) {
				t.Fatalf("%d bytes at %#x are said to be at %#x", n, gpa, at)
			}
		}
	}
	for n := range uint32(60) {
		for gpa := uint64(0xff0); gpa < 0x1040; gpa++ {
			check(gpa, n)
			check(0x2004, 1) // elsewhere, so that the cache changes
		}
		for gpa := uint64(0x1ff0); gpa < 0x2010; gpa++ {
			check(gpa, n)
		}
		check(1<<64-1, n)
		check(0, n)
	}
	if ranges < 5000 {
		t.Fatal("too few ranges", ranges)
	}
	if m.End() != 0x2008 {
		t.Errorf("End %#x", m.End())
	}
}

// TestMapAroundTheEnd: nothing goes around the end of the address space, even
// where there is memory on both sides.
func TestMapAroundTheEnd(t *testing.T) {
	m, err := NewMap([]Region{{Guest: 1<<64 - 8, Mem: make([]byte, 8)}, {Guest: 0, User: 64, Mem: make([]byte, 8)}})
	if err != nil {
		t.Fatal(err)
	}
	var c Cache
	if v, ok := m.Append(nil, 1<<64-8, 8, &c); !ok || lens(v) != "[8]" {
		t.Error("the last bytes are there", v, ok)
	}
	if v, ok := m.Append(nil, 1<<64-8, 9, &c); ok {
		t.Error("around the end", v)
	}
	if m.read(make([]byte, 9), 1<<64-8, &c) {
		t.Error("read around the end")
	}
	if m.End() != 0 {
		t.Errorf("End %#x: of an address space that is used to its end it is 0", m.End())
	}
}

func TestMapUser(t *testing.T) {
	m := threeRegions(t)
	for _, c := range []struct {
		uva, n uint64
		first  int // value of the first byte; -1: nothing
	}{
		{0x300, 16, 0}, {0x300, 17, -1}, {0x30f, 1, 15}, {0x310, 1, -1}, {0x200, 32, 16}, {0x21f, 1, 47}, {0x100, 8, 48},
		{0x100, 0, -1}, {0xff, 1, -1}, {0, 1, -1}, {0x100, 1 << 63, -1}, {0x101, 1<<64 - 1, -1},
	} {
		b := m.User(c.uva, c.n)
		if (b == nil) != (c.first < 0) || b != nil && (int(b[0]) != c.first || len(b) != int(c.n)) {
			t.Errorf("%d bytes at user address %#x: %d bytes", c.n, c.uva, len(b))
		}
	}
	for uva, want := range map[uint64]uint64{0x300: 0x1000, 0x21f: 0x102f, 0x107: 0x2007} {
		if got, ok := m.UserToGuest(uva); !ok || got != want {
			t.Errorf("user address %#x is guest address %#x, %v", uva, got, ok)
		}
	}
	for _, uva := range []uint64{0, 0xff, 0x108, 0x310, 1<<64 - 1} {
		if got, ok := m.UserToGuest(uva); ok {
			t.Errorf("user address %#x is guest address %#x", uva, got)
		}
	}
}

// TestCacheOfAnotherMap: what one map had is not found in the next.
func TestCacheOfAnotherMap(t *testing.T) {
	a := threeRegions(t)
	b, err := NewMap([]Region{{Guest: 0x3000, Mem: make([]byte, 4)}})
	if err != nil {
		t.Fatal(err)
	}
	var c Cache
	if _, ok := a.Append(nil, 0x1000, 4, &c); !ok {
		t.Fatal("not found")
	}
	if v, ok := b.Append(nil, 0x1000, 4, &c); ok {
		t.Fatal("found in a map that does not have it", v)
	}
}

func TestAddressOfOthers(t *testing.T) {
	m := threeRegions(t)
	if gpa, ok := m.Address(make([]byte, 4)); ok {
		t.Errorf("memory that is not the guest's is at %#x", gpa)
	}
	if gpa, ok := m.Address(nil); ok {
		t.Errorf("nothing is at %#x", gpa)
	}
}

// TestLogEveryRange marks ranges of pages and compares with the bits.
func TestLogEveryRange(t *testing.T) {
	for first := range uint64(70) {
		for pages := range uint64(10) {
			mem := make([]byte, 8)
			l, err := NewLog(mem)
			if err != nil {
				t.Fatal(err)
			}
			gpa, n := first*LogPage+7, pages*LogPage
			last := first + pages
			if n == 0 {
				gpa, last = first*LogPage, first
				n = 1
			}
			if ok, want := l.Mark(gpa, n), last < 64; ok != want {
				t.Fatalf("%d bytes at %#x: %v", n, gpa, ok)
			}
			for p := range uint64(64) {
				if got, want := mem[p/8]>>(p%8)&1 == 1, p >= first && p <= last; got != want {
					t.Fatalf("%d bytes at %#x: page %d is marked %v", n, gpa, p, got)
				}
			}
		}
	}
}

func TestLogBounds(t *testing.T) {
	for _, n := range []int{0, 1, 6} {
		if _, err := NewLog(make([]byte, n)); err == nil {
			t.Errorf("%d bytes make no log", n)
		}
	}
	if _, err := NewLog(make([]byte, 64)[1:61]); err == nil {
		t.Error("an odd address makes no log")
	}
	mem := make([]byte, 8)
	l, err := NewLog(mem)
	if err != nil {
		t.Fatal(err)
	}
	for end, want := range map[uint64]bool{0: true, 1: true, 64 * LogPage: true, 64*LogPage + 1: false, 1<<64 - 1: false} {
		if l.Covers(end) != want {
			t.Errorf("covers up to %#x: %v", end, !want)
		}
	}
	if !l.Mark(1<<64-1, 0) {
		t.Error("nothing needs no bit")
	}
	if l.Mark(1<<64-1, 2) || l.Mark(1<<64-1, 1) || l.Mark(64*LogPage, 1) {
		t.Error("pages that have no bit")
	}
	for _, b := range mem {
		if b != 0 {
			t.Fatalf("marked % x", mem)
		}
	}
	if l.Mark(63*LogPage, 1<<64-1) || mem[7] != 0x80 {
		t.Errorf("a range that goes on beyond: % x", mem)
	}
}

// A logged guest has a dirty log of its ring's pages, and somebody who takes the
// marks away and copies the pages, as a migration does.
type logged struct {
	*guest
	log              *Log
	bitmap           []byte
	copied           []byte // memory as it was last copied
	copyAt           Step   // copy once more at this step; numSteps: at none
	descAt, deviceAt uint64
	deviceLen        int
}

func newLogged(t *testing.T, features uint64) *logged {
	g := &logged{guest: newGuest(8, features), bitmap: make([]byte, (guestBase+guestSize)/LogPage/8+2), copyAt: numSteps}
	var err error
	if g.log, err = NewLog(g.bitmap); err != nil {
		t.Fatal(err)
	}
	// Each area lies over the edge of a page.
	_, _, g.deviceLen = AreaSizes(8, features)
	g.l.Device = g.at(guestBase + 4*LogPage - 4)[:g.deviceLen]
	g.l.Desc = g.at(guestBase + 6*LogPage - 32)[:8*descSize]
	g.deviceAt, g.descAt = guestBase+4*LogPage-4, guestBase+6*LogPage-32
	if g.driver, err = NewDriver(g.l, g.t); err != nil {
		t.Fatal(err)
	}
	g.copied = slices.Clone(g.mem)
	g.startDevice(t, Options{Base: StartBase(features), Crash: func(s Step) {
		if s == g.copyAt {
			g.sync()
		}
	}})
	return g
}

func (g *logged) sync() {
	clear(g.bitmap)
	copy(g.copied, g.mem)
}

func (g *logged) marked(gpa uint64) bool {
	page := gpa / LogPage
	return g.bitmap[page/8]>>(page%8)&1 != 0
}

// step runs f; what it writes after the last copy is marked.
func (g *logged) step(t *testing.T, name string, f func()) {
	t.Helper()
	g.sync()
	f()
	for i := range g.copied {
		if gpa := guestBase + uint64(i); g.copied[i] != g.mem[i] && !g.marked(gpa) {
			t.Fatalf("%s, pages copied at step %d: byte %#x was written and its page is not marked", name, g.copyAt, gpa)
		}
	}
}

// serveTwo offers two chains and serves them in one batch.
func (g *logged) serveTwo(t *testing.T) {
	t.Helper()
	var c [2]Chain
	for range c {
		g.mustAdd(t, segs(here, 1), segs(here+1, 1), false)
	}
	g.driver.Kick()
	g.step(t, "disarm", g.ring.Disarm)
	for i := range c {
		g.mustPop(t, &c[i])
	}
	g.step(t, "push and publish", func() {
		g.ring.Push(c[0].Handle, 0)
		g.ring.Push(c[1].Handle, 1)
		g.ring.Publish()
	})
	g.step(t, "arm", func() { g.ring.Arm() })
	for range c {
		if _, _, ok, err := g.driver.Next(); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
}

// TestRingLogsItself: all that a ring writes is in the log, and is marked behind
// having been written: whoever takes the marks away and copies the pages, at any
// step of a batch, has all of it the next time.
func TestRingLogsItself(t *testing.T) {
	eachKind(t, func(t *testing.T, features uint64) {
		g := newLogged(t, features)
		g.ring.SetLog(g.log, g.descAt, g.deviceAt)
		for gpa, want := range map[uint64]bool{
			g.deviceAt: true, g.deviceAt + uint64(g.deviceLen) - 1: true,
			g.descAt: g.ring.packed, g.descAt + 8*descSize - 1: g.ring.packed,
		} {
			if g.marked(gpa) != want {
				t.Errorf("what was written before at %#x: marked %v", gpa, !want)
			}
		}
		for k := range 60 {
			g.copyAt = []Step{numSteps, StepPushed, StepPublished}[k%3]
			g.serveTwo(t)
		}
		g.ring.SetLog(nil, 0, 0)
		clear(g.bitmap)
		g.mustAdd(t, segs(here, 1), segs(here+1, 1), false)
		g.driver.Kick()
		var c Chain
		g.mustPop(t, &c)
		g.ring.Push(c.Handle, 1)
		g.ring.Publish()
		if i := slices.IndexFunc(g.bitmap, func(b byte) bool { return b != 0 }); i >= 0 {
			t.Errorf("marked at %d without a log", i)
		}
	})
}

// TestLogVector marks what a vector holds, as far as it is the guest's.
func TestLogVector(t *testing.T) {
	g := newLogged(t, 0)
	if !g.log.MarkVector(g.m, [][]byte{g.at(here)[:3], nil, g.at(here + LogPage)[:1]}) {
		t.Error("a vector in memory")
	}
	if got := g.bitmap[here/LogPage/8]; got != 3<<(here/LogPage%8) {
		t.Errorf("marked %#x", got)
	}
	if g.log.MarkVector(g.m, [][]byte{make([]byte, 1)}) {
		t.Error("a vector elsewhere")
	}
}

// TestExtend: a ring goes on with more memory while chains are out, and with
// nothing that is not all it had.
func TestExtend(t *testing.T) {
	eachKind(t, func(t *testing.T, features uint64) {
		g := newGuest(8, features).start(t)
		g.mustAdd(t, segs(here, 1), segs(here+1, 1), false)
		g.driver.Kick()
		var c Chain
		g.mustPop(t, &c)
		own := Region{Guest: guestBase, User: guestUser, Mem: g.mem}
		low, high := Region{Guest: 0, User: 1, Mem: make([]byte, 64)}, Region{Guest: 1 << 40, User: 2, Mem: make([]byte, 64)}
		other := own
		other.Mem = slices.Clone(g.mem)
		moved, short := own, own
		moved.User++
		short.Mem = short.Mem[:len(short.Mem)-1]
		for _, x := range []struct {
			name    string
			regions []Region
			ok      bool
		}{
			{"nothing", nil, false},
			{"others only", []Region{low, high}, false},
			{"other memory", []Region{low, other, high}, false},
			{"other addresses", []Region{low, moved}, false},
			{"less of it", []Region{short}, false},
			{"the same", []Region{own}, true},
			{"more", []Region{low, own, high}, true},
			{"less again", []Region{own, high}, false},
		} {
			m, err := NewMap(x.regions)
			if err != nil {
				t.Fatal(err)
			}
			before := g.ring.mem
			if ok := g.ring.Extend(m, g.l.Desc, g.l.Driver, g.l.Device); ok != x.ok || (g.ring.mem == m) != ok || !ok && g.ring.mem != before {
				t.Errorf("%s: %v", x.name, ok)
			}
		}
		m, err := NewMap([]Region{low, own, high})
		if err != nil {
			t.Fatal(err)
		}
		if g.ring.Extend(m, g.l.Desc, g.l.Driver[2:], g.l.Device) || g.ring.Extend(m, g.l.Desc, g.l.Driver, other.Mem[:len(g.l.Device)]) {
			t.Error("a ring that has moved")
		}
		g.ring.Push(c.Handle, 1)
		g.ring.Publish()
		g.mustAdd(t, segs(1<<40, 1), segs(1<<40+1, 1), false)
		g.driver.Kick()
		g.mustPop(t, &c)
	})
}
