package virtio

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"
)

const here = guestBase + guestData // guest address of memory that a buffer may be in

// TestSplitRules offers split rings what no driver may, rule by rule.
func TestSplitRules(t *testing.T) {
	const w, n, ind = descWrite, descNext, descIndirect
	table := func(g *guest, i int, d desc) { putDesc(g.mem[guestTables:], i, d) }
	const tableAt = guestBase + guestTables
	for _, c := range []struct {
		name  string
		rule  Rule
		fatal bool
		at    uint16
		make  func(g *guest)
	}{
		{"2.7.6 a head beyond the table", RuleHead, true, 8, func(g *guest) { g.offer(8) }},
		{"2.7.13.3 an index too far ahead", RuleAvailIndex, true, 9, func(g *guest) {
			binary.LittleEndian.PutUint16(g.l.Driver[2:], 9)
		}},
		{"2.7.5 a next beyond the table", RuleNext, true, 0, func(g *guest) {
			g.raw(0, here, 16, n, 8)
			g.offer(0)
		}},
		{"2.7.5.2 a chain that is a ring", RuleLoop, true, 0, func(g *guest) {
			g.raw(0, here, 1, n, 1)
			g.raw(1, here, 1, n, 0)
			g.offer(0)
		}},
		{"2.7.5.2 a descriptor that is its own next", RuleLoop, true, 5, func(g *guest) {
			g.raw(5, here, 1, n, 5)
			g.offer(5)
		}},
		{"2.7.4.2 readable after writable", RuleOrder, false, 1, func(g *guest) {
			g.raw(0, here, 1, w|n, 1)
			g.raw(1, here, 1, n, 2)
			g.raw(2, here, 1, w, 0)
			g.offer(0)
		}},
		{"2.7.5 a buffer outside memory", RuleAddress, false, 0, func(g *guest) {
			g.raw(0, guestBase-1, 2, n, 1)
			g.raw(1, here, 1, w, 0)
			g.offer(0)
		}},
		{"2.7.5 a buffer past the end of memory", RuleAddress, false, 0, func(g *guest) {
			g.raw(0, guestBase+guestSize-1, 2, n, 1)
			g.raw(1, here, 1, w, 0)
			g.offer(0)
		}},
		{"2.7.5 a buffer around the end of addresses", RuleAddress, false, 0, func(g *guest) {
			g.raw(0, 1<<64-1, 2, n, 1)
			g.raw(1, here, 1, w, 0)
			g.offer(0)
		}},
		{"a wrong chain whose status is outside memory", RuleNoStatus, true, 0, func(g *guest) {
			g.raw(0, 0, 1, n, 1)
			g.raw(1, 0, 1, w, 0)
			g.offer(0)
		}},
		{"a wrong chain without a status", RuleNoStatus, true, 0, func(g *guest) {
			g.raw(0, 0, 1, 0, 0)
			g.offer(0)
		}},
		{"2.7.5.3.1 indirect and next", RuleIndirect, true, 0, func(g *guest) {
			g.raw(0, tableAt, 16, ind|n, 1)
			g.offer(0)
		}},
		{"2.7.5.3 an empty table", RuleTable, true, 0, func(g *guest) {
			g.raw(0, tableAt, 0, ind, 0)
			g.offer(0)
		}},
		{"2.7.5.3 a table that is not of whole descriptors", RuleTable, true, 0, func(g *guest) {
			g.raw(0, tableAt, 17, ind, 0)
			g.offer(0)
		}},
		{"2.7.5.3 a table outside memory", RuleTable, true, 0, func(g *guest) {
			g.raw(0, 0, 16, ind, 0)
			g.offer(0)
		}},
		{"2.7.5.3 a table that ends outside memory", RuleTable, true, 0, func(g *guest) {
			// The first descriptor is inside, and leads to the second.
			putDesc(g.mem[guestSize-16:], 0, desc{here, 1, n, 1})
			g.raw(0, guestBase+guestSize-16, 32, ind, 0)
			g.offer(0)
		}},
		{"2.7.5.3.1 a table in a table", RuleIndirect, true, 0, func(g *guest) {
			table(g, 0, desc{tableAt, 16, ind, 0})
			g.raw(0, tableAt, 16, ind, 0)
			g.offer(0)
		}},
		{"2.7.5.3 a next beyond the indirect table", RuleNext, true, 0, func(g *guest) {
			table(g, 0, desc{here, 1, n, 1})
			g.raw(0, tableAt, 16, ind, 0)
			g.offer(0)
		}},
		{"2.7.5.2 a ring in an indirect table", RuleLoop, true, 0, func(g *guest) {
			table(g, 0, desc{here, 1, n, 1})
			table(g, 1, desc{here, 1, n, 0})
			g.raw(0, tableAt, 32, ind, 0)
			g.offer(0)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newGuest(8, FeatureIndirectDesc).start(t)
			c.make(g)
			checkFault(t, g, c.rule, c.fatal, c.at)
		})
	}
}

