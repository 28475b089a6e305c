package virtio

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
)

// A guest is memory with a ring in it, and both sides of the ring.
type guest struct {
	mem    []byte
	m      *Map
	l      Layout
	t      Tables
	driver *Driver
	ring   *Ring
	tables int // descriptors of an indirect table
}

const (
	guestBase   = 0x10000 // guest address of a guest's memory
	guestUser   = 0x7f00_0000_0000
	guestTables = 1 << 16 // offset of the indirect tables
	guestData   = 1 << 19 // offset of memory for buffers
	guestSize   = 1 << 20
)

// newGuest makes the memory and a layout; areas begin at multiples of 4096, as
// those of real drivers do.
func newGuest(size uint16, features uint64) *guest {
	g := &guest{mem: make([]byte, guestSize), tables: 16}
	g.attach(size, features)
	return g
}

// attach finds everything in g.mem.
func (g *guest) attach(size uint16, features uint64) {
	m, err := NewMap([]Region{{Guest: guestBase, User: guestUser, Mem: g.mem}})
	if err != nil {
		panic(err)
	}
	g.m = m
	desc, driver, device := AreaSizes(size, features)
	at := func(off, n int) []byte { return g.m.User(guestUser+uint64(off), uint64(n)) }
	a := (desc + 4095) &^ 4095
	b := a + (driver+4095)&^4095
	if b+device > guestTables {
		panic("the ring does not fit")
	}
	g.l = Layout{Size: size, Features: features, Desc: at(0, desc), Driver: at(a, driver), Device: at(b, device)}
	n := min(int(size)*g.tables*descSize, guestData-guestTables)
	g.t = Tables{Guest: guestBase + guestTables, Mem: at(guestTables, n), Len: n / descSize / int(size)}
}

// start makes both sides.
func (g *guest) start(tb testing.TB) *guest {
	tb.Helper()
	var err error
	if g.driver, err = NewDriver(g.l, g.t); err != nil {
		tb.Fatal(err)
	}
	g.startDevice(tb, Options{Base: StartBase(g.l.Features)})
	return g
}

func (g *guest) startDevice(tb testing.TB, o Options) {
	tb.Helper()
	var err error
	if g.ring, err = NewRing(g.l, g.m, o); err != nil {
		tb.Fatal(err)
	}
}

// at is the memory at a guest address.
func (g *guest) at(gpa uint64) []byte { return g.mem[gpa-guestBase:] }

// kinds are the ways in which a ring can be used.
var kinds = []struct {
	name     string
	features uint64
}{
	{"split", 0},
	{"split,event", FeatureEventIdx},
	{"split,inorder", FeatureInOrder | FeatureEventIdx},
	{"packed", FeatureRingPacked},
	{"packed,event", FeatureRingPacked | FeatureEventIdx},
	{"packed,inorder", FeatureRingPacked | FeatureInOrder | FeatureEventIdx},
}

// eachKind runs a test for each way to use a ring.
func eachKind(t *testing.T, f func(t *testing.T, features uint64)) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) { f(t, k.features|FeatureVersion1|FeatureIndirectDesc) })
	}
}

// mustPop takes a chain that must be there and right.
func (g *guest) mustPop(tb testing.TB, c *Chain) {
	tb.Helper()
	ok, err := g.ring.Pop(c)
	if err != nil {
		tb.Fatal(err)
	}
	if !ok {
		tb.Fatal("no chain where one was added")
	}
}

// mustAdd adds a chain that must fit.
func (g *guest) mustAdd(tb testing.TB, out, in []Seg, indirect bool) uint16 {
	tb.Helper()
	id, ok := g.driver.Add(out, in, indirect)
	if !ok {
		tb.Fatalf("no room for %d buffers, %d descriptors are free", len(out)+len(in), g.driver.Free())
	}
	return id
}

// complete answers a request whose status goes to at.
func (rq *BlkRequest) complete(at []byte, status byte) (written uint32) {
	at[0] = status
	n := int64(0)
	if rq.Op == BlkIn || rq.Op == BlkGetID {
		n = rq.Len
	}
	return BlkWritten(status, n, rq.Room)
}

// fail answers a chain that Pop gave with an error.
func (g *guest) fail(c *Chain) {
	c.StatusByte()[0] = BlkIOErr
	g.ring.Push(c.Handle, 0)
}

// raw writes a descriptor of a split ring by hand.
func (g *guest) raw(i int, addr uint64, n uint32, flags, next uint16) {
	putDesc(g.l.Desc, i, desc{addr, n, flags, next})
}

// offer makes heads available by hand, in a split ring.
func (g *guest) offer(heads ...uint16) {
	idx := binary.LittleEndian.Uint16(g.l.Driver[2:])
	for _, h := range heads {
		binary.LittleEndian.PutUint16(g.l.Driver[4+2*(int(idx)%int(g.l.Size)):], h)
		idx++
	}
	binary.LittleEndian.PutUint16(g.l.Driver[2:], idx)
}

// rawPacked writes a descriptor of a packed ring by hand, available in the
// first lap.
func (g *guest) rawPacked(i int, addr uint64, n uint32, flags, id uint16) {
	putDesc(g.l.Desc, i, desc{addr, n, id, flags | descAvail})
}

// segs are buffers of these lengths, one after the other from a guest address.
func segs(gpa uint64, lens ...uint32) []Seg {
	var s []Seg
	for _, n := range lens {
		s = append(s, Seg{gpa, n})
		gpa += uint64(n)
	}
	return s
}

// content joins a vector.
func content(v [][]byte) []byte { return slices.Concat(v...) }

// lens are the lengths of a vector's pieces.
func lens(v [][]byte) string {
	n := []int{}
	for _, b := range v {
		n = append(n, len(b))
	}
	return fmt.Sprint(n)
}
