package virtio

import (
	"encoding/binary"
	"sync/atomic"
)

// The device's side of a packed ring (section 2.8).

// lastWord is the ID and the flags of descriptor i, in one word: what makes it
// available or used.
func lastWord(ring []byte, i uint16) *uint32 { return word(ring[int(i)*descSize+12:]) }

// marks is what the flags of a descriptor that is available, or used, have in
// the bits for that, when the ring's wrap counter is wrap (section 2.8.1).
func marks(wrap, used bool) uint16 {
	switch {
	case wrap && used:
		return descAvail | descUsed
	case wrap:
		return descAvail
	case used:
		return 0
	}
	return descUsed
}

func (r *Ring) morePacked() bool {
	flags := uint16(atomic.LoadUint32(lastWord(r.areas.Desc, r.avail)) >> 16)
	return flags&(descAvail|descUsed) == marks(r.availWrap, false)
}

// advance moves a position in the ring n descriptors on.
func (r *Ring) advance(pos uint16, wrap bool, n uint16) (uint16, bool) {
	if next := uint32(pos) + uint32(n); next < uint32(r.size) {
		return uint16(next), wrap
	}
	return pos + n - r.size, !wrap
}

func (r *Ring) popPacked(c *Chain) (bool, error) {
	last := atomic.LoadUint32(lastWord(r.areas.Desc, r.avail))
	if uint16(last>>16)&(descAvail|descUsed) != marks(r.availWrap, false) {
		return false, nil
	}
	if r.outDesc >= uint32(r.size) {
		return r.fatal(RuleOutstanding, r.avail)
	}
	err := r.readPacked(c, last)
	if r.fault.Fatal {
		return false, err
	}
	r.step(StepPopped)
	if r.inflight != nil {
		c.record = r.inflight.markPacked()
		r.step(StepMarked)
	}
	r.avail, r.availWrap = r.advance(r.avail, r.availWrap, c.Count)
	r.enter(c)
	return true, err
}

// readPacked follows the chain at r.avail, whose first descriptor has last as
// its last word. The buffer ID is in the last descriptor (section 2.8.6).
func (r *Ring) readPacked(c *Chain, last uint32) error {
	r.begin(c)
	if r.inflight != nil {
		r.inflight.kept = r.inflight.kept[:0]
	}
	free := uint16(uint32(r.size) - r.outDesc)
	pos := r.avail
	for n := uint16(1); ; n++ {
		b := r.areas.Desc[int(pos)*descSize:]
		d := desc{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint32(b[8:]), uint16(last >> 16), uint16(last)}
		rule := r.addPacked(c, d, pos, n)
		if rule == RuleNone && d.flags&descNext != 0 && n == free {
			rule = RuleOutstanding
		}
		if rule != RuleNone {
			_, err := r.fatal(rule, pos)
			return err
		}
		if d.flags&descNext == 0 {
			c.Head, c.Count = d.next, n
			return r.finish(c)
		}
		pos, _ = r.advance(pos, false, 1)
		last = binary.LittleEndian.Uint32(r.areas.Desc[int(pos)*descSize+12:])
	}
}

// addPacked takes the nth descriptor of a chain. One that is indirect is a
// chain by itself (section 2.8.19).
func (r *Ring) addPacked(c *Chain, d desc, index, n uint16) Rule {
	if r.inflight != nil {
		r.inflight.keepPacked(d)
	}
	switch {
	case d.flags&descIndirect == 0:
		if !r.add(c, d, index) {
			return RuleLoop
		}
		return RuleNone
	case !r.indirect || n > 1 || d.flags&descNext != 0:
		return RuleIndirect
	}
	return r.addTable(c, d, index)
}

