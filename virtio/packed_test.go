package virtio

import (
	"encoding/binary"
	"fmt"
	"testing"
)

// TestPackedRules offers packed rings what no driver may.
func TestPackedRules(t *testing.T) {
	const w, n, ind = descWrite, descNext, descIndirect
	const tableAt = guestBase + guestTables
	for _, c := range []struct {
		name  string
		rule  Rule
		fatal bool
		at    uint16
		make  func(g *guest)
	}{
		{"2.8.17 a chain longer than the ring", RuleOutstanding, true, 6, func(g *guest) {
			for i := range 7 {
				g.rawPacked(i, here, 1, n, 0)
			}
		}},
		{"2.8.17 readable after writable", RuleOrder, false, 1, func(g *guest) {
			g.rawPacked(0, here, 1, w|n, 0)
			g.rawPacked(1, here, 1, n, 0)
			g.rawPacked(2, here, 1, w, 0)
		}},
		{"a buffer outside memory", RuleAddress, false, 0, func(g *guest) {
			g.rawPacked(0, 0, 1, n, 0)
			g.rawPacked(1, here, 1, w, 0)
		}},
		{"2.8.19 indirect in a list", RuleIndirect, true, 1, func(g *guest) {
			g.rawPacked(0, here, 1, n, 0)
			g.rawPacked(1, tableAt, 16, ind, 0)
		}},
		{"2.8.19 indirect with next", RuleIndirect, true, 0, func(g *guest) { g.rawPacked(0, tableAt, 16, ind|n, 0) }},
		{"2.8.7 an empty table", RuleTable, true, 0, func(g *guest) { g.rawPacked(0, tableAt, 0, ind, 0) }},
		{"2.8.7 a table outside memory", RuleTable, true, 0, func(g *guest) { g.rawPacked(0, 0, 16, ind, 0) }},
		{"a wrong chain without a status", RuleNoStatus, true, 0, func(g *guest) { g.rawPacked(0, 0, 16, 0, 0) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newGuest(7, FeatureRingPacked|FeatureIndirectDesc).start(t)
			c.make(g)
			checkFault(t, g, c.rule, c.fatal, c.at)
		})
	}
}

// TestPackedTableFlags: in an indirect table only the write flag counts
// (section 2.8.7), and all of the table does.
func TestPackedTableFlags(t *testing.T) {
	g := newGuest(7, FeatureRingPacked|FeatureIndirectDesc).start(t)
	table := g.mem[guestTables:]
	putDesc(table, 0, desc{here, 1, 9, descIndirect | descAvail})
	putDesc(table, 1, desc{here, 2, 9, descUsed})
	putDesc(table, 2, desc{here, 3, 9, descWrite | descNext})
	g.rawPacked(0, guestBase+guestTables, 48, descIndirect, 0xbeef)
	c := Chain{}
	g.mustPop(t, &c)
	if lens(c.Out) != "[1 2]" || lens(c.In) != "[3]" || c.Head != 0xbeef || c.Count != 1 {
		t.Fatalf("out %s, in %s, %+v", lens(c.Out), lens(c.In), c.Handle)
	}
}

// TestPackedID: the buffer ID is that of the last descriptor (section 2.8.6),
// and is any number.
func TestPackedID(t *testing.T) {
	g := newGuest(7, FeatureRingPacked).start(t)
	g.rawPacked(0, here, 1, descNext, 1)
	g.rawPacked(1, here, 1, descWrite, 0xffff)
	c := Chain{}
	g.mustPop(t, &c)
	if c.Head != 0xffff || c.Count != 2 {
		t.Fatalf("%+v", c.Handle)
	}
	g.ring.Push(c.Handle, 1)
	g.ring.Publish()
	d := packedDesc(g.l.Desc, 0)
	if want := descAvail | descUsed | descWrite; d.flags != want || d.next != 0xffff || d.len != 1 {
		t.Fatalf("used descriptor %+v", d)
	}
}

// TestPackedMarks is the table of section 2.8.1.
func TestPackedMarks(t *testing.T) {
	for _, c := range []struct {
		wrap, used bool
		want       uint16
	}{
		{true, false, descAvail}, {true, true, descAvail | descUsed}, {false, false, descUsed}, {false, true, 0},
	} {
		if got := marks(c.wrap, c.used); got != c.want {
			t.Errorf("wrap %v used %v: %#x, not %#x", c.wrap, c.used, got, c.want)
		}
	}
}

// TestPackedBase is how the vhost-user specification encodes descriptor
// indices.
func TestPackedBase(t *testing.T) {
	for _, base := range []uint32{PackedBase, 0, 6, 6 << 16, 1<<15 | 3, 1<<31 | 5<<16 | 1<<15 | 6} {
		g := newGuest(7, FeatureRingPacked)
		g.startDevice(t, Options{Base: base})
		if got := g.ring.Base(); got != base {
			t.Errorf("%#x became %#x", base, got)
		}
	}
	for _, base := range []uint32{7, 0x7fff, 7 << 16} {
		g := newGuest(7, FeatureRingPacked)
		if _, err := NewRing(g.l, g.m, Options{Base: base}); err == nil {
			t.Errorf("%#x is beyond the ring", base)
		}
	}
}

