package block

import (
	"math"
	"sync"
	"sync/atomic"
)

// entry is one request in flight at one node: a range of bytes. It is linked
// into its shard, or is among the tracker's barriers.
type entry struct {
	off, end   int64
	barrier    bool
	shard      *shard
	prev, next *entry
	awaited    bool // guarded by shard.mu: a barrier waits for this entry
}

func (e *entry) overlaps(off, end int64) bool { return e.off < end && off < e.end }

const (
	numShards  = 16
	everything = math.MaxInt64
)

// shard is the part of a tracker that one queue uses, so that queues do not
// contend. Its lock is the innermost.
type shard struct {
	mu   sync.Mutex
	head *entry
	_    [48]byte // its own cache line
}

// tracker knows the requests in flight at one node. Ordinary requests enter a
// shard, then look for barriers; a barrier (a serialising request, or a drain)
// is raised first and then waits for what overlaps in the shards. Whichever
// comes second sees the other, so no pair of overlapping requests of which one
// is serialising ever runs together.
//
// An ordinary request that meets a barrier leaves its shard before it waits,
// and a barrier waits only for earlier barriers and for entries that run: no
// cycle of waiting can form within a node, and between nodes waiting goes down
// the graph only.
//
// Lock order: mu before a shard's mu.
type tracker struct {
	raised atomic.Int32 // number of barriers, and drains; read without mu
	shards [numShards]shard

	mu       sync.Mutex
	barriers []*entry
	waiting  []*Req // woken, all, whenever something that may matter ends
	drains   int
}

// enter registers [off, end) and returns whether it had to wait. After an error,
// that the request's context has ended, nothing is registered.
func (t *tracker) enter(f *frame, off, end int64) (waited bool, err error) {
	s := &t.shards[f.rq.queue.shard%numShards]
	for {
		s.add(&f.entry, off, end)
		if t.raised.Load() == 0 || !t.blocked(f, off, end) {
			return waited, nil
		}
		waited = true
		if err := f.rq.wait(); err != nil {
			t.unlist(f.rq)
			return waited, err
		}
	}
}

// tryEnter registers [off, end) unless a barrier overlaps it.
func (t *tracker) tryEnter(f *frame, off, end int64) bool {
	s := &t.shards[f.rq.queue.shard%numShards]
	s.add(&f.entry, off, end)
	if t.raised.Load() == 0 {
		return true
	}
	t.mu.Lock()
	hit := t.barrierOver(off, end)
	t.mu.Unlock()
	if !hit {
		return true
	}
	t.leave(f)
	return false
}

// blocked reports whether a barrier covers the range. If so the entry has left
// its shard again and the request is among the waiting.
func (t *tracker) blocked(f *frame, off, end int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.barrierOver(off, end) {
		return false
	}
	if f.entry.shard.remove(&f.entry) {
		t.wakeAll()
	}
	t.waiting = append(t.waiting, f.rq)
	return true
}

func (t *tracker) barrierOver(off, end int64) bool {
	if t.drains > 0 {
		return true
	}
	for _, b := range t.barriers {
		if b.overlaps(off, end) {
			return true
		}
	}
	return false
}

// leave removes an ordinary entry.
func (t *tracker) leave(f *frame) {
	if f.entry.shard.remove(&f.entry) {
		t.mu.Lock()
		t.wakeAll()
		t.mu.Unlock()
	}
}

// enterBarrier raises a barrier over [off, end) and waits until it is alone
// there. It returns whether it had to wait. After an error, that the request's
// context has ended, the barrier is gone.
func (t *tracker) enterBarrier(f *frame, off, end int64) (waited bool, err error) {
	e := &f.entry
	e.off, e.end, e.barrier, e.shard = off, end, true, nil
	t.mu.Lock()
	for t.barrierOver(off, end) {
		t.waiting = append(t.waiting, f.rq)
		t.mu.Unlock()
		waited = true
		if err := f.rq.wait(); err != nil {
			t.unlist(f.rq)
			return waited, err
		}
		t.mu.Lock()
	}
	t.barriers = append(t.barriers, e)
	t.raised.Add(1)
	t.mu.Unlock()
	again, err := t.awaitShards(f.rq, off, end)
	if err != nil {
		t.leaveBarrier(f)
	}
	return waited || again, err
}