// checkFault looks at what Pop says of a wrong chain, and that the ring goes on
// or does not.
func checkFault(t *testing.T, g *guest, rule Rule, fatal bool, at uint16) {
	t.Helper()
	c := Chain{}
	ok, err := g.ring.Pop(&c)
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("%v, %v", ok, err)
	}
	if e.Rule != rule || e.Fatal != fatal || e.Index != at || ok == fatal {
		t.Fatalf("ok=%v %v, rule %d at %d, fatal %v; want rule %d at %d, fatal %v", ok, e, e.Rule, e.Index, e.Fatal, rule, at, fatal)
	}
	if !strings.Contains(e.Error(), rule.String()) {
		t.Fatalf("%q does not say %q", e, rule)
	}
	if fatal {
		clear(g.l.Desc) // as if nothing had been offered: it stays so
		clear(g.l.Driver)
		if ok, again := g.ring.Pop(&c); ok || again != err || !g.ring.More() {
			t.Fatalf("after %v: %v, %v", err, ok, again)
		}
		return
	}
	if len(c.Out) != 0 || len(c.In) != 1 {
		t.Fatalf("out %s, in %s", lens(c.Out), lens(c.In))
	}
	g.fail(&c)
	g.ring.Publish()
	if last := c.In[0]; last[len(last)-1] != BlkIOErr {
		t.Fatal("the status was not written")
	}
	if ok, err := g.ring.Pop(&c); ok || err != nil {
		t.Fatalf("after that: %v, %v", ok, err)
	}
}

// TestSplitAllowed offers split rings what looks strange and is right.
func TestSplitAllowed(t *testing.T) {
	const w, n, ind = descWrite, descNext, descIndirect
	const tableAt = guestBase + guestTables
	table := func(g *guest, i int, d desc) { putDesc(g.mem[guestTables:], i, d) }
	for _, c := range []struct {
		name    string
		out, in string
		make    func(g *guest)
	}{
		{"2.7.5.3.2 direct ones, then a table", "[1 2]", "[3]", func(g *guest) {
			g.raw(0, here, 1, n, 1)
			g.raw(1, tableAt, 32, ind, 0)
			table(g, 0, desc{here, 2, n, 1})
			table(g, 1, desc{here, 3, w, 0})
		}},
		{"2.7.5.3.2 the write flag of an indirect descriptor is ignored", "[2]", "[]", func(g *guest) {
			g.raw(0, tableAt, 16, ind|w, 0)
			table(g, 0, desc{here, 2, 0, 0})
		}},
		{"2.7.5.3 a table in any order", "[1]", "[2 3]", func(g *guest) {
			g.raw(0, tableAt, 64, ind, 0)
			table(g, 0, desc{here, 1, n, 3})
			table(g, 3, desc{here, 2, w | n, 1})
			table(g, 1, desc{here, 3, w, 0})
		}},
		{"a table at an odd address", "[1]", "[2]", func(g *guest) {
			g.raw(0, tableAt+3, 32, ind, 0)
			putDesc(g.mem[guestTables+3:], 0, desc{here, 1, n, 1})
			putDesc(g.mem[guestTables+3:], 1, desc{here, 2, w, 0})
		}},
		{"as many as the table has", "[1 1 1 1 1 1 1]", "[1]", func(g *guest) {
			for i := range 7 {
				g.raw(i, here, 1, n, uint16(i+1))
			}
			g.raw(7, here, 1, w, 0)
		}},
		{"only writable", "[]", "[5]", func(g *guest) { g.raw(0, here, 5, w, 0) }},
		{"empty descriptors anywhere, at any address", "[1]", "[1]", func(g *guest) {
			g.raw(0, 0, 0, n, 1)
			g.raw(1, here, 1, n, 2)
			g.raw(2, 1<<63, 0, w|n, 3)
			g.raw(3, here, 1, w|n, 4)
			g.raw(4, 0, 0, 0, 0)
		}},
		{"flags that are not known", "[1]", "[]", func(g *guest) { g.raw(0, here, 1, 0xfff8, 9) }},
		{"the last byte of memory", "[1]", "[]", func(g *guest) { g.raw(0, guestBase+guestSize-1, 1, 0, 0) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newGuest(8, FeatureIndirectDesc).start(t)
			c.make(g)
			g.offer(0)
			chain := Chain{}
			g.mustPop(t, &chain)
			if lens(chain.Out) != c.out || lens(chain.In) != c.in {
				t.Fatalf("out %s, in %s", lens(chain.Out), lens(chain.In))
			}
		})
	}
}

