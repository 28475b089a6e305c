package vhostuser

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/platter-storage/platter/internal/sys"
	"github.com/platter-storage/platter/virtio"
)

// queue is a virtqueue and the requests on their way through it. It outlives
// connections.
//
// A request that holds a place and is being copied from or to, by whoever does
// that, is counted in touching: memory is not given back before.
type queue struct {
	n     *node
	index int
	unit  int // bytes of a chunk that are used

	mu sync.Mutex // guards what follows
	// link is the connection, nil while there is none. err is why there will
	// be none any more.
	link *link
	err  error
	at   layout
	drv  *virtio.Driver

	waiting requests // for a place
	held    requests // filled when the connection was lost
	out     []*request
	seq     uint64

	room   int // descriptors of the ring
	places []uint16
	chunks []uint16

	touching int
	still    *sync.Cond // touching is 0
	segOut   []virtio.Seg
	segIn    []virtio.Seg

	budget atomic.Int64 // nanoseconds to look for the end of a request
}

func newQueue(n *node, index int, s *shape) *queue {
	q := &queue{n: n, index: index, unit: s.unit, out: make([]*request, n.cfg.size)}
	q.still = sync.NewCond(&q.mu)
	q.budget.Store(n.cfg.pollNs)
	q.segOut = make([]virtio.Seg, 0, s.segs+2)
	q.segIn = make([]virtio.Seg, 0, s.segs+2)
	return q
}

func (q *queue) place(i uint16) []byte {
	return q.at.places.b[int(i)*placeSize : (int(i)+1)*placeSize]
}
func (q *queue) chunk(i uint16) []byte {
	return q.at.chunks.b[int(i)*chunkSize : (int(i)+1)*chunkSize]
}

// attach makes the queue that of a connection, whose memory is fresh. Under mu,
// with nobody touching.
func (q *queue) attach(l *link) {
	q.at, q.drv = l.layout(q.index), l.rings[q.index]
	q.room = l.plan.size
	q.places, q.chunks = numbers(q.places, l.plan.places), numbers(q.chunks, l.plan.chunks)
	q.drv.Arm()
	q.link = l
}

// numbers fills a stack with 0 to n-1, the lowest on top.
func numbers(b []uint16, n int) []uint16 {
	b = b[:0]
	for i := n - 1; i >= 0; i-- {
		b = append(b, uint16(i))
	}
	return b
}

// submit begins a request.
func (q *queue) submit(r *request) {
	var one requests
	one.push(r)
	q.submitAll(one)
}

// submitAll begins requests: those that find no room wait.
func (q *queue) submitAll(batch requests) {
	var now requests
	q.mu.Lock()
	for r := batch.pop(); r != nil; r = batch.pop() {
		switch {
		case q.err != nil:
			r.err = q.err
			q.mu.Unlock()
			q.tell(r)
			q.mu.Lock()
		case q.waiting.first == nil && q.grant(r):
			now.push(r)
		default:
			q.waiting.push(r)
		}
	}
	q.mu.Unlock()
	q.launch(now)
}

// grant gives a request a place and chunks, or answers false if there are not
// enough. Who gets them touches memory from now on. Under mu.
func (q *queue) grant(r *request) bool {
	chunks := 0
	if r.moves() {
		chunks = int((r.n + int64(q.unit) - 1) / int64(q.unit))
	}
	count := 1
	if q.link != nil && q.link.plan.tableLen == 0 {
		count = 2 + chunks
		if !r.moves() && r.op != virtio.BlkFlush {
			count++ // the range
		}
	}
	if q.link == nil || count > q.room || chunks > len(q.chunks) || len(q.places) == 0 {
		return false
	}
	r.count = count
	q.room -= count
	r.place = q.places[len(q.places)-1]
	q.places = q.places[:len(q.places)-1]
	r.chunks = append(r.chunks[:0], q.chunks[len(q.chunks)-chunks:]...)
	q.chunks = q.chunks[:len(q.chunks)-chunks]
	q.seq++
	r.seq = q.seq
	q.touching++
	return true
}

// launch fills requests that were granted and shows them to the server, who is
// told once at most.
func (q *queue) launch(batch requests) {
	if batch.first == nil {
		return
	}
	for r := batch.first; r != nil; r = r.next {
		r.fill(q)
	}
	bad := q.show(batch)
	for r := bad.pop(); r != nil; r = bad.pop() {
		q.tell(r)
	}
}

// show puts requests into the ring, but those whose memory is gone.
func (q *queue) show(batch requests) (bad requests) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for r := batch.pop(); r != nil; r = batch.pop() {
		if r.err != nil {
			bad.push(r)
			continue
		}
		q.untouch()
		if q.link == nil {
			q.held.push(r) // lost meanwhile
			continue
		}
		q.add(r)
	}
	if q.link != nil && q.drv.Kick() {
		// An error would be that of a closed descriptor, which it is not.
		_ = sys.SignalEvent(q.link.kicks[q.index])
	}
	return bad
}