func (r *Ring) publishPacked() bool {
	old, oldWrap := r.used, r.usedWrap
	if r.inflight != nil {
		r.listPacked()
	}
	// The flags of the first descriptor are written last: the driver looks at no
	// other before that one is used.
	var first *uint32
	var firstLast uint32
	for i := 0; i < len(r.pending); {
		n := r.group(i)
		p := &r.pending[i+n-1]
		flags := marks(r.usedWrap, true)
		if p.written > 0 {
			flags |= descWrite
		}
		slot := int(r.used) * descSize
		last := uint32(p.Head) | uint32(flags)<<16
		if first == nil {
			first, firstLast = lastWord(r.areas.Desc, r.used), last
			binary.LittleEndian.PutUint32(r.areas.Desc[slot+8:], p.written)
		} else {
			binary.LittleEndian.PutUint64(r.areas.Desc[slot+8:], uint64(p.written)|uint64(last)<<32)
		}
		r.step(StepPushed)
		r.logSlot(r.used)
		for range n {
			r.used, r.usedWrap = r.advance(r.used, r.usedWrap, r.pending[i].Count)
			i++
		}
	}
	atomic.StoreUint32(first, firstLast)
	r.logSlot(old)
	r.step(StepPublished)
	r.settlePacked()
	r.leave()
	return r.calledPacked(old, oldWrap)
}

// logSlot marks a descriptor of the ring, behind having written it.
func (r *Ring) logSlot(i uint16) {
	if r.log != nil {
		r.log.Mark(r.logDesc+uint64(i)*descSize, descSize)
	}
}

// listPacked records what the batch will be.
func (r *Ring) listPacked() {
	used, wrap := r.used, r.usedWrap
	for i := range r.pending {
		r.inflight.listPacked(r.pending[i].record)
		used, wrap = r.advance(used, wrap, r.pending[i].Count)
		r.step(StepListed)
	}
	r.inflight.movePacked(used, wrap)
	r.step(StepListed)
}

func (r *Ring) settlePacked() {
	if r.inflight == nil {
		return
	}
	for i := range r.pending {
		r.inflight.clearPacked(r.pending[i].record)
		r.step(StepCleared)
	}
	r.inflight.settlePacked()
	r.step(StepSettled)
}

// calledPacked tells whether the driver wants to hear of the descriptors from
// old to r.used (section 2.8.10). What makes no sense counts as a yes.
func (r *Ring) calledPacked(old uint16, oldWrap bool) bool {
	event := atomic.LoadUint32(r.driverWord)
	return wanted(event, r.eventIdx, r.size, old, oldWrap, r.used, r.usedWrap)
}

// wanted tells whether an event suppression structure asks to be told of the
// descriptors from old up to now.
func wanted(event uint32, eventIdx bool, size uint16, old uint16, oldWrap bool, now uint16, nowWrap bool) bool {
	switch flags := uint16(event>>16) & 3; {
	case flags == eventDisable:
		return false
	case flags != eventDesc || !eventIdx:
		return true
	}
	off, wrap := uint16(event)&0x7fff, event&(1<<15) != 0
	if off >= size {
		return true
	}
	from := lap(old, oldWrap, size)
	return distance(from, lap(off, wrap, size), size) < distance(from, lap(now, nowWrap, size), size)
}

// lap is a position in two laps of the ring, of which the first is the one
// whose wrap counter is 1.
func lap(pos uint16, wrap bool, size uint16) uint32 {
	if wrap {
		return uint32(pos)
	}
	return uint32(pos) + uint32(size)
}

// distance is how far b is ahead of a, in two laps.
func distance(a, b uint32, size uint16) uint32 {
	if b >= a {
		return b - a
	}
	return b + 2*uint32(size) - a
}

func (r *Ring) armPacked() {
	event := uint32(eventEnable) << 16
	if r.eventIdx {
		event = uint32(r.avail) | bit(r.availWrap)<<15 | uint32(eventDesc)<<16
	}
	atomic.StoreUint32(r.deviceWord, event)
	r.logUsed(0, 4)
}

func (r *Ring) disarmPacked() {
	atomic.StoreUint32(r.deviceWord, uint32(eventDisable)<<16)
	r.logUsed(0, 4)
}