// TestIndirectNotNegotiated refuses tables where the feature is missing.
func TestIndirectNotNegotiated(t *testing.T) {
	g := newGuest(8, 0).start(t)
	g.raw(0, guestBase+guestTables, 16, descIndirect, 0)
	g.offer(0)
	checkFault(t, g, RuleIndirect, true, 0)

	g = newGuest(8, FeatureRingPacked).start(t)
	g.rawPacked(0, guestBase+guestTables, 16, descIndirect, 0)
	checkFault(t, g, RuleIndirect, true, 0)
}

// TestMaxSegs offers chains of as many descriptors as are allowed, and one
// more: in the ring, in a table, and in both.
func TestMaxSegs(t *testing.T) {
	for _, packed := range []uint64{0, FeatureRingPacked} {
		for _, indirect := range []bool{false, true} {
			for n := MaxSegs - 1; n <= MaxSegs+1; n++ {
				g := newGuest(2048, packed|FeatureIndirectDesc).start(t)
				g.longChain(n, indirect)
				c := Chain{}
				ok, err := g.ring.Pop(&c)
				var e *Error
				switch {
				case n <= MaxSegs && (!ok || len(c.In) != n):
					t.Errorf("packed %v, indirect %v: %d descriptors: %v, %d pieces, %v", packed != 0, indirect, n, ok, len(c.In), err)
				case n > MaxSegs && (!errors.As(err, &e) || e.Rule != RuleLoop || !e.Fatal):
					t.Errorf("packed %v, indirect %v: %d descriptors: %v, %v", packed != 0, indirect, n, ok, err)
				}
			}
		}
	}
}

// longChain offers n bytes to write, each by itself.
func (g *guest) longChain(n int, indirect bool) {
	packed := g.l.packed()
	put := func(b []byte, i int, more bool, avail uint16) {
		d := desc{here, 1, descWrite, uint16(i + 1)}
		if more {
			d.flags |= descNext
		}
		if packed {
			d.flags, d.next = 7, d.flags|avail
		}
		putDesc(b, i, d)
	}
	if !indirect {
		for i := range n {
			put(g.l.Desc, i, i+1 < n, descAvail)
		}
	} else {
		for i := range n {
			put(g.mem[guestTables:], i, i+1 < n, 0)
		}
		d := desc{guestBase + guestTables, uint32(n * descSize), descIndirect, 0}
		if packed {
			d.flags, d.next = 7, descIndirect|descAvail
		}
		putDesc(g.l.Desc, 0, d)
	}
	if !packed {
		g.offer(0)
	}
}

// TestChainLength offers chains of 2^32 bytes, and one more (section 2.7.5.2).
func TestChainLength(t *testing.T) {
	const piece = 1 << 23
	for _, extra := range []uint32{0, 1} {
		g := newGuest(1024, 0)
		m, err := NewMap([]Region{{Guest: guestBase, User: guestUser, Mem: make([]byte, piece+1)}})
		if err != nil {
			t.Fatal(err)
		}
		g.m = m
		g.start(t)
		for i := range 512 {
			g.raw(i, guestBase, piece, descNext, uint16(i+1))
		}
		g.raw(511, guestBase, piece-1+extra, descNext, 512)
		g.raw(512, guestBase, 1, descWrite, 0)
		g.offer(0)
		if extra > 0 {
			checkFault(t, g, RuleLength, false, 512)
			continue
		}
		c := Chain{}
		g.mustPop(t, &c)
		if c.OutBytes+c.InBytes != 1<<32 {
			t.Fatal(c.OutBytes, c.InBytes)
		}
	}
}

