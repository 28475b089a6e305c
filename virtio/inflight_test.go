package virtio

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"
)

// TestInflightSize is what the vhost-user specification's structures come to.
func TestInflightSize(t *testing.T) {
	for _, c := range []struct {
		size          uint16
		split, packed int
	}{
		{1, 64, 64}, {3, 64, 128}, {4, 128, 192}, {128, 2112, 4160}, {32768, 16 + 16*32768 + 48, 32 + 32*32768 + 32},
	} {
		if got := InflightSize(c.size, false); got != c.split {
			t.Errorf("split, %d: %d, not %d", c.size, got, c.split)
		}
		if got := InflightSize(c.size, true); got != c.packed {
			t.Errorf("packed, %d: %d, not %d", c.size, got, c.packed)
		}
	}
}

// records gives a guest a ring with records.
func (g *guest) records(tb testing.TB, mem []byte, size uint16) error {
	tb.Helper()
	f, err := NewInflight(mem, size, g.l.packed())
	if err != nil {
		return err
	}
	r, err := NewRing(g.l, g.m, Options{Base: StartBase(g.l.Features), Inflight: f})
	if err == nil {
		g.ring = r
	}
	return err
}

// TestInflightSplitLayout looks at the bytes of a split queue's records after
// two chains were popped and one of them was given back.
func TestInflightSplitLayout(t *testing.T) {
	g := newGuest(4, 0).start(t)
	mem := make([]byte, InflightSize(4, false))
	if err := g.records(t, mem, 4); err != nil {
		t.Fatal(err)
	}
	a := g.mustAdd(t, segs(here, 1), segs(here, 1), false)
	b := g.mustAdd(t, segs(here, 1), segs(here, 1), false)
	g.driver.Kick()
	var c Chain
	g.mustPop(t, &c)
	first := c.Handle
	g.mustPop(t, &c)
	g.ring.Push(first, 1)
	g.ring.Publish()
	want := make([]byte, len(mem))
	copy(want, []byte{0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 4, 0, byte(a), 0, 1, 0})
	want[16+16*int(b)] = 1
	want[16+16*int(b)+8] = 1 // its counter; that of the first was 0
	if !slices.Equal(mem, want) {
		t.Errorf("\n% x, not\n% x", mem, want)
	}
}

// TestInflightPackedLayout is the same for a packed queue: of two chains of two
// descriptors one is given back.
func TestInflightPackedLayout(t *testing.T) {
	g := newGuest(5, FeatureRingPacked).start(t)
	mem := make([]byte, InflightSize(5, true))
	if err := g.records(t, mem, 5); err != nil {
		t.Fatal(err)
	}
	g.mustAdd(t, segs(here, 3), segs(here+8, 1), false)
	id := g.mustAdd(t, segs(here, 5), segs(here+8, 1), false)
	g.driver.Kick()
	var c Chain
	g.mustPop(t, &c)
	first := c.Handle
	g.mustPop(t, &c)
	g.ring.Push(first, 1)
	g.ring.Publish()
	le := binary.LittleEndian
	want := make([]byte, len(mem))
	copy(want, []byte{0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 5, 0, 0, 0, 0, 0, 2, 0, 2, 0, 1, 1})
	entry := func(i int, inflight byte, next, last, num uint16, counter uint64) []byte {
		e := want[32+32*i:]
		e[0] = inflight
		le.PutUint16(e[2:], next)
		le.PutUint16(e[4:], last)
		le.PutUint16(e[6:], num)
		le.PutUint64(e[8:], counter)
		return e
	}
	holds := func(e []byte, id uint16, flags uint16, n uint32, addr uint64) {
		le.PutUint16(e[16:], id)
		le.PutUint16(e[18:], flags)
		le.PutUint32(e[20:], n)
		le.PutUint64(e[24:], addr)
	}
	holds(entry(0, 0, 1, 1, 2, 0), first.Head, descNext|descAvail, 3, here)
	holds(entry(1, 0, 4, 0, 0, 0), first.Head, descWrite|descAvail, 1, here+8)
	holds(entry(2, 1, 3, 3, 2, 1), id, descNext|descAvail, 5, here)
	holds(entry(3, 0, 4, 0, 0, 0), id, descWrite|descAvail, 1, here+8)
	entry(4, 0, 5, 0, 0, 0)
	if !slices.Equal(mem, want) {
		t.Errorf("\n% x, not\n% x", mem, want)
	}
}

