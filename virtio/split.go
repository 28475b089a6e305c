package virtio

import (
	"encoding/binary"
	"sync/atomic"
)

// The device's side of a split ring (section 2.7).

func (r *Ring) moreSplit() bool { return r.avail != r.seen || r.availIdx.load() != r.avail }

func (r *Ring) popSplit(c *Chain) (bool, error) {
	if r.avail == r.seen {
		if r.seen = r.availIdx.load(); r.avail == r.seen {
			return false, nil
		}
	}
	if r.seen-r.avail > r.size {
		return r.fatal(RuleAvailIndex, r.seen)
	}
	head := binary.LittleEndian.Uint16(r.areas.Driver[4+2*int(r.avail&(r.size-1)):])
	switch {
	case head >= r.size:
		return r.fatal(RuleHead, head)
	case r.out >= r.size || r.inflight != nil && r.inflight.has(head):
		return r.fatal(RuleOutstanding, head)
	}
	err := r.readSplit(c, head)
	if r.fault.Fatal {
		return false, err
	}
	r.step(StepPopped)
	if r.inflight != nil {
		r.inflight.markSplit(head)
		r.step(StepMarked)
	}
	r.avail++
	r.enter(c)
	return true, err
}

// readSplit follows the chain that begins at head, which the table has.
func (r *Ring) readSplit(c *Chain, head uint16) error {
	r.begin(c)
	c.Head, c.Count = head, 1
	index := head
	for left := r.size; ; left-- {
		if left == 0 {
			_, err := r.fatal(RuleLoop, head)
			return err
		}
		d := splitDesc(r.areas.Desc, int(index))
		rule := RuleNone
		switch {
		case d.flags&descIndirect != 0:
			rule = r.addLast(c, d, index)
		case !r.add(c, d, index):
			rule = RuleLoop
		case d.flags&descNext != 0 && d.next >= r.size:
			rule = RuleNext
		}
		if rule != RuleNone {
			_, err := r.fatal(rule, index)
			return err
		}
		if d.flags&descNext == 0 {
			return r.finish(c)
		}
		index = d.next
	}
}

// addLast takes an indirect descriptor, which ends its chain (section
// 2.7.5.3.1) and may come after direct ones (2.7.5.3.2).
func (r *Ring) addLast(c *Chain, d desc, index uint16) Rule {
	if !r.indirect || d.flags&descNext != 0 {
		return RuleIndirect
	}
	return r.addTable(c, d, index)
}

func (r *Ring) publishSplit() bool {
	old := r.used
	mask := r.size - 1
	for i := 0; i < len(r.pending); {
		// In order, one entry may stand for several chains (section 2.7.9).
		n := r.group(i)
		p := &r.pending[i+n-1]
		slot := 4 + 8*int(r.used&mask)
		e := r.areas.Device[slot : slot+8]
		binary.LittleEndian.PutUint64(e, uint64(p.Head)|uint64(p.written)<<32)
		r.step(StepPushed)
		for range n {
			if r.inflight != nil {
				r.inflight.listSplit(r.pending[i].Head)
				r.step(StepListed)
			}
			i++
		}
		r.used += uint16(n)
		r.logUsed(slot, 8)
	}
	atomic.StoreUint32(r.usedWord, r.usedFlags|uint32(r.used)<<16)
	r.logUsed(0, 4)
	r.step(StepPublished)
	r.settleSplit()
	r.leave()
	if r.eventIdx {
		// The event is in (old, used]: section 2.7.7.2.
		return r.used-r.usedEvent.load()-1 < r.used-old
	}
	return r.availFlags.load()&availNoInterrupt == 0
}

func (r *Ring) settleSplit() {
	if r.inflight == nil {
		return
	}
	for i := range r.pending {
		r.inflight.clearSplit(r.pending[i].Head)
		r.step(StepCleared)
	}
	r.inflight.settleSplit(r.used)
	r.step(StepSettled)
}

// group is how many pending chains, from i, one used entry can tell of: all
// but the last of them must have been written to their end.
func (r *Ring) group(i int) int {
	n := 1
	for r.inOrder && i+n < len(r.pending) && r.pending[i+n-1].written >= r.pending[i+n-1].room {
		n++
	}
	return n
}

func (r *Ring) armSplit() {
	if r.eventIdx {
		r.availEvent.store(r.avail)
		r.logUsed(4+8*int(r.size), 2)
		return
	}
	r.flagSplit(0)
}

// disarmSplit has nothing to do with event indexes: one that is passed is
// silent for the next 65535 entries.
func (r *Ring) disarmSplit() {
	if r.eventIdx {
		return
	}
	r.flagSplit(usedNoNotify)
}

func (r *Ring) flagSplit(flags uint16) {
	r.usedFlags = uint32(flags)
	atomic.StoreUint32(r.usedWord, r.usedFlags|uint32(r.used)<<16)
	r.logUsed(0, 4)
}

// logUsed marks a part of the device area, behind having written it.
func (r *Ring) logUsed(off, n int) {
	if r.log != nil {
		r.log.Mark(r.logDevice+uint64(off), uint64(n))
	}
}
