package virtio

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// An Inflight is the record of the chains that a Ring has out, in memory that
// outlives the process: the buffer of the vhost-user messages GET_INFLIGHT_FD
// and SET_INFLIGHT_FD, the part of one queue ("Inflight I/O tracking" in the
// vhost-user specification, whose names the fields have).
//
// A Ring made with one that has records gives those chains out again, each
// once, in the order in which they were offered. A request may so be executed
// twice, but is answered once.
//
// The memory is shared with the front end, who may change it at any time or cut
// its file short. What NewRing reads is checked: contradictions are errors. A
// Ring that runs reads little of it, and nothing that it would trust: whether a
// head is in flight already, the list of the last batch, and the chains that it
// gives out again, which are checked like the driver's.
type Inflight struct {
	mem     []byte
	packed  bool
	size    uint16 // desc_num
	counter uint64 // of the next chain

	// Packed only: what the memory has, in memory of our own.
	next  []uint16 // the free list, and the order within chains
	lasts []uint16 // last entry of a chain, by its head
	nums  []uint16 // entries of a chain, by its head
	free  uint16   // head of the free list
	kept  []uint16 // entries of the chain that is being read
}

// ErrInflight is in every error about in-flight records.
var ErrInflight = errors.New("in-flight records")

// InflightAlign is the multiple of bytes that each queue's part of the buffer
// begins at.
const InflightAlign = 64

const inflightVersion = 1

// Offsets in the header of a queue's part, and sizes of header and entries.
const (
	ifVersion = 8
	ifDescNum = 10

	ifSplitLastBatch = 12
	ifSplitUsed      = 14
	ifSplitHeader    = 16
	ifSplitEntry     = 16
	ifSplitNext      = 6 // in an entry, of which byte 0 is inflight
	ifCounter        = 8 // in an entry of either kind

	ifPackedFree    = 12
	ifPackedOldFree = 14
	ifPackedUsed    = 16 // and, after it, the old one
	ifPackedWrap    = 20 // and, after it, the old one
	ifPackedHeader  = 32
	ifPackedEntry   = 32
	ifPackedNext    = 2
	ifPackedLast    = 4
	ifPackedNum     = 6
	ifPackedID      = 16
	ifPackedFlags   = 18
	ifPackedLen     = 20
	ifPackedAddr    = 24
)

// InflightSize is how many bytes the part of one queue has, if the buffer is
// for queues of size descriptors.
func InflightSize(size uint16, packed bool) int {
	n := ifSplitHeader + ifSplitEntry*int(size)
	if packed {
		n = ifPackedHeader + ifPackedEntry*int(size)
	}
	return (n + InflightAlign - 1) &^ (InflightAlign - 1)
}

// NewInflight takes up the records in mem, one queue's part of the buffer. size
// is the queue size of the buffer, which may be more than that of the ring.
// Memory that is all zero is a record of nothing. Another version, or another
// size within, is an error.
func NewInflight(mem []byte, size uint16, packed bool) (*Inflight, error) {
	if size == 0 || size > MaxQueueSize || len(mem) < InflightSize(size, packed) || !aligned(mem, 8) {
		return nil, fmt.Errorf("%w: %d bytes for a queue of %d: want %d, aligned to 8", ErrInflight, len(mem), size, InflightSize(size, packed))
	}
	f := &Inflight{mem: mem, packed: packed, size: size}
	version, n := f.u16(ifVersion), f.u16(ifDescNum)
	switch {
	case version > inflightVersion:
		return nil, fmt.Errorf("%w: version %d; only %d is known", ErrInflight, version, inflightVersion)
	case version == inflightVersion && n != size:
		return nil, fmt.Errorf("%w: they are for a queue of %d, this one has %d", ErrInflight, n, size)
	}
	if packed {
		f.next, f.lasts, f.nums = make([]uint16, size), make([]uint16, size), make([]uint16, size)
		f.kept = make([]uint16, 0, size)
	}
	return f, nil
}

func (f *Inflight) u16(off int) uint16       { return binary.LittleEndian.Uint16(f.mem[off:]) }
func (f *Inflight) put16(off int, v uint16)  { binary.LittleEndian.PutUint16(f.mem[off:], v) }
func (f *Inflight) u64(off int) uint64       { return binary.LittleEndian.Uint64(f.mem[off:]) }
func (f *Inflight) put64(off int, v uint64)  { binary.LittleEndian.PutUint64(f.mem[off:], v) }
func splitEntry(head uint16) int             { return ifSplitHeader + ifSplitEntry*int(head) }
func packedEntry(i uint16) int               { return ifPackedHeader + ifPackedEntry*int(i) }
func (f *Inflight) fresh() bool              { return f.u16(ifVersion) == 0 }
func (f *Inflight) has(head uint16) bool     { return head < f.size && f.mem[splitEntry(head)] != 0 }
func (f *Inflight) clearSplit(head uint16)   { f.mem[splitEntry(head)] = 0 }
func (f *Inflight) settleSplit(used uint16)  { f.put16(ifSplitUsed, used) }
func (f *Inflight) clearPacked(entry uint16) { f.mem[packedEntry(entry)] = 0 }

// markSplit puts a head on record. Whoever finds it in flight finds its
// counter, too.
func (f *Inflight) markSplit(head uint16) {
	e := splitEntry(head)
	f.put64(e+ifCounter, f.counter)
	f.counter++
	f.mem[e] = 1
}

