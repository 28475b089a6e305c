package virtio

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// modelArea is the memory for buffers that one chain of the model has.
const modelArea = 4096

// A model is what must be true of a ring that both sides keep to the rules on.
type model struct {
	*guest
	areas  []int              // offsets of free areas
	chains map[uint16]*mchain // out, by identity
	added  []*mchain          // in the order of Add, that Pop has to keep
	shown  int                // of added, those that Kick showed
	held   []*mchain          // popped
	pushed []*mchain          // pushed, not published
	order  []*mchain          // published, not taken back; in order of publication, with IN_ORDER of Add
	all    []*mchain          // every one out, in the order of Add
	sleeps bool               // the device was armed and found nothing
	waits  bool               // the driver was armed and found nothing
	seq    int
}

type mchain struct {
	seq     int
	id      uint16
	area    int
	out, in []Seg
	h       Handle
	written uint32
	vec     [][]byte
	pushed  bool
}

func (c *mchain) String() string { return fmt.Sprintf("chain %d (id %d)", c.seq, c.id) }

func newModel(t *rapid.T, features uint64) *model {
	size := uint16(1) << rapid.IntRange(0, 6).Draw(t, "size")
	if features&FeatureRingPacked != 0 {
		size = uint16(rapid.IntRange(1, 64).Draw(t, "size"))
	}
	m := &model{guest: newGuest(size, features), chains: map[uint16]*mchain{}}
	for i := range int(size) {
		m.areas = append(m.areas, guestData+i*modelArea)
	}
	var err error
	if m.driver, err = NewDriver(m.l, m.t); err != nil {
		t.Fatal(err)
	}
	m.restart(t, StartBase(features))
	return m
}

// restart goes on with another device.
func (m *model) restart(t *rapid.T, base uint32) {
	var err error
	if m.ring, err = NewRing(m.l, m.m, Options{Base: base}); err != nil {
		t.Fatal(err)
	}
	m.sleeps = false
}

// TestModel runs both sides of a ring against each other in random order, and
// compares what each finds with what the other did.
func TestModel(t *testing.T) {
	eachKind(t, func(t *testing.T, features uint64) {
		rapid.Check(t, func(t *rapid.T) {
			m := newModel(t, features)
			t.Repeat(map[string]func(*rapid.T){
				"add":     m.add,
				"kick":    m.kick,
				"pop":     m.pop,
				"push":    m.push,
				"publish": m.publish,
				"next":    m.next,
				"sleep":   m.sleep,
				"wait":    m.wait,
				"awake":   m.awake,
				"another": m.another,
				"":        m.invariants,
			})
			m.drain(t)
		})
	})
}

func (m *model) add(t *rapid.T) {
	if len(m.areas) == 0 {
		return
	}
	c := &mchain{seq: m.seq, area: m.areas[0]}
	gpa := uint64(guestBase + c.area)
	piece := func(label string, atMost int) (s []Seg) {
		for range rapid.IntRange(0, atMost).Draw(t, label) {
			n := uint32(rapid.IntRange(0, 200).Draw(t, "length"))
			s = append(s, Seg{gpa, n})
			gpa += uint64(n)
		}
		return s
	}
	c.out, c.in = piece("out", 4), piece("in", 4)
	indirect := rapid.Bool().Draw(t, "indirect")
	free, n := m.driver.Free(), len(c.out)+len(c.in)
	id, ok := m.driver.Add(c.out, c.in, indirect)
	fits := n > 0 && (n <= free || indirect && n <= m.t.Len && free > 0)
	if ok != fits {
		t.Fatalf("Add of %d buffers with %d of %d descriptors free, indirect %v: %v", n, free, m.l.Size, indirect, ok)
	}
	if !ok {
		return
	}
	if m.chains[id] != nil {
		t.Fatalf("Add gave %d, which is out", id)
	}
	c.id = id
	m.seq++
	m.areas = m.areas[1:]
	m.chains[id] = c
	for _, s := range c.out {
		fill(m.at(s.Addr)[:s.Len], byte(c.seq))
	}
	m.added, m.all = append(m.added, c), append(m.all, c)
}

