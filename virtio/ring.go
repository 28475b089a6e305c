package virtio

import (
	"fmt"
	"sync/atomic"
)

// A Layout is the memory of a ring and the features that say how it is used.
//
//	         split                 packed
//	Desc     descriptor table      descriptor ring
//	Driver   available ring        driver event suppression
//	Device   used ring             device event suppression
//
// AreaSizes tells how long they are. Longer slices are fine.
type Layout struct {
	Size     uint16 // descriptors: a power of two if split, at most MaxQueueSize
	Features uint64 // as negotiated; bits that are not in RingFeatures mean nothing here
	Desc     []byte
	Driver   []byte
	Device   []byte
}

// AreaSizes is how many bytes the three areas of a ring have (sections 2.7 and
// 2.8.10.1), with the event indexes whether or not they are used.
func AreaSizes(size uint16, features uint64) (desc, driver, device int) {
	n := int(size)
	if features&FeatureRingPacked != 0 {
		return descSize * n, 4, 4
	}
	return descSize * n, 6 + 2*n, 6 + 8*n
}

func (l *Layout) packed() bool { return l.Features&FeatureRingPacked != 0 }

// check finds what is wrong with a layout. The alignments are those of sections
// 2.7 and 2.8.10.1.
func (l *Layout) check() error {
	size := int(l.Size)
	if size == 0 || size > MaxQueueSize || !l.packed() && size&(size-1) != 0 {
		return fmt.Errorf("virtqueue: a size of %d: it must be from 1 to %d, and a power of two if the ring is split", size, MaxQueueSize)
	}
	desc, driver, device := AreaSizes(l.Size, l.Features)
	driverAlign := uintptr(2)
	if l.packed() {
		driverAlign = 4
	}
	for _, a := range []struct {
		name  string
		mem   []byte
		size  int
		align uintptr
	}{
		{"descriptor", l.Desc, desc, 16},
		{"driver", l.Driver, driver, driverAlign},
		{"device", l.Device, device, 4},
	} {
		if len(a.mem) < a.size || !aligned(a.mem, a.align) {
			return fmt.Errorf("virtqueue: the %s area has %d bytes: a ring of %d needs %d, aligned to %d", a.name, len(a.mem), size, a.size, a.align)
		}
	}
	return nil
}

// A Handle names a chain that was popped and not yet pushed. It is plain data,
// to be kept with the request.
type Handle struct {
	Head   uint16 // index of the head descriptor if split, buffer ID if packed
	Count  uint16 // descriptors of the ring that it takes; an indirect table counts as one
	order  uint16 // place among the chains out, if they come back in order
	record uint16 // head of its in-flight record, if packed
}

// A Chain is what Pop found: the memory of one request. The vectors are the
// caller's, who makes them once, with room for what a request usually has, and
// gives them in again and again. They point at guest memory until they are
// appended to anew.
type Chain struct {
	Handle
	Out      [][]byte // what the device may read
	In       [][]byte // what the device may write
	OutBytes uint64   // sum of Out
	InBytes  uint64   // sum of In
	Resubmit bool     // was popped before a crash: see Inflight
}

// Options are the parts of a Ring that not every one has.
type Options struct {
	// Base is where to begin, as the vhost-user messages SET_VRING_BASE and
	// GET_VRING_BASE encode it; StartBase for a fresh ring. What an Inflight
	// with records says goes before it.
	Base uint32

	// Inflight keeps what is out where a successor finds it after a crash.
	Inflight *Inflight

	// Crash is called between the steps that a crash may come between. For
	// tests, which copy all memory and go on from the copy.
	Crash func(Step)
}

// A Step is one that a Ring with an Inflight has just done.
type Step uint8

// The steps, in the order in which a request goes through them.
const (
	StepPopped     Step = iota // a chain was read from the ring
	StepMarked                 // and is on record as in flight
	StepPushed                 // a chain's entry is written where the driver does not look yet
	StepListed                 // and is on record as one of the batch
	StepPublished              // the driver sees the batch
	StepCleared                // one of the batch is not on record as in flight any more
	StepSettled                // the record is that of a ring at rest
	StepRecovering             // a successor has put one thing right

	numSteps
)

// PackedBase is the Base of a packed ring that was never used: both wrap
// counters are 1 (section 2.8.1).
const PackedBase uint32 = 0x8000_8000

// StartBase is the Base of a ring that was never used.
func StartBase(features uint64) uint32 {
	if features&FeatureRingPacked != 0 {
		return PackedBase
	}
	return 0
}

