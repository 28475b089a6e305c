package queue

import (
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/platter-storage/platter/block"
)

// DefaultWorkers is how many requests of one queue may block in the slow lane
// at once, where Config does not say; MaxWorkers bounds what it says.
const (
	DefaultWorkers = 16
	MaxWorkers     = 256
)

// workers run what may block. Goroutines start as they are needed, to at most
// most, and stay until close. Work is numbers of slots, first come first
// served; there is room for all of them.
type workers struct {
	most  int
	run   func(slot int)
	spawn func(func())

	mu      sync.Mutex
	come    sync.Cond // there is work, or closed
	ring    []int32
	head, n int
	idle    int // asleep, and nobody has called them yet
	started int
	closed  bool
	ended   sync.WaitGroup
}

func newWorkers(most, depth int, spawn func(func()), run func(slot int)) *workers {
	w := &workers{most: most, run: run, spawn: spawn, ring: make([]int32, depth)}
	w.come.L = &w.mu
	return w
}

// push hands a slot to a worker. It does not wait.
func (w *workers) push(slot int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := w.head + w.n
	if at >= len(w.ring) {
		at -= len(w.ring)
	}
	w.ring[at] = int32(slot)
	w.n++
	switch {
	case w.idle > 0:
		w.idle--
		w.come.Signal()
	case w.started < w.most:
		w.started++
		w.ended.Add(1)
		w.spawn(w.serve)
	}
}

// serve is a worker.
func (w *workers) serve() {
	defer w.ended.Done()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	for {
		slot := w.next()
		if slot < 0 {
			return
		}
		w.run(slot)
	}
}

// next waits for work; -1 is the end.
func (w *workers) next() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.n == 0 {
		if w.closed {
			return -1
		}
		w.idle++
		w.come.Wait()
	}
	slot := w.ring[w.head]
	if w.head++; w.head == len(w.ring) {
		w.head = 0
	}
	w.n--
	return int(slot)
}

// close ends the workers when the work is done, and waits for that.
func (w *workers) close() {
	w.mu.Lock()
	w.closed = true
	w.come.Broadcast()
	w.mu.Unlock()
	w.ended.Wait()
}

// doneList has the slots whose requests ended away from the loop. Those who
// end them add, the loop takes all at once: one short lock a batch.
type doneList struct {
	n    atomic.Int32 // its length, to be seen without the lock
	mu   sync.Mutex
	list []int32
	out  []int32 // the loop's, swapped with list
}

func newDoneList(depth int) doneList {
	return doneList{list: make([]int32, 0, depth), out: make([]int32, 0, depth)}
}

func (d *doneList) add(slot int) {
	d.mu.Lock()
	d.list = append(d.list, int32(slot))
	d.n.Store(int32(len(d.list)))
	d.mu.Unlock()
}

// take gives what there is. It is valid until the next take.
func (d *doneList) take() []int32 {
	if d.n.Load() == 0 {
		return nil
	}
	d.mu.Lock()
	d.list, d.out = d.out[:0], d.list
	d.n.Store(0)
	d.mu.Unlock()
	return d.out
}

// runSlow runs a request on a worker, and brings it back to the loop.
func (q *Queue) runSlow(i int) {
	q.table.refs[i].err = q.perform(i)
	q.done.add(i)
	q.wake()
}

// perform runs a request through the blocking methods.
func (q *Queue) perform(i int) (err error) {
	defer recoverFault(&err)
	s, rq := q.table.at(i), q.table.refs[i].rq
	fl := block.Flags(s.fl)
	switch s.kind {
	case kindIn:
		return q.child.Preadv(rq, s.off, q.table.vec(i), 0)
	case kindOut:
		return q.child.Pwritev(rq, s.off, q.table.vec(i), fl)
	case kindFlush:
		return q.child.Flush(rq)
	case kindDiscard:
		for _, e := range q.table.elemsOf(i) {
			if err := q.child.Discard(rq, int64(e.addr), int64(e.len)); err != nil {
				return err
			}
		}
	case kindZeroes:
		for _, e := range q.table.elemsOf(i) {
			if err := q.child.WriteZeroes(rq, int64(e.addr), int64(e.len), fl|block.Flags(e.cap)); err != nil {
				return err
			}
		}
	}
	return nil
}
