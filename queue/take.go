package queue

import (
	"fmt"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/virtio"
)

// takeNew takes what the guest has made available, as far as there are slots,
// and begins it. A batch has no more than the ring has entries: what is served
// in place frees its slot at once, and a guest that offers chains faster than
// they are taken, and looks at no used entry, must not keep the loop here.
func (q *Queue) takeNew() (n int) {
	if q.held != none && !q.tryHeld() {
		return 0
	}
	if !q.taking() || q.table.free < 0 {
		return 0
	}
	q.disk.Capacity = q.child.Size()
	for n < int(q.layout.Size) && q.held == none && q.table.free >= 0 {
		i := q.takeOne()
		if i == none {
			break
		}
		n++
		if i != refused {
			q.admit(i)
		}
	}
	if n > 0 {
		q.counts.batches.Add(1)
		q.counts.taken.Add(uint64(n))
		q.counts.inPlace.Add(q.inPlace)
		q.inPlace = 0
	}
	return n
}

// takeOne reads one chain into a slot, and answers with the slot; none where
// there is no chain, refused where it has been answered already.
func (q *Queue) takeOne() int {
	ok, bad := q.pop()
	if !ok {
		return none
	}
	i, s := q.table.take()
	s.chain, s.slab, s.elems, s.n = q.chain.Handle, noSlab, 0, 0
	s.room = 1 // unless it is known better nothing was written for certain
	s.reply = elemOf(q.chain.StatusByte())
	if q.chain.Resubmit {
		q.counts.resumed.Add(1)
	}
	if bad {
		return q.refuse(i, s, virtio.BlkIOErr)
	}
	return q.parse(i, s)
}

// pop reads one chain from the ring. If the ring's memory is gone, or what it
// says cannot be understood, the ring is broken. bad is a chain that breaks the
// rules and can be answered.
func (q *Queue) pop() (ok, bad bool) {
	defer q.ringFault("taking requests")
	ok, err := q.ring.Pop(&q.chain)
	if err == nil {
		return ok, false
	}
	e, mild := err.(*virtio.Error) // always one
	if !mild || e.Fatal {
		q.breakRing(err.Error())
		return false, false
	}
	q.complainOfGuest(e.Rule.String())
	return true, true
}

// parse reads the request that the chain is. Its memory may be gone, though the
// ring's is there.
func (q *Queue) parse(i int, s *slot) int {
	r := &q.request
	told, err := q.read()
	switch {
	case err != nil:
		q.counts.faults.Add(1)
		return q.refuse(i, s, virtio.BlkIOErr)
	case !told:
		q.breakRing("a request has no byte for its status")
		q.table.put(i)
		return none
	case r.Status != virtio.BlkOK:
		s.room = r.Room
		q.complainOfGuest(r.Why)
		return q.refuse(i, s, r.Status)
	}
	s.off, s.n, s.fl, s.room = r.Off, r.Len, 0, r.Room
	if !q.classify(s) {
		return q.refuse(i, s, virtio.BlkUnsupported)
	}
	q.unkept = !q.keep(i, s)
	return i
}

// read parses the chain.
func (q *Queue) read() (told bool, err error) {
	defer recoverFault(&err)
	told = q.disk.Parse(&q.chain, &q.request)
	if told && q.request.Op == virtio.BlkGetID && q.request.Status == virtio.BlkOK {
		q.request.CopyID(q.cfg.Serial)
	}
	return told, nil
}

// What a request asks for.
const (
	kindIn = iota
	kindOut
	kindFlush
	kindDiscard
	kindZeroes
	kindID
	kindBad
)

// classify translates the request to the block layer's terms. False: it has
// none for it.
func (q *Queue) classify(s *slot) bool {
	durable := uint32(0)
	if !q.writeback.Load() {
		durable = uint32(block.FUA)
	}
	switch q.request.Op {
	case virtio.BlkIn:
		s.kind, s.op = kindIn, uint8(block.OpRead)
	case virtio.BlkOut:
		s.kind, s.op, s.fl = kindOut, uint8(block.OpWrite), durable
	case virtio.BlkFlush:
		s.kind, s.op = kindFlush, uint8(block.OpFlush)
	case virtio.BlkDiscard:
		s.kind, s.op = kindDiscard, uint8(block.OpDiscard)
	case virtio.BlkWriteZeroes:
		s.kind, s.op, s.fl = kindZeroes, uint8(block.OpZero), durable
	case virtio.BlkGetID:
		s.kind = kindID
	default:
		return false
	}
	return true
}

// keep copies the request's elements to its slot. False: they need a slab, and
// none is free; they stay in q.request.
func (q *Queue) keep(i int, s *slot) bool {
	r := &q.request
	if s.kind != kindDiscard && s.kind != kindZeroes {
		return q.table.store(i, r.Data)
	}
	dst, ok := q.table.room(i, s, len(r.Ranges))
	if !ok {
		return false
	}
	s.elems, s.n = uint32(len(r.Ranges)), 0
	for k, g := range r.Ranges {
		dst[k] = elem{addr: uintptr(g.Off), len: uintptr(g.Len)}
		if g.Unmap {
			dst[k].cap = uintptr(block.MayUnmap)
		}
		s.n += g.Len
	}
	return true
}

// refused is what takeOne answers for a request that ended as it came.
const refused = -2

// refuse answers a request that cannot be served.
func (q *Queue) refuse(i int, s *slot, status uint8) int {
	s.kind = kindBad
	q.counts.bad.Add(1)
	q.answer(i, s, status)
	return refused
}

// complainOfGuest logs what a guest gets wrong, now and then.
func (q *Queue) complainOfGuest(why string) {
	if now := q.now(); now >= q.nextRefusal {
		q.nextRefusal = now + complainEvery
		q.log.Warn(fmt.Sprintf("%s: a request of the guest is refused: %s", q.name, why))
	}
}

// admit begins a request, unless there is no room for its elements or the
// limiter holds it back: then nothing more is taken until it has begun.
func (q *Queue) admit(i int) {
	s := q.table.at(i)
	if q.unkept {
		if q.unkept = !q.keep(i, s); q.unkept {
			if q.held != i {
				q.counts.crowded.Add(1)
			}
			q.held, q.heldTill = i, 0 // until something ends
			return
		}
	}
	if q.cfg.Limiter != nil && len(q.waiting) == 0 {
		now := q.clock()
		if wait := q.cfg.Limiter.Admit(block.Op(s.op), s.n, now); wait > 0 {
			q.held, q.heldTill = i, now+wait
			q.counts.held.Add(1)
			return
		}
	}
	q.held, q.heldTill = none, 0
	q.begin(i, s)
}

// tryHeld begins the request that had to wait, if it can. While somebody waits
// for this queue to have nothing in flight the limiter is not asked.
func (q *Queue) tryHeld() bool {
	if len(q.waiting) == 0 && q.heldTill > 0 && q.clock() < q.heldTill {
		return false
	}
	q.admit(q.held)
	return q.held == none
}

// begin sends a request on its way.
func (q *Queue) begin(i int, s *slot) {
	s.lane = laneLoop
	s.start = q.clock()
	if s.kind == kindID || s.n == 0 && s.kind != kindFlush {
		q.answer(i, s, virtio.BlkOK)
		return
	}
	q.table.refs[i].rq.Restart(s.start)
	if s.kind == kindIn || s.kind == kindOut {
		q.transfer(i, s)
	} else {
		q.slow(i, s)
	}
}