// TestInflightBuffer is what NewInflight says of memory that does not fit.
func TestInflightBuffer(t *testing.T) {
	for _, packed := range []bool{false, true} {
		n := InflightSize(8, packed)
		for _, c := range []struct {
			name    string
			mem     []byte
			size    uint16
			version uint16
			descNum uint16
			ok      bool
		}{
			{"all zero", make([]byte, n), 8, 0, 0, true},
			{"desc_num is there before the version", make([]byte, n), 8, 0, 8, true},
			{"as we write it", make([]byte, n), 8, 1, 8, true},
			{"too short", make([]byte, n-1), 8, 0, 0, false},
			{"no queue", make([]byte, n), 0, 0, 0, false},
			{"an odd address", make([]byte, n+8)[4 : n+4], 8, 0, 0, false},
			{"another version", make([]byte, n), 8, 2, 8, false},
			{"another size", make([]byte, n), 8, 1, 4, false},
			{"no size", make([]byte, n), 8, 1, 0, false},
		} {
			binary.LittleEndian.PutUint16(c.mem[8:], c.version)
			binary.LittleEndian.PutUint16(c.mem[10:], c.descNum)
			if _, err := NewInflight(c.mem, c.size, packed); (err == nil) != c.ok || err != nil && !errors.Is(err, ErrInflight) {
				t.Errorf("%s, packed %v: %v", c.name, packed, err)
			}
		}
	}
}