// listSplit makes a head the first of the last batch.
func (f *Inflight) listSplit(head uint16) {
	f.put16(splitEntry(head)+ifSplitNext, f.u16(ifSplitLastBatch))
	f.put16(ifSplitLastBatch, head)
}

// forget makes the records those of nothing. The version goes first: whoever
// finds it gone begins anew, whatever is left of the rest.
func (f *Inflight) forget() {
	f.put16(ifVersion, 0)
	clear(f.mem[:InflightSize(f.size, f.packed)])
}

// Forget empties the in-flight records: what is out will not be given back. It
// is for a ring that is given up because the driver has to reset it. What the
// driver offers after that is another ring, whose records these must not be.
func (r *Ring) Forget() {
	if r.inflight != nil {
		r.inflight.forget()
	}
}

// recover takes up what the records say: the ring's positions, and the chains
// to be given out again.
func (r *Ring) recover() error {
	f := r.inflight
	if f.packed != r.packed || r.size > f.size {
		return fmt.Errorf("%w: they are for another kind of ring, or for %d descriptors when the ring has %d", ErrInflight, f.size, r.size)
	}
	if f.fresh() {
		f.forget() // what is there beside a version means nothing
		f.put16(ifDescNum, f.size)
		if r.packed {
			f.initPacked(r.used, r.usedWrap)
		} else {
			f.settleSplit(r.used)
		}
		r.step(StepRecovering)
		f.put16(ifVersion, inflightVersion)
		return nil
	}
	var heads []uint16
	var err error
	if r.packed {
		heads, err = r.recoverPacked()
	} else {
		heads, err = r.recoverSplit()
	}
	if err != nil {
		return err
	}
	return r.resume(heads)
}

// resume sets the ring's position behind the chains that are out.
func (r *Ring) resume(heads []uint16) error {
	f := r.inflight
	slices.SortFunc(heads, func(a, b uint16) int {
		return cmp.Compare(f.u64(f.entry(b)+ifCounter), f.u64(f.entry(a)+ifCounter))
	})
	if len(heads) > 0 {
		f.counter = f.u64(f.entry(heads[0])+ifCounter) + 1
	}
	for _, h := range heads {
		r.outDesc += uint32(f.count(h))
	}
	if r.outDesc > uint32(r.size) {
		return fmt.Errorf("%w: %d descriptors are in flight, the ring has %d", ErrInflight, r.outDesc, r.size)
	}
	r.again, r.out = heads, uint16(len(heads))
	if r.packed {
		r.avail, r.availWrap = r.advance(r.used, r.usedWrap, uint16(r.outDesc))
	} else {
		r.avail = r.used + r.out
	}
	return nil
}

func (f *Inflight) entry(head uint16) int {
	if f.packed {
		return packedEntry(head)
	}
	return splitEntry(head)
}

// count is how many descriptors of the ring a chain on record takes.
func (f *Inflight) count(head uint16) uint16 {
	if f.packed {
		return f.nums[head]
	}
	return 1
}

// recoverSplit settles a batch that was published and not yet settled, and
// finds the heads that are in flight.
func (r *Ring) recoverSplit() ([]uint16, error) {
	f, used := r.inflight, r.used
	var heads []uint16
	for h := range f.size {
		if f.has(h) {
			heads = append(heads, h)
		}
	}
	if len(heads) == 0 {
		f.settleSplit(used)
		return nil, nil
	}
	seen, err := f.lastBatch(used - f.u16(ifSplitUsed))
	if err != nil {
		return nil, err
	}
	heads = slices.DeleteFunc(heads, func(h uint16) bool { return seen[h] })
	for _, h := range heads {
		if h >= r.size {
			return nil, fmt.Errorf("%w: descriptor %d is in flight, the ring has %d", ErrInflight, h, r.size)
		}
	}
	for h := range f.size {
		if seen[h] {
			f.clearSplit(h)
			r.step(StepRecovering)
		}
	}
	f.settleSplit(used)
	r.step(StepRecovering)
	return heads, nil
}

// lastBatch marks the last n heads that were listed.
func (f *Inflight) lastBatch(n uint16) ([]bool, error) {
	if n > f.size {
		return nil, fmt.Errorf("%w: the used index has moved by %d: no batch is that long", ErrInflight, n)
	}
	seen := make([]bool, f.size)
	head := f.u16(ifSplitLastBatch)
	for range n {
		if head >= f.size || seen[head] {
			return nil, fmt.Errorf("%w: the list of the last batch of %d is broken at %d", ErrInflight, n, head)
		}
		seen[head] = true
		head = f.u16(splitEntry(head) + ifSplitNext)
	}
	return seen, nil
}

// popAgain gives out a chain that the records have.
func (r *Ring) popAgain(c *Chain) (bool, error) {
	head := r.again[len(r.again)-1]
	var err error
	if r.packed {
		err = r.readRecord(c, head)
	} else {
		err = r.readSplit(c, head)
	}
	if r.fault.Fatal {
		return false, err
	}
	r.again = r.again[:len(r.again)-1]
	c.Resubmit = true
	r.out--
	r.outDesc -= uint32(c.Count)
	r.enter(c)
	return true, err
}
