package virtio

import (
	"errors"
	"fmt"
	"sync/atomic"
)

// A Seg is a buffer of the driver: guest physical address and length in bytes.
type Seg struct {
	Addr uint64
	Len  uint32
}

// Tables is guest memory in which a Driver builds indirect tables: one for each
// descriptor of its ring, of Len descriptors each.
type Tables struct {
	Guest uint64 // guest physical address of Mem
	Mem   []byte // Size of the ring * Len * 16 bytes
	Len   int    // descriptors of a table, at most MaxSegs
}

// A Driver is the driver's side of a virtqueue: of our own vhost-user front
// end, and of tests. It belongs to one goroutine.
//
// The device is not trusted either: a used entry for something that it does not
// have is an error.
type Driver struct {
	areas    Layout
	tables   Tables
	size     uint16
	packed   bool
	eventIdx bool
	inOrder  bool
	indirect bool
	broken   error

	avail     uint16 // next index to offer, free running; packed: next descriptor
	offered   uint16 // as the device knows it
	used      uint16 // next used entry to look at, free running; packed: next descriptor
	availWrap bool   // packed
	offerWrap bool   // packed: of offered
	usedWrap  bool   // packed
	free      uint16 // descriptors that are free
	out       uint16 // chains out

	chains []driverChain // by head if split, by buffer ID if packed
	next   []uint16      // split: links of the free list and of chains. packed: free IDs
	head   uint16        // split: first free descriptor. packed: how many IDs are free
	fifo   []uint16      // in order: heads or IDs, in the order in which they were added
	first  uint32
	last   uint32
	skip   uint16 // in order: chains that the last used entry has given back and Next has not

	skipTo  uint16 // the one that the used entry named
	skipLen uint32

	holdsBack bool   // packed: the first descriptor that Kick shows is not marked yet
	heldAt    uint16 // packed: which it is
	held      uint32 // packed: its last word

	availIdx   half    // split
	usedEvent  half    // split
	availEvent half    // split
	availFlags half    // split
	usedWord   *uint32 // split
	driverWord *uint32 // packed
	deviceWord *uint32 // packed
}

type driverChain struct {
	count uint16 // descriptors of the ring; 0 if it is not out
	room  uint32 // bytes that the device can write
}

// ErrDevice is in every error about what the device has put into the ring.
var ErrDevice = errors.New("virtqueue: the device")

// NewDriver begins to use a ring that is all zero. t may be zero if no chain is
// to be indirect.
func NewDriver(l Layout, t Tables) (*Driver, error) {
	if err := l.check(); err != nil {
		return nil, err
	}
	if t.Len < 0 || t.Len > MaxSegs || len(t.Mem) < int(l.Size)*t.Len*descSize || t.Guest+uint64(len(t.Mem)) < t.Guest {
		return nil, fmt.Errorf("virtqueue: %d bytes for %d indirect tables of %d", len(t.Mem), l.Size, t.Len)
	}
	d := &Driver{areas: l, tables: t, size: l.Size, free: l.Size, packed: l.packed()}
	d.eventIdx = l.Features&FeatureEventIdx != 0
	d.inOrder = l.Features&FeatureInOrder != 0
	d.indirect = l.Features&FeatureIndirectDesc != 0 && t.Len > 0
	d.chains = make([]driverChain, l.Size)
	d.next = make([]uint16, l.Size)
	if d.inOrder {
		d.fifo = make([]uint16, l.Size)
	}
	for i := range d.next {
		d.next[i] = uint16(i + 1)
	}
	if d.packed {
		for i := range d.next {
			d.next[i] = uint16(i)
		}
		d.head = l.Size
		d.availWrap, d.offerWrap, d.usedWrap = true, true, true
	} else {
		d.next[l.Size-1] = 0
	}
	d.attach()
	return d, nil
}

// attach finds the fields of the areas that both sides look at.
func (d *Driver) attach() {
	l := &d.areas
	if d.packed {
		d.driverWord, d.deviceWord = word(l.Driver), word(l.Device)
		return
	}
	n := int(d.size)
	d.availFlags, d.availIdx, d.usedEvent = halfAt(l.Driver, 0), halfAt(l.Driver, 2), halfAt(l.Driver, 4+2*n)
	d.usedWord, d.availEvent = word(l.Device), halfAt(l.Device, 4+8*n)
}

// Free is how many descriptors the ring has left.
func (d *Driver) Free() int { return int(d.free) }

// Out is how many chains the device has.
func (d *Driver) Out() int { return int(d.out) }