// TestSegmentsInPieces counts the pieces that regions cut buffers into: the
// limit is one on pieces, too.
func TestSegmentsInPieces(t *testing.T) {
	for _, extra := range []int{0, 1} {
		g := newGuest(2048, FeatureIndirectDesc).start(t)
		half := guestSize / 2
		m, err := NewMap([]Region{{Guest: guestBase, Mem: g.mem[:half]}, {Guest: guestBase + uint64(half), Mem: g.mem[half:]}})
		if err != nil {
			t.Fatal(err)
		}
		g.m = m
		g.startDevice(t, Options{})
		edge := uint64(guestBase + half - 1)
		n := MaxSegs/2 + extra
		for i := range n {
			flags, bytes := descNext, uint32(2)
			if i == n-1 {
				flags, bytes = descWrite, uint32(2-extra) // one piece too many, not two
			}
			g.raw(i, edge, bytes, flags, uint16(i+1))
		}
		g.offer(0)
		if extra == 0 {
			c := Chain{}
			g.mustPop(t, &c)
			if len(c.Out)+len(c.In) != MaxSegs {
				t.Fatalf("%d and %d pieces", len(c.Out), len(c.In))
			}
			continue
		}
		c := Chain{}
		ok, err := g.ring.Pop(&c)
		var e *Error
		if !ok || !errors.As(err, &e) || e.Rule != RuleSegments || e.Fatal {
			t.Fatalf("%v, %v", ok, err)
		}
	}
}

// TestIndirectTableInTwoRegions reads a table that lies over an edge, also in
// the middle of a descriptor.
func TestIndirectTableInTwoRegions(t *testing.T) {
	for _, shift := range []int{0, 5, 15} {
		g := newGuest(8, FeatureIndirectDesc).start(t)
		half := guestSize / 2
		m, err := NewMap([]Region{{Guest: guestBase, Mem: g.mem[:half]}, {Guest: guestBase + uint64(half), Mem: g.mem[half:]}})
		if err != nil {
			t.Fatal(err)
		}
		g.m = m
		g.startDevice(t, Options{})
		at := half - 16 - shift
		putDesc(g.mem[at:], 0, desc{here, 1, descNext, 1})
		putDesc(g.mem[at:], 1, desc{here, 2, descNext, 2})
		putDesc(g.mem[at:], 2, desc{here, 3, descWrite, 0})
		g.raw(0, guestBase+uint64(at), 48, descIndirect, 0)
		g.offer(0)
		c := Chain{}
		g.mustPop(t, &c)
		if lens(c.Out) != "[1 2]" || lens(c.In) != "[3]" {
			t.Fatalf("shift %d: %s %s", shift, lens(c.Out), lens(c.In))
		}
	}
}

// TestOutstanding offers more than a ring can hold: no more than its size is
// ever out.
func TestOutstanding(t *testing.T) {
	g := newGuest(4, 0).start(t)
	g.raw(0, here, 1, descWrite, 0)
	c := Chain{}
	for range 4 {
		g.offer(0)
		g.mustPop(t, &c)
	}
	g.offer(0)
	checkFault(t, g, RuleOutstanding, true, 0)

	g = newGuest(4, FeatureRingPacked).start(t)
	for i := range 4 {
		g.rawPacked(i, here, 1, descWrite, 0)
	}
	for range 4 {
		g.mustPop(t, &c)
	}
	if ok, err := g.ring.Pop(&c); ok || err != nil || g.ring.More() {
		t.Fatal("the first lap was offered once", ok, err)
	}
	putDesc(g.l.Desc, 0, desc{here, 1, 0, descWrite | descUsed}) // as in the second lap
	checkFault(t, g, RuleOutstanding, true, 0)
}

// TestPushTwice gives a chain back that is not out.
func TestPushTwice(t *testing.T) {
	g := newGuest(4, 0).start(t)
	g.raw(0, here, 1, descWrite, 0)
	g.offer(0)
	c := Chain{}
	g.mustPop(t, &c)
	g.ring.Push(c.Handle, 0)
	defer func() {
		if recover() == nil {
			t.Error("nothing said that the chain was pushed twice")
		}
	}()
	g.ring.Push(c.Handle, 0)
}
