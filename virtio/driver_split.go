package virtio

import (
	"encoding/binary"
	"sync/atomic"
)

// putDesc writes a split descriptor.
func putDesc(table []byte, i int, d desc) {
	b := table[i*descSize : i*descSize+descSize]
	binary.LittleEndian.PutUint64(b, d.addr)
	binary.LittleEndian.PutUint64(b[8:], uint64(d.len)|uint64(d.flags)<<32|uint64(d.next)<<48)
}

// putTable writes an indirect table, and answers with the descriptor that
// refers to it.
func (d *Driver) putTable(id uint16, out, in []Seg) desc {
	off := int(id) * d.tables.Len * descSize
	table := d.tables.Mem[off:]
	n := len(out) + len(in)
	for i := range n {
		e := segment(out, in, i)
		switch {
		case d.packed:
			e.flags, e.next = 0, e.flags // the fields are the other way around
		case i+1 < n:
			e.flags |= descNext
			e.next = uint16(i + 1)
		}
		putDesc(table, i, e)
	}
	return desc{addr: d.tables.Guest + uint64(off), len: uint32(n * descSize), flags: descIndirect}
}

// segment is the ith buffer of a chain as a descriptor.
func segment(out, in []Seg, i int) desc {
	if i < len(out) {
		return desc{addr: out[i].Addr, len: out[i].Len}
	}
	s := in[i-len(out)]
	return desc{addr: s.Addr, len: s.Len, flags: descWrite}
}

func (d *Driver) addSplit(out, in []Seg, indirect bool) uint16 {
	head := d.head
	if indirect {
		putDesc(d.areas.Desc, int(head), d.putTable(head, out, in))
		d.head = d.next[head]
	} else {
		n := len(out) + len(in)
		for i := range n {
			e := segment(out, in, i)
			at := d.head
			d.head = d.next[at]
			if i+1 < n {
				e.flags |= descNext
				e.next = d.head
			}
			putDesc(d.areas.Desc, int(at), e)
		}
	}
	slot := 4 + 2*int(d.avail&(d.size-1))
	binary.LittleEndian.PutUint16(d.areas.Driver[slot:], head)
	d.avail++
	return head
}

func (d *Driver) kickSplit() bool {
	old := d.offered
	d.availIdx.swap(d.avail)
	d.offered = d.avail
	if d.eventIdx {
		return d.avail-d.availEvent.load()-1 < d.avail-old
	}
	return uint16(atomic.LoadUint32(d.usedWord))&usedNoNotify == 0
}

func (d *Driver) nextSplit() (id uint16, written uint32, ok bool) {
	idx := uint16(atomic.LoadUint32(d.usedWord) >> 16)
	if idx == d.used {
		return 0, 0, false
	}
	if ahead := idx - d.used; ahead > d.out {
		return 0, 0, d.blame("says that it has used %d chains when it had %d", ahead, d.out)
	}
	e := binary.LittleEndian.Uint64(d.areas.Device[4+8*int(d.used&(d.size-1)):])
	head := uint32(e)
	if head >= uint32(d.size) || d.chains[head].count == 0 {
		return 0, 0, d.blame("gave back chain %d, which is not out", head)
	}
	if !d.inOrder {
		d.used++
	}
	return uint16(head), uint32(e >> 32), true
}

// releaseSplit puts a chain's descriptors before the free ones. In order they
// are used around the table (section 2.7.5), and are free in that order by
// themselves.
func (d *Driver) releaseSplit(head, n uint16) {
	if d.inOrder {
		return
	}
	last := head
	for range n - 1 {
		last = d.next[last]
	}
	d.next[last] = d.head
	d.head = head
}