// Add puts a chain of buffers into the ring: out for the device to read, in for
// it to write. It answers with the chain's identity until Next gives it back, a
// number below the ring's size, or false if there is no room for it now. The
// device sees it after Kick.
//
// With indirect it takes one descriptor of the ring, if the feature was
// negotiated and a table has room for it; otherwise it is direct.
func (d *Driver) Add(out, in []Seg, indirect bool) (id uint16, ok bool) {
	n := len(out) + len(in)
	if n == 0 || n > MaxSegs || n > int(d.size) && !(indirect && d.indirect && n <= d.tables.Len) {
		return 0, false
	}
	indirect = indirect && d.indirect && n <= d.tables.Len
	count := n
	if indirect {
		count = 1
	}
	if count > int(d.free) {
		return 0, false
	}
	room := uint64(0)
	for _, s := range in {
		room += uint64(s.Len)
	}
	if d.packed {
		id = d.addPacked(out, in, indirect)
	} else {
		id = d.addSplit(out, in, indirect)
	}
	d.chains[id] = driverChain{uint16(count), uint32(min(room, 1<<32-1))}
	d.free -= uint16(count)
	d.out++
	if d.inOrder {
		d.fifo[d.last%uint32(d.size)] = id
		d.last++
	}
	return id, true
}

// Kick shows the device what was added, and answers whether it wants to be
// told.
func (d *Driver) Kick() (notify bool) {
	switch {
	case d.avail == d.offered && d.availWrap == d.offerWrap:
		return false
	case d.packed:
		return d.kickPacked()
	}
	return d.kickSplit()
}

// Next takes a chain back that the device is done with; written is how many
// bytes of it the device says it wrote. After an error it answers the same one
// again.
func (d *Driver) Next() (id uint16, written uint32, ok bool, err error) {
	if d.broken != nil {
		return 0, 0, false, d.broken
	}
	if d.skip == 0 {
		if d.packed {
			id, written, ok = d.nextPacked()
		} else {
			id, written, ok = d.nextSplit()
		}
		if !ok || d.broken != nil {
			return 0, 0, false, d.broken
		}
		if !d.inOrder {
			d.release(id)
			return id, written, true, nil
		}
		if !d.batch(id, written) {
			return 0, 0, false, d.broken
		}
	}
	return d.nextInOrder()
}

// batch finds how many chains a used entry stands for (sections 2.7.9 and
// 2.8.8): all up to the one that it names.
func (d *Driver) batch(id uint16, written uint32) bool {
	for n := uint32(0); n < d.last-d.first; n++ {
		if d.fifo[(d.first+n)%uint32(d.size)] == id {
			d.skip, d.skipTo, d.skipLen = uint16(n+1), id, written
			return true
		}
	}
	return d.blame("gave back chain %d, which is not out", id)
}

func (d *Driver) nextInOrder() (uint16, uint32, bool, error) {
	id := d.fifo[d.first%uint32(d.size)]
	d.first++
	d.skip--
	written := d.chains[id].room
	if d.skip == 0 {
		written = d.skipLen
	}
	if d.packed {
		d.used, d.usedWrap = d.advance(d.used, d.usedWrap, d.chains[id].count)
	} else {
		d.used++
	}
	d.release(id)
	return id, written, true, nil
}

// release makes the descriptors of a chain free.
func (d *Driver) release(id uint16) {
	n := d.chains[id].count
	d.chains[id] = driverChain{}
	d.free += n
	d.out--
	if d.packed {
		d.next[d.head] = id
		d.head++
		return
	}
	d.releaseSplit(id, n)
}

// blame keeps what the device did wrong. It answers false.
func (d *Driver) blame(format string, args ...any) bool {
	d.broken = fmt.Errorf("%w "+format, append([]any{ErrDevice}, args...)...)
	return false
}

// Arm asks the device to call when it has used the next chain. It answers true
// if there is one already: take it with Next.
func (d *Driver) Arm() (more bool) {
	switch {
	case d.packed && d.eventIdx:
		atomic.StoreUint32(d.driverWord, uint32(d.used)|bit(d.usedWrap)<<15|uint32(eventDesc)<<16)
	case d.packed:
		atomic.StoreUint32(d.driverWord, uint32(eventEnable)<<16)
	case d.eventIdx:
		d.usedEvent.store(d.used)
	default:
		d.availFlags.swap(0)
	}
	return d.More()
}

// Disarm tells the device that calls are not needed. Some may come all the
// same.
func (d *Driver) Disarm() {
	switch {
	case d.packed:
		atomic.StoreUint32(d.driverWord, uint32(eventDisable)<<16)
	case !d.eventIdx:
		d.availFlags.swap(availNoInterrupt)
	}
}

// More tells whether Next would find something.
func (d *Driver) More() bool {
	switch {
	case d.skip > 0 || d.broken != nil:
		return true
	case d.packed:
		return d.morePacked()
	}
	return uint16(atomic.LoadUint32(d.usedWord)>>16) != d.used
}
