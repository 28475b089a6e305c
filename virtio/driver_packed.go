package virtio

import (
	"encoding/binary"
	"sync/atomic"
)

func (d *Driver) advance(pos uint16, wrap bool, n uint16) (uint16, bool) {
	if next := uint32(pos) + uint32(n); next < uint32(d.size) {
		return uint16(next), wrap
	}
	return pos + n - d.size, !wrap
}

func (d *Driver) addPacked(out, in []Seg, indirect bool) uint16 {
	d.head--
	id := d.next[d.head]
	if indirect {
		d.putPacked(d.putTable(id, out, in), id)
		return id
	}
	n := len(out) + len(in)
	for i := range n {
		e := segment(out, in, i)
		if i+1 < n {
			e.flags |= descNext
		}
		d.putPacked(e, id)
	}
	return id
}

// putPacked writes the next descriptor. The first since the last Kick is not
// made available before the next.
func (d *Driver) putPacked(e desc, id uint16) {
	b := d.areas.Desc[int(d.avail)*descSize:]
	last := uint32(id) | uint32(e.flags|marks(d.availWrap, false))<<16
	binary.LittleEndian.PutUint64(b, e.addr)
	if !d.holdsBack {
		d.holdsBack, d.heldAt, d.held = true, d.avail, last
		binary.LittleEndian.PutUint32(b[8:], e.len)
	} else {
		binary.LittleEndian.PutUint64(b[8:], uint64(e.len)|uint64(last)<<32)
	}
	d.avail, d.availWrap = d.advance(d.avail, d.availWrap, 1)
}

func (d *Driver) kickPacked() bool {
	old, oldWrap := d.offered, d.offerWrap
	atomic.StoreUint32(lastWord(d.areas.Desc, d.heldAt), d.held)
	d.holdsBack = false
	d.offered, d.offerWrap = d.avail, d.availWrap
	return wanted(atomic.LoadUint32(d.deviceWord), d.eventIdx, d.size, old, oldWrap, d.avail, d.availWrap)
}

func (d *Driver) morePacked() bool {
	flags := uint16(atomic.LoadUint32(lastWord(d.areas.Desc, d.used)) >> 16)
	return flags&(descAvail|descUsed) == marks(d.usedWrap, true)
}

func (d *Driver) nextPacked() (id uint16, written uint32, ok bool) {
	if d.out == 0 {
		return 0, 0, false
	}
	last := atomic.LoadUint32(lastWord(d.areas.Desc, d.used))
	flags := uint16(last >> 16)
	if flags&(descAvail|descUsed) != marks(d.usedWrap, true) {
		return 0, 0, false
	}
	id = uint16(last)
	if id >= d.size || d.chains[id].count == 0 {
		return 0, 0, d.blame("gave back buffer %d, which is not out", id)
	}
	if flags&descWrite != 0 {
		written = binary.LittleEndian.Uint32(d.areas.Desc[int(d.used)*descSize+8:])
	}
	if !d.inOrder {
		d.used, d.usedWrap = d.advance(d.used, d.usedWrap, d.chains[id].count)
	}
	return id, written, true
}
