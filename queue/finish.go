package queue

import (
	"errors"
	"fmt"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/sys"
	"github.com/platter-storage/platter/virtio"
)

// complainEvery bounds log lines about failed requests: one in so many
// nanoseconds.
const complainEvery = 1e9

// takeBack ends what workers, or an engine shared with others, have done.
func (q *Queue) takeBack() int {
	q.at = 0
	list := q.done.take()
	for _, n := range list {
		i := int(n)
		s, r := q.table.at(i), &q.table.refs[i]
		if s.lane == laneLeaf {
			q.away--
			q.finishMapped(i, s, int64(r.io.N), r.io.Err)
			continue
		}
		err := r.err
		r.err = nil
		q.end(i, s, err)
	}
	return len(list)
}

// end ends a request of the block layer.
func (q *Queue) end(i int, s *slot, err error) {
	q.bq.Count(q.table.refs[i].rq, block.Op(s.op), s.n, err, q.clock())
	if err != nil {
		q.complain(err)
	}
	q.answer(i, s, statusOf(err))
}

// statusOf is the answer to a request that ended with err.
func statusOf(err error) uint8 {
	switch {
	case err == nil:
		return virtio.BlkOK
	case block.IsNotSupported(err):
		return virtio.BlkUnsupported
	}
	return virtio.BlkIOErr
}

// answer writes the status, marks what was written in the dirty log, and puts
// the chain among those that will be published. The slot is free.
func (q *Queue) answer(i int, s *slot, status uint8) {
	n := int64(0)
	if s.kind == kindIn || s.kind == kindID {
		n = s.n
	}
	s.status, s.written = status, virtio.BlkWritten(status, n, s.room)
	if q.broken {
		q.table.put(i)
		return
	}
	if err := putStatus(s); err != nil {
		s.written = 0
		q.counts.faults.Add(1)
	}
	q.passed(pointAnswered)
	if q.dirty != nil {
		q.mark(i, s)
		if q.broken {
			q.table.put(i)
			return
		}
		q.passed(pointLogged)
	}
	q.ring.Push(s.chain, s.written)
	q.pushed++
	q.table.put(i)
}

// putStatus writes the status byte to guest memory.
func putStatus(s *slot) (err error) {
	defer recoverFault(&err)
	if b := s.reply.bytes(); len(b) > 0 {
		b[0] = s.status
	}
	return nil
}

// mark notes in the dirty log what a request has written.
func (q *Queue) mark(i int, s *slot) {
	defer q.ringFault("marking pages in the dirty log")
	q.one[0] = s.reply.bytes()
	ok := q.dirty.MarkVector(q.mem, q.one[:])
	if s.kind == kindIn || s.kind == kindID { // also one that failed: a part of it may have been written
		ok = q.dirty.MarkVector(q.mem, q.table.vec(i)) && ok
	}
	q.counts.logged.Add(1)
	if !ok {
		q.counts.unlogged.Add(1)
	}
}

// publish shows the guest all that has ended since the last time, and calls it
// if it wants to be called.
func (q *Queue) publish() {
	if n := int32(q.table.used); n != q.inFlight.Load() {
		q.inFlight.Store(n)
	}
	if q.pushed == 0 || q.broken {
		return
	}
	notify := q.publishRing()
	q.passed(pointPublished)
	if notify {
		q.counts.calls.Add(1)
		q.call()
	} else {
		q.counts.quiet.Add(1)
	}
}

// publishRing publishes, and answers whether the guest wants to be called.
func (q *Queue) publishRing() (notify bool) {
	defer q.ringFault("publishing what has ended")
	q.pushed = 0
	return q.ring.Publish()
}

// call signals the guest.
func (q *Queue) call() {
	if q.callFd < 0 {
		return
	}
	if err := sys.SignalEvent(q.callFd); err != nil && !q.deaf {
		q.deaf = true
		q.log.Warn(fmt.Sprintf("%s: the guest cannot be told that requests have ended: writing to the call descriptor: %v", q.name, err))
	}
}

// complain logs why a request failed: the guest hears no more than that it did.
// A guest that sends requests that must fail does not fill the log.
func (q *Queue) complain(err error) {
	now := q.now()
	if now < q.nextComplaint {
		q.unsaid++
		return
	}
	q.nextComplaint = now + complainEvery
	var e *block.Error
	if !errors.As(err, &e) {
		err = fmt.Errorf("a request failed: %w", err)
	}
	if q.unsaid > 0 {
		q.log.Warn(fmt.Sprintf("%s: %v (and %d more since the last such line)", q.name, err, q.unsaid))
	} else {
		q.log.Warn(fmt.Sprintf("%s: %v", q.name, err))
	}
	q.unsaid = 0
}
