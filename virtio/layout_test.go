package virtio

import (
	"errors"
	"testing"
)

// TestLayoutRules is what sizes, lengths and alignments a ring may have
// (sections 2.7 and 2.8.10.1), on both sides.
func TestLayoutRules(t *testing.T) {
	mem := make([]byte, 1<<20)
	for _, c := range []struct {
		name                         string
		size                         uint16
		features                     uint64
		descAt, driverAt, deviceAt   int
		descCut, driverCut, deviceCu int
		ok                           bool
	}{
		{"split", 8, 0, 0, 0, 0, 0, 0, 0, true},
		{"split of one", 1, 0, 0, 0, 0, 0, 0, 0, true},
		{"the largest", MaxQueueSize, 0, 0, 0, 0, 0, 0, 0, true},
		{"larger", MaxQueueSize + 1, FeatureRingPacked, 0, 0, 0, 0, 0, 0, false},
		{"none", 0, 0, 0, 0, 0, 0, 0, 0, false},
		{"no packed either", 0, FeatureRingPacked, 0, 0, 0, 0, 0, 0, false},
		{"split, no power of two", 6, 0, 0, 0, 0, 0, 0, 0, false},
		{"packed, no power of two", 6, FeatureRingPacked, 0, 0, 0, 0, 0, 0, true},
		{"descriptors at 8", 8, 0, 8, 0, 0, 0, 0, 0, false},
		{"descriptors at 16", 8, 0, 16, 0, 0, 0, 0, 0, true},
		{"available ring at 2", 8, 0, 0, 2, 0, 0, 0, 0, true},
		{"available ring at 1", 8, 0, 0, 1, 0, 0, 0, 0, false},
		{"used ring at 2", 8, 0, 0, 0, 2, 0, 0, 0, false},
		{"used ring at 4", 8, 0, 0, 0, 4, 0, 0, 0, true},
		{"packed, driver events at 2", 8, FeatureRingPacked, 0, 2, 0, 0, 0, 0, false},
		{"packed, device events at 2", 8, FeatureRingPacked, 0, 0, 2, 0, 0, 0, false},
		{"descriptors too short", 8, 0, 0, 0, 0, 1, 0, 0, false},
		{"available ring too short", 8, 0, 0, 0, 0, 0, 1, 0, false},
		{"used ring too short", 8, 0, 0, 0, 0, 0, 0, 1, false},
	} {
		desc, driver, device := AreaSizes(c.size, c.features)
		m, err := NewMap(nil)
		if err != nil {
			t.Fatal(err)
		}
		l := Layout{
			Size: c.size, Features: c.features,
			Desc:   mem[c.descAt:][:max(desc-c.descCut, 0)],
			Driver: mem[1<<19:][c.driverAt:][:max(driver-c.driverCut, 0)],
			Device: mem[1<<19+1<<17:][c.deviceAt:][:max(device-c.deviceCu, 0)],
		}
		if _, err := NewRing(l, m, Options{Base: StartBase(c.features)}); (err == nil) != c.ok {
			t.Errorf("%s: the device says %v", c.name, err)
		}
		if _, err := NewDriver(l, Tables{}); (err == nil) != c.ok {
			t.Errorf("%s: the driver says %v", c.name, err)
		}
	}
}

// TestDriverTables is what memory a driver's indirect tables need.
func TestDriverTables(t *testing.T) {
	g := newGuest(4, FeatureIndirectDesc)
	for _, c := range []struct {
		t  Tables
		ok bool
	}{
		{Tables{}, true}, {Tables{Len: 2, Mem: make([]byte, 128)}, true}, {Tables{Len: 2, Mem: make([]byte, 127)}, false},
		{Tables{Len: -1}, false}, {Tables{Len: MaxSegs + 1, Mem: make([]byte, 1<<20)}, false}, {Tables{Guest: 1<<64 - 8, Len: 2, Mem: make([]byte, 128)}, false},
	} {
		if _, err := NewDriver(g.l, c.t); (err == nil) != c.ok {
			t.Errorf("%d bytes for tables of %d at %#x: %v", len(c.t.Mem), c.t.Len, c.t.Guest, err)
		}
	}
}

// TestInflightOfALongerQueue: records may be for more descriptors than the ring
// has, but not say that more are in flight.
func TestInflightOfALongerQueue(t *testing.T) {
	g := newGuest(4, 0)
	mem := make([]byte, InflightSize(8, false))
	if err := g.records(t, mem, 8); err != nil {
		t.Fatal(err)
	}
	mem[splitEntry(3)] = 1
	if err := g.records(t, mem, 8); err != nil || g.ring.Out() != 1 {
		t.Fatal("the last descriptor of the ring", err)
	}
	mem[splitEntry(4)] = 1
	if err := g.records(t, mem, 8); !errors.Is(err, ErrInflight) {
		t.Error("a descriptor beyond the ring", err)
	}

	for n, ok := range map[int]bool{4: true, 5: false} {
		g = newGuest(8, FeatureRingPacked).start(t)
		mem = make([]byte, InflightSize(8, true))
		if err := g.records(t, mem, 8); err != nil {
			t.Fatal(err)
		}
		var c Chain
		for range n {
			g.mustAdd(t, segs(here, 1), nil, false)
			g.driver.Kick()
			g.mustPop(t, &c)
		}
		shorter := newGuest(4, FeatureRingPacked)
		if err := shorter.records(t, mem, 8); (err == nil) != ok || err != nil && !errors.Is(err, ErrInflight) {
			t.Errorf("%d in flight in a ring of 4: %v", n, err)
		}
	}
}

// TestInflightOfTooLongAChain: what is refused leaves no trace in the records.
func TestInflightOfTooLongAChain(t *testing.T) {
	g := newGuest(4, FeatureRingPacked)
	mem := make([]byte, InflightSize(4, true))
	if err := g.records(t, mem, 4); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		g.rawPacked(i, here, 1, descNext, 0)
	}
	checkFault(t, g, RuleOutstanding, true, 3)
	if err := g.records(t, mem, 4); err != nil || g.ring.Out() != 0 {
		t.Error(err, g.ring.Out())
	}
}