// awaitShards waits until no entry of the shards overlaps [off, end), or until
// the request's context ends.
func (t *tracker) awaitShards(rq *Req, off, end int64) (waited bool, err error) {
	for {
		// Among the waiting before looking, so that no end is missed.
		t.mu.Lock()
		t.waiting = append(t.waiting, rq)
		t.mu.Unlock()
		busy := false
		for i := range t.shards {
			busy = t.shards[i].await(off, end) || busy
		}
		if busy {
			waited, err = true, rq.wait()
		}
		t.unlist(rq)
		if !busy || err != nil {
			return waited, err
		}
	}
}

// unlist is unwait for those who do not hold the lock.
func (t *tracker) unlist(rq *Req) {
	t.mu.Lock()
	t.unwait(rq)
	t.mu.Unlock()
}

// leaveBarrier lowers the barrier.
func (t *tracker) leaveBarrier(f *frame) {
	t.mu.Lock()
	for i, b := range t.barriers {
		if b == &f.entry {
			last := len(t.barriers) - 1
			t.barriers[i] = t.barriers[last]
			t.barriers[last] = nil
			t.barriers = t.barriers[:last]
			break
		}
	}
	t.raised.Add(-1)
	t.wakeAll()
	t.mu.Unlock()
}

// drain stops new requests and waits until none is in flight. Drains nest.
// rq only lends its semaphore, its context ends nothing.
func (t *tracker) drain(rq *Req) {
	ctx := rq.ctx
	rq.ctx = nil
	defer func() { rq.ctx = ctx }()
	t.mu.Lock()
	t.drains++
	t.raised.Add(1)
	for len(t.barriers) > 0 {
		t.waiting = append(t.waiting, rq)
		t.mu.Unlock()
		_ = rq.wait() // without a context
		t.mu.Lock()
	}
	t.mu.Unlock()
	_, _ = t.awaitShards(rq, math.MinInt64, everything)
}

// undrain lets requests in again when the last drain ends.
func (t *tracker) undrain() {
	t.mu.Lock()
	t.drains--
	t.raised.Add(-1)
	t.wakeAll()
	t.mu.Unlock()
}

// wakeAll wakes every waiting request; each looks again. Called with mu held.
func (t *tracker) wakeAll() {
	for i, rq := range t.waiting {
		rq.wake()
		t.waiting[i] = nil
	}
	t.waiting = t.waiting[:0]
}

// unwait takes rq off the waiting list, and any wake that came meanwhile.
func (t *tracker) unwait(rq *Req) {
	kept := t.waiting[:0]
	for _, w := range t.waiting {
		if w != rq {
			kept = append(kept, w)
		}
	}
	clear(t.waiting[len(kept):])
	t.waiting = kept
	select {
	case <-rq.park:
	default:
	}
}

func (s *shard) add(e *entry, off, end int64) {
	e.off, e.end, e.barrier, e.awaited, e.shard, e.prev = off, end, false, false, s, nil
	s.mu.Lock()
	if e.next = s.head; e.next != nil {
		e.next.prev = e
	}
	s.head = e
	s.mu.Unlock()
}

// remove reports whether a barrier waits for the entry.
func (s *shard) remove(e *entry) (awaited bool) {
	s.mu.Lock()
	if e.prev != nil {
		e.prev.next = e.next
	} else {
		s.head = e.next
	}
	if e.next != nil {
		e.next.prev = e.prev
	}
	awaited = e.awaited
	s.mu.Unlock()
	return awaited
}

// await marks the entries that overlap [off, end) and reports whether any does.
func (s *shard) await(off, end int64) (busy bool) {
	s.mu.Lock()
	for e := s.head; e != nil; e = e.next {
		if e.overlaps(off, end) {
			e.awaited, busy = true, true
		}
	}
	s.mu.Unlock()
	return busy
}