// A Ring is the device's side of a virtqueue. It belongs to one goroutine.
//
// The driver is not trusted. Whatever it has in memory, and however that
// changes in between, a Ring neither panics nor loops, gives out no byte that
// is not in the Map, and never has more than Layout.Size chains out.
type Ring struct {
	areas     Layout
	mem       *Map
	cache     Cache
	inflight  *Inflight
	crash     func(Step)
	log       *Log
	logDesc   uint64
	logDevice uint64

	size     uint16
	packed   bool
	eventIdx bool
	indirect bool
	inOrder  bool

	avail     uint16 // next entry of the available ring, free running; packed: next descriptor
	seen      uint16 // split: available index as last loaded
	used      uint16 // next entry of the used ring as published, free running; packed: next descriptor
	availWrap bool   // packed
	usedWrap  bool   // packed
	armed     bool   // kicks are asked for
	usedFlags uint32 // split: flags of the used ring

	out     uint16 // chains popped and not published, recovered ones included
	outDesc uint32 // descriptors of the ring that they take
	pushed  uint16 // of out, those that were pushed
	pending []pending
	fifo    []pending // chains out, in the order in which they were popped; with IN_ORDER only
	first   uint32    // of fifo, free running
	next    uint32
	again   []uint16 // heads that Pop gives out first, from the end on: the one offered first is last

	availIdx   half    // split
	availFlags half    // split
	usedEvent  half    // split: the driver's, where it wants to be called
	availEvent half    // split: ours, where we want to be kicked
	usedWord   *uint32 // split: flags and index of the used ring
	driverWord *uint32 // packed: the driver's event suppression
	deviceWord *uint32 // packed: ours

	walk  walk
	fault Error
}

// pending is a chain that the caller has pushed, or may push out of order.
type pending struct {
	Handle
	written uint32
	room    uint32 // bytes it could have written, as far as 32 bits go
	done    bool
}

// NewRing begins to work on a ring at o.Base. It reads the used index of a
// split ring from memory, and recovers what o.Inflight has on record: Pop gives
// those chains first, in the order in which they were offered.
//
// Whoever takes a ring over, after a crash above all, pops without waiting for a
// kick and calls the driver once without being asked to: notifications may have
// been lost between the two of them.
func NewRing(l Layout, m *Map, o Options) (*Ring, error) {
	r := &Ring{armed: true, inflight: o.Inflight, crash: o.Crash}
	r.size = l.Size
	r.packed = l.packed()
	r.eventIdx = l.Features&FeatureEventIdx != 0
	r.indirect = l.Features&FeatureIndirectDesc != 0
	r.inOrder = l.Features&FeatureInOrder != 0
	if err := r.Remap(m, l.Desc, l.Driver, l.Device); err != nil {
		return nil, err
	}
	r.areas.Features = l.Features
	r.pending = make([]pending, 0, l.Size)
	if r.inOrder {
		r.fifo = make([]pending, l.Size)
	}
	if err := r.start(o.Base); err != nil {
		return nil, err
	}
	if r.inflight != nil {
		if err := r.recover(); err != nil {
			return nil, err
		}
	}
	r.seen = r.avail
	return r, nil
}

// start takes up the positions that base has.
func (r *Ring) start(base uint32) error {
	if !r.packed {
		r.avail = uint16(base)
		r.used = uint16(atomic.LoadUint32(r.usedWord) >> 16)
		return nil
	}
	r.avail, r.availWrap = uint16(base)&0x7fff, base&(1<<15) != 0
	r.used, r.usedWrap = uint16(base>>16)&0x7fff, base&(1<<31) != 0
	if r.avail >= r.size || r.used >= r.size {
		return fmt.Errorf("virtqueue: a base of %#x: the ring has %d descriptors only", base, r.size)
	}
	return nil
}

// Remap goes on with other mappings of the same memory: after the front end has
// sent a new memory table. No chain may be out, for its vectors would point
// into the old ones.
func (r *Ring) Remap(m *Map, desc, driver, device []byte) error {
	l := Layout{Size: r.size, Desc: desc, Driver: driver, Device: device}
	if r.packed {
		l.Features = FeatureRingPacked
	}
	if err := l.check(); err != nil {
		return err
	}
	if r.out > uint16(len(r.again)) {
		return fmt.Errorf("virtqueue: new memory while %d requests are in flight", r.out)
	}
	l.Features = r.areas.Features
	r.areas, r.mem, r.cache = l, m, Cache{}
	if r.packed {
		r.driverWord, r.deviceWord = word(driver), word(device)
		return nil
	}
	n := int(r.size)
	r.availFlags, r.availIdx, r.usedEvent = halfAt(driver, 0), halfAt(driver, 2), halfAt(driver, 4+2*n)
	r.usedWord, r.availEvent = word(device), halfAt(device, 4+8*n)
	return nil
}

// Extend goes on with a Map that has all that the one there is has, in the same
// memory, and the ring's areas where they are: chains may be out. False: it has
// not, or they are elsewhere, and then nothing changes.
func (r *Ring) Extend(m *Map, desc, driver, device []byte) bool {
	a := &r.areas
	if !sameMemory(desc, a.Desc) || !sameMemory(driver, a.Driver) || !sameMemory(device, a.Device) || !m.includes(r.mem) {
		return false
	}
	r.mem, r.cache = m, Cache{}
	return true
}