func (q *queue) untouch() {
	if q.touching--; q.touching == 0 {
		q.still.Broadcast()
	}
}

// add puts a request into the ring. Under mu. (5.2.6)
func (q *queue) add(r *request) {
	at := q.at.places.guest() + uint64(r.place)*placeSize
	out, in := append(q.segOut[:0], virtio.Seg{Addr: at, Len: 16}), q.segIn[:0]
	data := &out
	switch r.op {
	case virtio.BlkIn:
		data = &in
	case virtio.BlkDiscard, virtio.BlkWriteZeroes:
		out = append(out, virtio.Seg{Addr: at + rangeAt, Len: 16})
	}
	for i, c := range r.chunks {
		n := min(r.n-int64(i)*int64(q.unit), int64(q.unit))
		*data = append(*data, virtio.Seg{Addr: q.at.chunks.guest() + uint64(c)*chunkSize, Len: uint32(n)})
	}
	in = append(in, virtio.Seg{Addr: at + statusAt, Len: 1})
	q.segOut, q.segIn = out, in
	id, ok := q.drv.Add(out, in, true)
	if !ok {
		panic(fmt.Sprintf("vhostuser: no room in the ring for %d descriptors of %d counted free", r.count, q.room)) // a mistake of grant's
	}
	q.out[id] = r
}

// reap takes what the server is done with. Requests that somebody waits for are
// his to finish; the rest are finished here.
func (q *queue) reap(l *link) {
	q.mu.Lock()
	done, err := q.used(l)
	q.mu.Unlock()
	if err != nil {
		q.n.lost(l, err, true)
	}
	for r := done.pop(); r != nil; r = done.pop() {
		q.tell(r)
	}
}

// used takes chains out of the ring. Under mu.
func (q *queue) used(l *link) (done requests, err error) {
	if q.link != l {
		return done, nil
	}
	for {
		id, written, ok, err := q.drv.Next()
		if err != nil || !ok {
			return done, err
		}
		r := q.out[id]
		q.out[id] = nil
		l.progress.Store(true)
		if most := r.written(); int64(written) > most {
			q.touching++
			r.err = errIO
			done.push(r)
			return done, fmt.Errorf("%w says that it wrote %d bytes where it could write %d", virtio.ErrDevice, written, most)
		}
		r.judge(q.place(r.place)[statusAt], written)
		q.touching++
		done.push(r)
	}
}

// written is how many bytes the server can write at most.
func (r *request) written() int64 {
	if r.op == virtio.BlkIn {
		return r.n + 1
	}
	return 1
}

// tell wakes who waits for a request, or ends it.
func (q *queue) tell(r *request) {
	if r.io == nil {
		r.done <- struct{}{}
		return
	}
	q.finish(r)
	q.n.end(r)
}

// finish copies what a request has read, and gives its place and chunks to
// those who wait. It does nothing for one that holds none.
func (q *queue) finish(r *request) {
	if r.count == 0 {
		return
	}
	if r.err == nil && r.op == virtio.BlkIn {
		r.err = r.copy(q)
	}
	q.mu.Lock()
	q.untouch()
	q.release(r)
	now := q.serve()
	q.mu.Unlock()
	q.launch(now)
}

// release takes place and chunks back. If the connection was lost meanwhile
// that is for nothing: attach counts them anew.
func (q *queue) release(r *request) {
	q.room += r.count
	q.places = append(q.places, r.place)
	q.chunks = append(q.chunks, r.chunks...)
	r.count = 0
}

// serve grants those who wait, in their order. Under mu.
func (q *queue) serve() (now requests) {
	for q.waiting.first != nil && q.grant(q.waiting.first) {
		now.push(q.waiting.pop())
	}
	return now
}

// rest asks the server to call, and answers whether there is something already.
func (q *queue) rest(l *link) (more bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.link == l && q.drv.Arm()
}

// leastLook is the budget in nanoseconds below which looking is given up until a
// sleep turns out to have been short.
const leastLook = 1000

// await waits for the end of a request, and looks for it first. What looking in
// vain costs is bounded: each time halves the budget, and a request that was
// over within all of it, awake or asleep, restores it.
func (q *queue) await(r *request) {
	began, most := q.n.env.Now(), q.n.cfg.pollNs
	if budget := q.budget.Load(); budget >= leastLook && q.look(r, began+budget) {
		return
	}
	<-r.done
	if q.n.env.Now()-began < most {
		q.budget.Store(most)
	} else {
		q.budget.Store(q.budget.Load() / 2)
	}
}

// look spins for the end of a request until end. It answers true when that has
// come.
func (q *queue) look(r *request, end int64) bool {
	for q.n.env.Now() < end {
		select {
		case <-r.done:
			return true
		default:
			if l := q.current(); l != nil {
				q.reap(l)
			}
		}
	}
	return false
}

func (q *queue) current() *link {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.link
}
