package virtio

import (
	"encoding/binary"
	"testing"
)

// TestSplitEvents is when the driver is called with event indexes: if the entry
// that it named is among those just published (section 2.7.7.2).
func TestSplitEvents(t *testing.T) {
	for _, start := range []uint16{0, 5, 65533} {
		for n := 1; n <= 4; n++ {
			for event := -3; event <= 6; event++ {
				g := newGuest(4, FeatureEventIdx)
				binary.LittleEndian.PutUint16(g.l.Device[2:], start)
				g.startDevice(t, Options{Base: uint32(start)})
				binary.LittleEndian.PutUint16(g.l.Driver[2:], start)
				g.raw(0, here, 1, descWrite, 0)
				binary.LittleEndian.PutUint16(g.l.Driver[0:], availNoInterrupt) // to be ignored
				binary.LittleEndian.PutUint16(g.l.Driver[4+2*4:], start+uint16(event))
				for range n {
					g.offer(0)
					c := Chain{}
					g.mustPop(t, &c)
					g.ring.Push(c.Handle, 1)
				}
				want := event >= 0 && event < n
				if got := g.ring.Publish(); got != want {
					t.Errorf("from %d, %d more, event at %+d: %v", start, n, event, got)
				}
			}
		}
	}
}

// TestSplitFlags is the same without event indexes: the flag decides, and the
// event index is ignored.
func TestSplitFlags(t *testing.T) {
	for flags, want := range map[uint16]bool{0: true, availNoInterrupt: false, 2: true, 3: false} {
		g := newGuest(4, 0).start(t)
		g.raw(0, here, 1, descWrite, 0)
		g.offer(0)
		binary.LittleEndian.PutUint16(g.l.Driver[0:], flags)
		c := Chain{}
		g.mustPop(t, &c)
		g.ring.Push(c.Handle, 1)
		if got := g.ring.Publish(); got != want {
			t.Errorf("flags %d: %v", flags, got)
		}
		if g.ring.Publish() {
			t.Error("called for nothing")
		}
	}
}

// TestArmWritesOnlyItsField: the two bytes after the last field of the used
// ring belong to somebody else.
func TestArmWritesOnlyItsField(t *testing.T) {
	for _, size := range []uint16{1, 2, 8} {
		g := newGuest(size, FeatureEventIdx).start(t)
		_, _, n := AreaSizes(size, 0)
		at, _ := g.m.Address(g.l.Device)
		after := g.at(at)[:n+2]
		after[n], after[n+1] = 0xab, 0xcd
		g.ring.avail, g.ring.seen = 0x1234, 0x1234
		g.ring.Arm()
		if got := binary.LittleEndian.Uint16(after[n-2:]); got != 0x1234 || after[n] != 0xab || after[n+1] != 0xcd {
			t.Errorf("size %d: event %#x, after it % x", size, got, after[n:])
		}
	}
}

// TestDisarmIsTold: what each side has asked for is what the other reads.
func TestDisarmIsTold(t *testing.T) {
	eachKind(t, func(t *testing.T, features uint64) {
		g := newGuest(4, features).start(t)
		kick := func() bool {
			g.mustAdd(t, segs(here, 1), segs(here, 1), true)
			return g.driver.Kick()
		}
		if !kick() {
			t.Error("a ring begins with kicks wanted")
		}
		g.ring.Disarm()
		// With event indexes in a split ring there is nothing to disarm: the
		// index is passed.
		if kick() {
			t.Error("a kick after Disarm")
		}
		c := Chain{}
		for range 2 {
			g.mustPop(t, &c)
			g.ring.Push(c.Handle, 1)
		}
		if g.ring.Arm() {
			t.Error("there is nothing")
		}
		if !g.ring.Publish() {
			t.Error("a ring begins with calls wanted")
		}
		if !kick() {
			t.Error("no kick after Arm")
		}
		if event := features&FeatureEventIdx != 0; kick() == event {
			t.Errorf("a second kick without a second Arm: %v", !event)
		}
	})
}

// TestRingAtOddHalves uses an available ring at an address that is even and no
// multiple of 4, as section 2.7 allows.
func TestRingAtOddHalves(t *testing.T) {
	for _, size := range []uint16{1, 2, 4} {
		for _, features := range []uint64{0, FeatureEventIdx} {
			g := newGuest(size, features)
			_, n, _ := AreaSizes(size, features)
			g.l.Driver = g.mem[3*4096+2 : 3*4096+2+n]
			g.start(t)
			for i := range 10 {
				id := g.mustAdd(t, segs(here, 1), nil, true)
				if g.driver.Disarm(); g.driver.Arm() {
					t.Fatal("nothing was used")
				}
				if kick := g.driver.Kick(); kick == (i > 0 && features != 0) {
					t.Fatalf("kick %d: %v", i, kick)
				}
				c := Chain{}
				g.mustPop(t, &c)
				g.ring.Push(c.Handle, 0)
				if !g.ring.Publish() {
					t.Fatal("no call after the driver's Arm")
				}
				if got, _, ok, err := g.driver.Next(); !ok || err != nil || got != id {
					t.Fatal(got, ok, err)
				}
			}
		}
	}
}

// TestDriverChecksTheDevice: a used entry for what is not out is an error, and
// stays one.
func TestDriverChecksTheDevice(t *testing.T) {
	used := func(g *guest, idx uint16, ids ...uint32) {
		for i, id := range ids {
			binary.LittleEndian.PutUint32(g.l.Device[4+8*i:], id)
		}
		binary.LittleEndian.PutUint16(g.l.Device[2:], idx)
	}
	for _, c := range []struct {
		name     string
		features uint64
		make     func(g *guest)
	}{
		{"beyond the table", 0, func(g *guest) { used(g, 1, 4) }},
		{"far beyond the table", 0, func(g *guest) { used(g, 1, 1<<16) }},
		{"not out", 0, func(g *guest) { used(g, 1, 2) }},
		{"twice", 0, func(g *guest) { used(g, 2, 0, 0) }},
		{"more than are out", 0, func(g *guest) { used(g, 3, 0) }},
		{"backwards", 0, func(g *guest) { used(g, 65535, 0) }},
		{"in order, not out", FeatureInOrder, func(g *guest) { used(g, 1, 3) }},
		{"packed, beyond", FeatureRingPacked, func(g *guest) { putDesc(g.l.Desc, 0, desc{0, 0, 4, descAvail | descUsed}) }},
		{"packed, not out", FeatureRingPacked, func(g *guest) { putDesc(g.l.Desc, 0, desc{0, 0, 0, descAvail | descUsed}) }},
		{"packed, in order, not out", FeatureRingPacked | FeatureInOrder, func(g *guest) { putDesc(g.l.Desc, 0, desc{0, 0, 0, descAvail | descUsed}) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newGuest(4, c.features).start(t)
			g.mustAdd(t, segs(here, 1), nil, false)
			g.mustAdd(t, segs(here, 1), nil, false)
			g.driver.Kick()
			c.make(g)
			var err error
			for range 4 {
				if _, _, _, err = g.driver.Next(); err != nil {
					break
				}
			}
			if err == nil {
				t.Fatal("no error")
			}
			if _, _, ok, again := g.driver.Next(); ok || again != err || !g.driver.More() {
				t.Fatal("the error does not stay", ok, again)
			}
		})
	}
}