func fill(b []byte, v byte) {
	for i := range b {
		b[i] = v
	}
}

func (m *model) kick(t *rapid.T) {
	news := len(m.added) - m.shown
	notify := m.driver.Kick()
	m.shown = len(m.added)
	if m.sleeps && news > 0 && !notify {
		t.Fatalf("%d chains were shown to a device that was armed, and no kick", news)
	}
	if notify {
		m.sleeps = false
	}
}

func (m *model) pop(t *rapid.T) {
	c := &Chain{}
	ok, err := m.ring.Pop(c)
	if err != nil {
		t.Fatal(err)
	}
	if ok != (m.shown > 0) {
		t.Fatalf("Pop: %v with %d chains on offer", ok, m.shown)
	}
	if !ok {
		return
	}
	want := m.added[0]
	m.added, m.shown = m.added[1:], m.shown-1
	if c.Head != want.id {
		t.Fatalf("Pop gave %d, not %v", c.Head, want)
	}
	if got, w := lens(c.Out), segLens(want.out); got != w {
		t.Fatalf("%v: out %v, not %v", want, got, w)
	}
	if got, w := lens(c.In), segLens(want.in); got != w {
		t.Fatalf("%v: in %v, not %v", want, got, w)
	}
	for _, b := range content(c.Out) {
		if b != byte(want.seq) {
			t.Fatalf("%v: %d read where %d was written", want, b, byte(want.seq))
		}
	}
	if uint64(len(content(c.Out))) != c.OutBytes || uint64(len(content(c.In))) != c.InBytes {
		t.Fatalf("%v: %d and %d bytes", want, c.OutBytes, c.InBytes)
	}
	want.h, want.vec = c.Handle, c.In
	m.held = append(m.held, want)
	m.sleeps = false
}

// segLens is lens of what the device makes of buffers: empty ones are dropped.
func segLens(s []Seg) string {
	var v [][]byte
	for _, s := range s {
		if s.Len > 0 {
			v = append(v, make([]byte, s.Len))
		}
	}
	return lens(v)
}

func (m *model) push(t *rapid.T) {
	if len(m.held) == 0 {
		return
	}
	i := rapid.IntRange(0, len(m.held)-1).Draw(t, "which")
	c := m.held[i]
	m.held = slices.Delete(m.held, i, i+1)
	room := len(content(c.vec))
	c.written = uint32(room)
	if rapid.Bool().Draw(t, "short") {
		c.written = uint32(rapid.IntRange(0, room).Draw(t, "written"))
	}
	for _, b := range c.vec {
		fill(b, ^byte(c.seq))
	}
	m.ring.Push(c.h, c.written)
	c.pushed = true
	m.pushed = append(m.pushed, c)
}

func (m *model) publish(t *rapid.T) {
	notify := m.ring.Publish()
	before := len(m.order)
	if m.l.Features&FeatureInOrder == 0 {
		m.order = append(m.order, m.pushed...)
		m.pushed = nil
	} else {
		for _, c := range m.all[before:] {
			if !c.pushed {
				break
			}
			m.order = append(m.order, c)
		}
		m.pushed = slices.DeleteFunc(m.pushed, func(c *mchain) bool { return slices.Contains(m.order, c) })
	}
	news := len(m.order) - before
	if notify && news == 0 {
		t.Fatal("called for nothing")
	}
	if m.waits && news > 0 && !notify {
		t.Fatalf("%d chains were published to a driver that was armed, and no call", news)
	}
	if notify {
		m.waits = false
	}
}

