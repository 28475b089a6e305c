package virtio

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
)

// Records of a packed ring. The driver's descriptors are overwritten by those
// of chains that are done, so the record has them all: lists of entries, taken
// from a list of free ones and given back to it.
//
// The header has most things twice: as they will be when the batch that is
// being published has been, and as they were before it. What is at the place
// of the batch's first descriptor tells a successor which of them is true.

// A packedState is the four fields from used_idx to old_used_wrap_counter. They
// lie in one aligned word of 64 bits and are stored together, so that no crash
// comes between them.
type packedState struct {
	used, old         uint16
	usedWrap, oldWrap bool
}

func (f *Inflight) putState(s packedState) {
	v := uint64(s.used) | uint64(s.old)<<16 | uint64(bit(s.usedWrap))<<32 | uint64(bit(s.oldWrap))<<40
	f.put64(ifPackedUsed, v)
}

func (f *Inflight) state() packedState {
	v := f.u64(ifPackedUsed)
	return packedState{uint16(v), uint16(v >> 16), v>>32&0xff != 0, v>>40&0xff != 0}
}

// putFree sets free_head and, if the list is to stay as it is, old_free_head.
func (f *Inflight) putFree(head uint16, stays bool) {
	f.free = head
	f.put16(ifPackedFree, head)
	if stays {
		f.put16(ifPackedOldFree, head)
	}
}

// initPacked makes empty memory the record of a ring at rest. The free list ends
// with an index that is none.
func (f *Inflight) initPacked(used uint16, wrap bool) {
	for i := range f.size {
		f.setNext(i, i+1)
	}
	f.putFree(0, true)
	f.putState(packedState{used, used, wrap, wrap})
}

func (f *Inflight) setNext(i, next uint16) {
	f.next[i] = next
	f.put16(packedEntry(i)+ifPackedNext, next)
}

// keepPacked records a descriptor of the chain being read, in the nth entry of
// the free list. Nothing of it counts before markPacked.
func (f *Inflight) keepPacked(d desc) {
	i := f.free
	if n := len(f.kept); n > 0 {
		i = f.next[f.kept[n-1]]
	}
	if i >= f.size {
		return // longer than the ring: the chain will be refused
	}
	f.kept = append(f.kept, i)
	e := packedEntry(i)
	f.put16(e+ifPackedID, d.next)
	f.put16(e+ifPackedFlags, d.flags)
	binary.LittleEndian.PutUint32(f.mem[e+ifPackedLen:], d.len)
	f.put64(e+ifPackedAddr, d.addr)
}

// markPacked puts the chain that was kept on record. Moving old_free_head is
// what makes it count: before that, its head is still in the free list.
func (f *Inflight) markPacked() (head uint16) {
	n := len(f.kept)
	head, last := f.kept[0], f.kept[n-1]
	f.lasts[head], f.nums[head] = last, uint16(n)
	e := packedEntry(head)
	f.put16(e+ifPackedLast, last)
	f.put16(e+ifPackedNum, uint16(n))
	f.put64(e+ifCounter, f.counter)
	f.counter++
	f.mem[e] = 1
	f.putFree(f.next[last], true)
	return head
}

// listPacked gives a chain's entries to the free list to come.
func (f *Inflight) listPacked(head uint16) {
	f.setNext(f.lasts[head], f.free)
	f.putFree(head, false)
}

// movePacked records where the used index will be.
func (f *Inflight) movePacked(used uint16, wrap bool) {
	s := f.state()
	s.used, s.usedWrap = used, wrap
	f.putState(s)
}

// settlePacked makes the record of before that of now.
func (f *Inflight) settlePacked() {
	f.putFree(f.free, true)
	s := f.state()
	f.putState(packedState{s.used, s.used, s.usedWrap, s.usedWrap})
}

// recoverPacked finds the chains that are in flight, and sets the ring's used
// index.
func (r *Ring) recoverPacked() ([]uint16, error) {
	f := r.inflight
	s := f.state()
	if s.used >= r.size || s.old >= r.size {
		return nil, fmt.Errorf("%w: the used index is %d or %d, the ring has %d descriptors", ErrInflight, s.used, s.old, r.size)
	}
	published := r.published(s)
	head := f.u16(ifPackedOldFree)
	if published {
		head = f.u16(ifPackedFree)
	}
	free, total, err := f.freeList(head)
	if err != nil {
		return nil, err
	}
	heads, n, err := f.chains(free)
	if err != nil {
		return nil, err
	}
	if total += n; total != int(f.size) {
		return nil, fmt.Errorf("%w: %d entries are free or in flight, of %d", ErrInflight, total, f.size)
	}
	r.rollback(s, published)
	for i := range f.size {
		if free[i] && f.mem[packedEntry(i)] != 0 {
			f.clearPacked(i)
			r.step(StepRecovering)
		}
	}
	// old_free_head first: it is what free_head becomes if this is done again.
	f.put16(ifPackedOldFree, head)
	r.step(StepRecovering)
	f.putFree(head, true)
	r.step(StepRecovering)
	f.putState(packedState{r.used, r.used, r.usedWrap, r.usedWrap})
	return heads, nil
}