// TestInflightKind: records of one kind of ring are not for the other, nor for
// a longer one.
func TestInflightKind(t *testing.T) {
	for _, c := range []struct {
		packed   bool
		size     uint16
		features uint64
		ok       bool
	}{
		{false, 8, 0, true}, {false, 16, 0, true}, {false, 4, 0, false}, {true, 8, 0, false},
		{true, 8, FeatureRingPacked, true}, {true, 9, FeatureRingPacked, true}, {true, 7, FeatureRingPacked, false}, {false, 8, FeatureRingPacked, false},
	} {
		g := newGuest(8, c.features)
		f, err := NewInflight(make([]byte, InflightSize(c.size, c.packed)), c.size, c.packed)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = NewRing(g.l, g.m, Options{Base: StartBase(c.features), Inflight: f}); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestInflightContradictions is hostile contents: an error or a safe reading.
func TestInflightContradictions(t *testing.T) {
	put := binary.LittleEndian.PutUint16
	type test struct {
		name string
		make func(mem []byte, g *guest)
		out  int // chains given out again; -1: an error
	}
	split := []test{
		{"nothing in flight, another used index", func(m []byte, g *guest) { put(m[14:], 77) }, 0},
		{"one in flight", func(m []byte, g *guest) { m[16+16*3] = 1 }, 1},
		{"any number that is not 0 is in flight", func(m []byte, g *guest) { m[16] = 0xff }, 1},
		{"in flight, and the used index went back", func(m []byte, g *guest) { m[16] = 1; put(m[14:], 1) }, -1},
		{"in flight, and a batch longer than the queue", func(m []byte, g *guest) { m[16] = 1; put(g.l.Device[2:], 9) }, -1},
		{"a batch that meets itself", func(m []byte, g *guest) { m[16] = 1; put(g.l.Device[2:], 2) }, -1},
		{"a batch that leaves the table", func(m []byte, g *guest) { m[16] = 1; put(m[12:], 8); put(g.l.Device[2:], 1) }, -1},
		{"a batch that leaves the table later", func(m []byte, g *guest) { m[16] = 1; put(m[16+6:], 0xffff); put(g.l.Device[2:], 2) }, -1},
		{"a batch of all that was in flight", func(m []byte, g *guest) { m[16+16] = 1; put(m[12:], 1); put(g.l.Device[2:], 1) }, 0},
		{"equal counters", func(m []byte, g *guest) { m[16], m[32] = 1, 1 }, 2},
	}
	packed := []test{
		{"nothing in flight", func(m []byte, g *guest) {}, 0},
		{"a used index beyond the ring", func(m []byte, g *guest) { put(m[16:], 8) }, -1},
		{"an old used index beyond the ring", func(m []byte, g *guest) { put(m[18:], 0xffff) }, -1},
		{"a free list that begins nowhere", func(m []byte, g *guest) { put(m[14:], 0xffff) }, -1},
		{"a free list that meets itself", func(m []byte, g *guest) { put(m[32+32*7+2:], 0) }, -1},
		{"a free list that is too short", func(m []byte, g *guest) { put(m[32+32*5+2:], 8) }, -1},
		{"a free one that says it is in flight", func(m []byte, g *guest) { m[32+32*3] = 1 }, 0},
		{"one in flight", func(m []byte, g *guest) { inflightHead(m, 1, 0, 1) }, 1},
		{"one in flight with no descriptor", func(m []byte, g *guest) { inflightHead(m, 1, 0, 0) }, -1},
		{"one in flight with more than there are", func(m []byte, g *guest) { inflightHead(m, 1, 0, 9) }, -1},
		{"one in flight that goes on into the free list", func(m []byte, g *guest) { inflightHead(m, 1, 1, 2) }, -1},
		{"one in flight that ends elsewhere", func(m []byte, g *guest) { inflightHead(m, 1, 5, 1) }, -1},
		{"two in flight that are one", func(m []byte, g *guest) {
			inflightHead(m, 2, 1, 2)
			inflightHead(m, 2, 1, 2)
			m[32+32] = 1
			put(m[32+32+6:], 1)
			put(m[32+32+4:], 1)
		}, -1},
	}
	run := func(t *testing.T, features uint64, tests []test) {
		for _, c := range tests {
			t.Run(c.name, func(t *testing.T) {
				g := newGuest(8, features)
				mem := make([]byte, InflightSize(8, g.l.packed()))
				if err := g.records(t, mem, 8); err != nil {
					t.Fatal(err)
				}
				g.raw(0, here, 1, descWrite, 0)
				c.make(mem, g)
				err := g.records(t, mem, 8)
				if (err == nil) != (c.out >= 0) || err != nil && !errors.Is(err, ErrInflight) {
					t.Fatal(err)
				}
				if err == nil && g.ring.Out() != c.out {
					t.Fatalf("%d chains are out, not %d", g.ring.Out(), c.out)
				}
			})
		}
	}
	t.Run("split", func(t *testing.T) { run(t, 0, split) })
	t.Run("packed", func(t *testing.T) { run(t, FeatureRingPacked, packed) })
}

// inflightHead puts entry 0 in flight, with a free list that begins at entry
// free.
func inflightHead(m []byte, free, last, num uint16) {
	put := binary.LittleEndian.PutUint16
	m[32] = 1
	put(m[32+4:], last)
	put(m[32+6:], num)
	put(m[12:], free)
	put(m[14:], free)
}

// TestInflightFreshInMidLife: empty records for a ring that has been in use
// before are of a ring at rest where it is.
func TestInflightFreshInMidLife(t *testing.T) {
	g := newGuest(8, 0)
	binary.LittleEndian.PutUint16(g.l.Device[2:], 1234)
	f, err := NewInflight(make([]byte, InflightSize(8, false)), 8, false)
	if err != nil {
		t.Fatal(err)
	}
	g.startDevice(t, Options{Base: 1234, Inflight: f})
	if g.ring.Base() != 1234 || f.u16(ifSplitUsed) != 1234 {
		t.Errorf("base %d, used_idx %d", g.ring.Base(), f.u16(ifSplitUsed))
	}
	g = newGuest(8, FeatureRingPacked)
	if f, err = NewInflight(make([]byte, InflightSize(8, true)), 8, true); err != nil {
		t.Fatal(err)
	}
	base := uint32(1<<31 | 5<<16 | 1<<15 | 5)
	g.startDevice(t, Options{Base: base, Inflight: f})
	if s := f.state(); g.ring.Base() != base || s != (packedState{5, 5, true, true}) {
		t.Errorf("base %#x, %+v", g.ring.Base(), s)
	}
}

// TestInflightFreshIsOfNothing: what a record without a version has in it means
// nothing, and is not there any more once it has one.
func TestInflightFreshIsOfNothing(t *testing.T) {
	for _, features := range []uint64{0, FeatureRingPacked} {
		g := newGuest(8, features).start(t)
		mem := make([]byte, InflightSize(8, g.l.packed()))
		for i := range mem {
			mem[i] = byte(i) | 1
		}
		clear(mem[ifVersion : ifVersion+2])
		if err := g.records(t, mem, 8); err != nil {
			t.Fatal(err)
		}
		want := make([]byte, len(mem))
		if err := g.records(t, want, 8); err != nil {
			t.Fatal(err)
		}
		if n := g.ring.inflight.entry(8); !slices.Equal(mem[ifVersion:n], want[ifVersion:n]) {
			t.Errorf("features %#x: % x, not % x", features, mem[ifVersion:n], want[ifVersion:n])
		}
		if err := g.records(t, mem, 8); err != nil || g.ring.Out() != 0 {
			t.Errorf("features %#x: a successor: %v, %d chains", features, err, g.ring.Out())
		}
		g.mustAdd(t, segs(here, 1), segs(here, 1), false)
		g.driver.Kick()
		var c Chain
		g.mustPop(t, &c)
	}
}

// TestInflightForget: a ring that is given up leaves nothing on record, also if
// that breaks off behind its first step.
func TestInflightForget(t *testing.T) {
	for _, features := range []uint64{0, FeatureRingPacked} {
		g := newGuest(8, features).start(t)
		mem := make([]byte, InflightSize(8, g.l.packed()))
		if err := g.records(t, mem, 8); err != nil {
			t.Fatal(err)
		}
		g.mustAdd(t, segs(here, 1), segs(here, 1), false)
		g.driver.Kick()
		var c Chain
		g.mustPop(t, &c)
		broken := slices.Clone(mem)
		clear(broken[ifVersion : ifVersion+2])
		g.ring.Forget()
		for _, left := range [][]byte{mem, broken} {
			if err := g.records(t, left, 8); err != nil || g.ring.Out() != 0 {
				t.Errorf("features %#x: %v, %d chains on record", features, err, g.ring.Out())
			}
		}
	}
}

// TestInflightHeadTwice: a driver that offers a chain again that is in flight
// stops its queue; the record would not know which of them is done.
func TestInflightHeadTwice(t *testing.T) {
	g := newGuest(4, 0)
	if err := g.records(t, make([]byte, InflightSize(4, false)), 4); err != nil {
		t.Fatal(err)
	}
	g.raw(2, here, 1, descWrite, 0)
	g.offer(2, 2)
	var c Chain
	g.mustPop(t, &c)
	checkFault(t, g, RuleOutstanding, true, 2)
}

// TestInflightRecordIsChecked changes the record between NewRing and Pop.
func TestInflightRecordIsChecked(t *testing.T) {
	for _, indirect := range []bool{false, true} {
		features := FeatureRingPacked
		if indirect {
			features |= FeatureIndirectDesc
		}
		g := newGuest(8, features).start(t)
		mem := make([]byte, InflightSize(8, true))
		if err := g.records(t, mem, 8); err != nil {
			t.Fatal(err)
		}
		g.mustAdd(t, segs(here, 1), segs(here, 1), false)
		g.driver.Kick()
		var c Chain
		g.mustPop(t, &c)
		if err := g.records(t, mem, 8); err != nil {
			t.Fatal(err)
		}
		binary.LittleEndian.PutUint16(mem[32+18:], descIndirect)
		checkFault(t, g, RuleRecordedChain, true, 0)
	}
}

// TestInflightOfOtherMemory: a chain on record whose memory is gone fails by
// itself, and the ring goes on.
func TestInflightOfOtherMemory(t *testing.T) {
	eachKind(t, func(t *testing.T, features uint64) {
		g := newGuest(8, features).start(t)
		mem := make([]byte, InflightSize(8, g.l.packed()))
		if err := g.records(t, mem, 8); err != nil {
			t.Fatal(err)
		}
		g.mustAdd(t, segs(here+guestSize/4, 1), segs(here, 1), false)
		g.driver.Kick()
		var c Chain
		g.mustPop(t, &c)
		m, err := NewMap([]Region{{Guest: guestBase, Mem: g.mem[:guestData+4096]}})
		if err != nil {
			t.Fatal(err)
		}
		g.m = m
		if err := g.records(t, mem, 8); err != nil {
			t.Fatal(err)
		}
		checkFault(t, g, RuleAddress, false, 0)
		if g.ring.Out() != 0 {
			t.Error("a chain is left")
		}
		id, _, ok, err := g.driver.Next()
		if !ok || err != nil || id != c.Head {
			t.Error(id, ok, err)
		}
	})
}

// TestInflightIndexesWrap keeps records over more requests than 16 bits count,
// with one that is out all the time and is given out again at the end.
func TestInflightIndexesWrap(t *testing.T) {
	for size, features := range map[uint16]uint64{4: 0, 5: FeatureRingPacked} {
		g := newGuest(size, features).start(t)
		mem := make([]byte, InflightSize(g.l.Size, g.l.packed()))
		if err := g.records(t, mem, g.l.Size); err != nil {
			t.Fatal(err)
		}
		var c Chain
		id := g.mustAdd(t, segs(here, 1), segs(here, 1), false)
		g.driver.Kick()
		g.mustPop(t, &c)
		for n := range 70000 {
			g.mustAdd(t, segs(here, 1), segs(here, 1), false)
			g.driver.Kick()
			g.mustPop(t, &c)
			if n%10000 == 9999 {
				if err := g.records(t, mem, g.l.Size); err != nil {
					t.Fatal(err)
				}
				if g.ring.Out() != 2 {
					t.Fatalf("after %d requests: %d are in flight, not 2", n, g.ring.Out())
				}
				g.mustPop(t, &c)
				if c.Head != id || !c.Resubmit {
					t.Fatalf("after %d requests: %d is given out again, not %d, which is older", n, c.Head, id)
				}
				g.mustPop(t, &c)
			}
			g.ring.Push(c.Handle, 1)
			g.ring.Publish()
			if _, _, ok, err := g.driver.Next(); !ok || err != nil {
				t.Fatal(n, ok, err)
			}
		}
	}
}