// TestPackedNotRingSize uses all descriptors of a ring whose size is no power
// of two, around its end.
func TestPackedChainsAroundTheEnd(t *testing.T) {
	g := newGuest(5, FeatureRingPacked).start(t)
	c := Chain{}
	for n := range 50 {
		out := segs(here, 1, 1, 1)[:1+n%3]
		id := g.mustAdd(t, out, segs(here, 1), false)
		g.driver.Kick()
		g.mustPop(t, &c)
		if int(c.Count) != len(out)+1 || c.Head != id {
			t.Fatalf("%d: %+v", n, c.Handle)
		}
		g.ring.Push(c.Handle, 1)
		g.ring.Publish()
		if got, _, ok, err := g.driver.Next(); !ok || err != nil || got != id {
			t.Fatal(n, got, ok, err)
		}
	}
}

// TestPackedEvents asks for one descriptor, and counts from where to where it
// must be told (section 2.8.10).
func TestPackedEvents(t *testing.T) {
	const size = 5
	// Two laps are all the positions that there are.
	at := func(p int) (uint16, bool) { return uint16(p % size), p%(2*size) < size }
	for from := range 2 * size {
		for n := 1; n <= size; n++ {
			for event := range 2 * size {
				old, oldWrap := at(from)
				now, nowWrap := at(from + n)
				off, wrap := at(event)
				word := uint32(off) | bit(wrap)<<15 | uint32(eventDesc)<<16
				want := false
				for p := from; p < from+n; p++ {
					want = want || p%(2*size) == event
				}
				name := fmt.Sprintf("event %d, from %d, %d more", event, from, n)
				if got := wanted(word, true, size, old, oldWrap, now, nowWrap); got != want {
					t.Errorf("%s: %v", name, got)
				}
				if !wanted(word, false, size, old, oldWrap, now, nowWrap) {
					t.Errorf("%s: without the feature the answer is yes", name)
				}
			}
		}
	}
	for event, want := range map[uint32]bool{
		uint32(eventEnable) << 16:         true,
		uint32(eventDisable) << 16:        false,
		3 << 16:                           true, // reserved
		uint32(eventDesc)<<16 | size:      true, // beyond the ring
		0xfffc_0000:                       true, // reserved bits
		uint32(eventDisable)<<16 | 0x1234: false,
	} {
		if got := wanted(event, true, size, 0, true, 1, true); got != want {
			t.Errorf("event %#x: %v", event, got)
		}
	}
}

// TestInOrderTogether publishes chains that were pushed in any order: they come
// as one used entry, in the order in which they were offered (sections 2.7.9
// and 2.8.8).
func TestInOrderTogether(t *testing.T) {
	for _, packed := range []uint64{0, FeatureRingPacked} {
		g := newGuest(8, packed|FeatureInOrder).start(t)
		var h []Handle
		for range 4 {
			g.mustAdd(t, segs(here, 1), segs(here, 8), false)
		}
		g.driver.Kick()
		for range 4 {
			c := Chain{}
			g.mustPop(t, &c)
			h = append(h, c.Handle)
		}
		g.ring.Push(h[1], 8)
		g.ring.Push(h[2], 3) // not to its end: it must be told of by itself
		if g.ring.Publish() {
			t.Fatal("called, and the first is not done")
		}
		if g.driver.More() {
			t.Fatal("something was published before the first was done")
		}
		g.ring.Push(h[0], 8)
		g.ring.Push(h[3], 8)
		g.ring.Publish()
		if packed == 0 {
			e := func(i int) [2]uint32 {
				b := g.l.Device[4+8*i:]
				return [2]uint32{binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])}
			}
			if e(0) != [2]uint32{uint32(h[2].Head), 3} || e(1) != [2]uint32{} || e(2) != [2]uint32{} || e(3) != [2]uint32{uint32(h[3].Head), 8} {
				t.Errorf("used entries %v %v %v %v", e(0), e(1), e(2), e(3))
			}
		} else if d := packedDesc(g.l.Desc, 0); d.next != h[2].Head || d.len != 3 {
			t.Errorf("first used descriptor %+v", d)
		}
		for i, want := range []uint32{8, 8, 3, 8} {
			id, written, ok, err := g.driver.Next()
			if !ok || err != nil || id != h[i].Head || written != want {
				t.Fatalf("packed %v: %d: id %d, written %d, %v, %v", packed != 0, i, id, written, ok, err)
			}
		}
	}
}