// published tells whether the batch that the record has begun, if any, is to be
// seen in the ring. The driver may have gone on with the place already:
// anything but what was there while it was ours means yes.
func (r *Ring) published(s packedState) bool {
	if s.used == s.old && s.usedWrap == s.oldWrap {
		return false
	}
	flags := uint16(atomic.LoadUint32(lastWord(r.areas.Desc, s.old)) >> 16)
	return flags&(descAvail|descUsed) != marks(s.oldWrap, false)
}

// freeList marks the entries of the free list that begins at head.
func (f *Inflight) freeList(head uint16) (free []bool, total int, err error) {
	free = make([]bool, f.size)
	for i := head; i < f.size; i = f.next[i] {
		if free[i] {
			return nil, 0, fmt.Errorf("%w: the list of free entries meets itself at %d", ErrInflight, i)
		}
		free[i] = true
		total++
		f.next[i] = f.u16(packedEntry(i) + ifPackedNext)
	}
	return free, total, nil
}

// chains finds the chains in flight among the entries that are not free.
func (f *Inflight) chains(free []bool) (heads []uint16, total int, err error) {
	taken := make([]bool, f.size)
	for h := range f.size {
		if free[h] || f.mem[packedEntry(h)] == 0 {
			continue
		}
		n := f.u16(packedEntry(h) + ifPackedNum)
		f.lasts[h], f.nums[h] = f.u16(packedEntry(h)+ifPackedLast), n
		i := h
		for k := uint16(0); ; {
			if i >= f.size || free[i] || taken[i] || n == 0 {
				return nil, 0, fmt.Errorf("%w: the chain of %d at entry %d is broken at %d", ErrInflight, n, h, i)
			}
			taken[i] = true
			total++
			if k++; k == n {
				break
			}
			f.next[i] = f.u16(packedEntry(i) + ifPackedNext)
			i = f.next[i]
		}
		if i != f.lasts[h] {
			return nil, 0, fmt.Errorf("%w: the chain of %d at entry %d ends at %d, not at %d", ErrInflight, n, h, i, f.lasts[h])
		}
		heads = append(heads, h)
	}
	return heads, total, nil
}

// rollback sets the ring to before or after the batch that was being published.
// Of one that was not, descriptors after the first may be marked as used all
// the same: the driver would take them for new ones when it comes there.
func (r *Ring) rollback(s packedState, published bool) {
	if published {
		r.used, r.usedWrap = s.used, s.usedWrap
		return
	}
	r.used, r.usedWrap = s.old, s.oldWrap
	for pos, wrap := s.old, s.oldWrap; pos != s.used || wrap != s.usedWrap; pos, wrap = r.advance(pos, wrap, 1) {
		atomic.StoreUint32(lastWord(r.areas.Desc, pos), uint32(marks(wrap, false))<<16)
		r.step(StepRecovering)
	}
}

// readRecord is readPacked from the record. What it says was checked, but that
// was in memory which others can write to.
func (r *Ring) readRecord(c *Chain, head uint16) error {
	r.begin(c)
	f := r.inflight
	c.record, c.Count = head, f.nums[head]
	i := head
	for n := uint16(1); ; n++ {
		b := f.mem[packedEntry(i):]
		d := desc{f.u64(packedEntry(i) + ifPackedAddr), binary.LittleEndian.Uint32(b[ifPackedLen:]), binary.LittleEndian.Uint16(b[ifPackedFlags:]), binary.LittleEndian.Uint16(b[ifPackedID:])}
		rule := RuleNone
		switch {
		case d.flags&descIndirect == 0:
			if !r.add(c, d, i) {
				rule = RuleLoop
			}
		case !r.indirect || c.Count > 1:
			rule = RuleRecordedChain
		default:
			rule = r.addTable(c, d, i)
		}
		if rule != RuleNone {
			_, err := r.fatal(rule, i)
			return err
		}
		if n == c.Count {
			c.Head = d.next
			return r.finish(c)
		}
		i = f.next[i]
	}
}