func (m *model) next(t *rapid.T) {
	id, written, ok, err := m.driver.Next()
	if err != nil {
		t.Fatal(err)
	}
	if ok != (len(m.order) > 0) {
		t.Fatalf("Next: %v with %d chains published", ok, len(m.order))
	}
	if !ok {
		return
	}
	c := m.order[0]
	m.order = m.order[1:]
	if id != c.id || written != c.written {
		t.Fatalf("Next gave %d, written %d: not %v, written %d", id, written, c, c.written)
	}
	for _, s := range c.in {
		if b := m.at(s.Addr)[:s.Len]; !bytes.Equal(b, bytes.Repeat([]byte{^byte(c.seq)}, len(b))) {
			t.Fatalf("%v: the data are not there", c)
		}
	}
	delete(m.chains, id)
	m.areas = append(m.areas, c.area)
	i := slices.Index(m.all, c)
	m.all = slices.Delete(m.all, i, i+1)
	m.waits = false
}

func (m *model) sleep(t *rapid.T) {
	more := m.ring.Arm()
	if more != (m.shown > 0) {
		t.Fatalf("Arm: %v with %d chains on offer", more, m.shown)
	}
	m.sleeps = !more
}

func (m *model) awake(*rapid.T) {
	m.ring.Disarm()
	m.driver.Disarm()
	m.sleeps, m.waits = false, false
}

func (m *model) wait(t *rapid.T) {
	more := m.driver.Arm()
	if more != (len(m.order) > 0) {
		t.Fatalf("the driver's Arm: %v with %d chains published", more, len(m.order))
	}
	m.waits = !more
}

// another goes on with a new device where the old one has stopped, once all is
// given back; otherwise with new mappings where nothing is out.
func (m *model) another(t *rapid.T) {
	if m.ring.Out() != 0 {
		if err := m.ring.Remap(m.m, m.l.Desc, m.l.Driver, m.l.Device); err == nil {
			t.Fatal("Remap with chains out")
		}
		return
	}
	base := m.ring.Base()
	if rapid.Bool().Draw(t, "remap") {
		if err := m.ring.Remap(m.m, m.l.Desc, m.l.Driver, m.l.Device); err != nil {
			t.Fatal(err)
		}
	} else {
		m.restart(t, base)
	}
	if got := m.ring.Base(); got != base {
		t.Fatalf("base %#x became %#x", base, got)
	}
}

func (m *model) invariants(t *rapid.T) {
	if got, want := m.ring.Out(), len(m.held)+len(m.pushed); got != want {
		t.Fatalf("the device has %d chains, not %d", got, want)
	}
	if got, want := m.driver.Out(), len(m.chains); got != want {
		t.Fatalf("the driver has %d chains out, not %d", got, want)
	}
}

// drain brings all home.
func (m *model) drain(t *rapid.T) {
	m.kick(t)
	for m.shown > 0 {
		m.pop(t)
	}
	for len(m.held) > 0 {
		m.push(t)
	}
	m.publish(t)
	for len(m.order) > 0 {
		m.next(t)
	}
	if m.driver.Free() != int(m.l.Size) || m.driver.Out() != 0 || m.ring.Out() != 0 {
		t.Fatalf("%d of %d descriptors are free, %d and %d chains out", m.driver.Free(), m.l.Size, m.driver.Out(), m.ring.Out())
	}
}

// TestIndexesWrap sends more requests through small rings than 16 bits count.
func TestIndexesWrap(t *testing.T) {
	eachKind(t, func(t *testing.T, features uint64) {
		for _, size := range []uint16{1, 2, 4, 64} {
			g := newGuest(size, features).start(t)
			c := Chain{}
			for n := range 70000 {
				out, in := segs(guestBase+guestData, 16), segs(guestBase+guestData+16, 1)
				id := g.mustAdd(t, out, in, true)
				if !g.driver.Kick() && n == 0 {
					t.Fatal("the first kick is wanted")
				}
				g.mustPop(t, &c)
				g.ring.Push(c.Handle, uint32(n))
				g.ring.Publish()
				got, written, ok, err := g.driver.Next()
				if !ok || err != nil || got != id || written != uint32(n) {
					t.Fatalf("request %d: %d %d %v %v", n, got, written, ok, err)
				}
				if n%3 == 0 && (g.ring.Arm() || g.driver.Arm()) {
					t.Fatalf("request %d: something is left", n)
				}
			}
		}
	})
}