// SetLog makes l the log that gets the pages which the ring itself writes to; nil
// ends that. desc and device are the guest addresses of the first byte of
// Layout.Desc, which only a packed ring is written to in, and of Layout.Device.
// All of both is marked at once, for what was written before.
func (r *Ring) SetLog(l *Log, desc, device uint64) {
	r.log, r.logDesc, r.logDevice = l, desc, device
	if l == nil {
		return
	}
	d, _, u := AreaSizes(r.size, r.areas.Features)
	if r.packed {
		l.Mark(desc, uint64(d))
	}
	l.Mark(device, uint64(u))
}

// Base is the position as GET_VRING_BASE encodes it: bits 0 to 15 the index of
// the next available entry, bits 0 to 14 and 15 being descriptor and wrap
// counter if the ring is packed, when bits 16 to 30 and 31 are the same of the
// next used descriptor. It is meant for a ring with no chain out.
func (r *Ring) Base() uint32 {
	if !r.packed {
		return uint32(r.avail)
	}
	return uint32(r.avail) | bit(r.availWrap)<<15 | uint32(r.used)<<16 | bit(r.usedWrap)<<31
}

func bit(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// Size is the number of descriptors, and the most chains that can be out.
func (r *Ring) Size() int { return int(r.size) }

// Out is how many chains the device has: popped and not pushed, or pushed and
// not published; recovered ones that Pop has still to give count too.
func (r *Ring) Out() int { return int(r.out) }

// Pop takes the next chain. It answers false if there is none, and then the
// Chain is not touched. An error is always an *Error, which is valid until the
// next Pop: see there whether the ring goes on.
func (r *Ring) Pop(c *Chain) (bool, error) {
	switch {
	case r.fault.Fatal:
		return false, &r.fault
	case len(r.again) > 0:
		return r.popAgain(c)
	case r.packed:
		return r.popPacked(c)
	}
	return r.popSplit(c)
}

// Push gives a chain back: the first written bytes of its In were written, and
// perhaps more. The driver does not see it before Publish. Each chain is to be
// pushed once; in any order, also if the driver gets them in order.
func (r *Ring) Push(h Handle, written uint32) {
	if r.pushed == r.out {
		panic("virtio: Push of a chain that is not out")
	}
	r.pushed++
	if r.inOrder {
		r.pushOrdered(h, written)
		return
	}
	r.pending = append(r.pending, pending{Handle: h, written: written})
}

// pushOrdered keeps a chain back until all before it were pushed.
func (r *Ring) pushOrdered(h Handle, written uint32) {
	n := uint32(len(r.fifo))
	p := &r.fifo[h.order]
	p.written, p.done = written, true
	for r.first != r.next {
		p := &r.fifo[r.first%n]
		if !p.done {
			return
		}
		p.done = false
		r.pending = append(r.pending, *p)
		r.first++
	}
}

// leave notes that the pending chains are with the driver again.
func (r *Ring) leave() {
	for i := range r.pending {
		r.outDesc -= uint32(r.pending[i].Count)
	}
	n := uint16(len(r.pending))
	r.out, r.pushed = r.out-n, r.pushed-n
	r.pending = r.pending[:0]
}

// enter notes that a chain is out.
func (r *Ring) enter(c *Chain) {
	r.out++
	r.outDesc += uint32(c.Count)
	if !r.inOrder {
		return
	}
	c.order = uint16(r.next % uint32(len(r.fifo)))
	r.fifo[c.order] = pending{Handle: c.Handle, room: uint32(min(c.InBytes, 1<<32-1))}
	r.next++
}

// Publish shows the driver all that was pushed, and answers whether it wants to
// be called.
func (r *Ring) Publish() (notify bool) {
	switch {
	case len(r.pending) == 0:
		return false
	case r.packed:
		return r.publishPacked()
	}
	return r.publishSplit()
}

// Arm asks the driver to kick when it offers the next chain. It answers true if
// there is one already, for which no kick needs to come: pop on.
func (r *Ring) Arm() (more bool) {
	r.armed = true
	if r.packed {
		r.armPacked()
	} else {
		r.armSplit()
	}
	return r.More()
}

// Disarm tells the driver that kicks are not needed. Some may come all the
// same.
func (r *Ring) Disarm() {
	if !r.armed {
		return
	}
	r.armed = false
	if r.packed {
		r.disarmPacked()
	} else {
		r.disarmSplit()
	}
}

// More tells whether Pop would find something, be it an error.
func (r *Ring) More() bool {
	switch {
	case r.fault.Fatal || len(r.again) > 0:
		return true
	case r.packed:
		return r.morePacked()
	}
	return r.moreSplit()
}

func (r *Ring) step(s Step) {
	if r.crash != nil {
		r.crash(s)
	}
}

// fatal stops the ring.
func (r *Ring) fatal(rule Rule, index uint16) (bool, error) {
	r.fault = Error{Rule: rule, Fatal: true, Index: index}
	return false, &r.fault
}
