package engine

import (
	"math/bits"
	"sync"

	"github.com/platter-storage/platter/internal/rawio"
)

// entry is a request and its file.
type entry struct {
	io *rawio.IO
	f  *File
}

// fifo is a queue of entries that grows as needed and keeps its memory.
type fifo struct {
	ring []entry // a power of two long
	head int
	n    int
}

// newFifo has room for n entries before it grows.
func newFifo(n int) fifo { return fifo{ring: make([]entry, 1<<bits.Len(uint(n-1)))} }

func (q *fifo) push(e entry) {
	if q.n == len(q.ring) {
		bigger := make([]entry, max(2*len(q.ring), 16))
		for i := range q.n {
			bigger[i] = q.ring[(q.head+i)&(len(q.ring)-1)]
		}
		q.ring, q.head = bigger, 0
	}
	q.ring[(q.head+q.n)&(len(q.ring)-1)] = e
	q.n++
}

func (q *fifo) pop() entry {
	e := q.ring[q.head]
	q.ring[q.head] = entry{}
	q.head = (q.head + 1) & (len(q.ring) - 1)
	q.n--
	return e
}

func (q *fifo) peek() entry { return q.ring[q.head] }

// workers run blocking calls, first come first served. Goroutines start as
// they are needed, to at most max, and stay until close.
type workers struct {
	max       int
	completed func(*rawio.IO) // called on the worker, with the result set

	mu      sync.Mutex
	work    sync.Cond // there is something in queue, or closed
	queue   fifo
	started int
	idle    int
	closed  bool
	ended   sync.WaitGroup
}

func newWorkers(max, depth int, completed func(*rawio.IO)) *workers {
	w := &workers{max: max, completed: completed, queue: newFifo(depth)}
	w.work.L = &w.mu
	return w
}

// push queues a batch of marked requests. It never blocks.
func (w *workers) push(batch []entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range batch {
		w.queue.push(e)
		w.staff()
	}
}

// pushAll is push for requests to one file, which it marks.
func (w *workers) pushAll(ios []*rawio.IO, f *File) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, io := range ios {
		begin(io)
		w.queue.push(entry{io, f})
		w.staff()
	}
}

// staff wakes an idle worker for one more entry, or starts one. Under mu.
func (w *workers) staff() {
	if w.idle > 0 {
		w.idle-- // the one that wakes; a count of sleepers that nobody has called yet
		w.work.Signal()
		return
	}
	if w.started < w.max {
		w.started++
		w.ended.Go(w.run)
	}
}

func (w *workers) run() {
	var c caller
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		for w.queue.n == 0 {
			if w.closed {
				return
			}
			w.idle++
			w.work.Wait()
		}
		e := w.queue.pop()
		w.mu.Unlock()
		c.call(e.io, e.f)
		w.completed(e.io)
		w.mu.Lock()
	}
}

// close ends the workers once the queue is empty.
func (w *workers) close() {
	w.mu.Lock()
	w.closed = true
	w.work.Broadcast()
	w.mu.Unlock()
	w.ended.Wait()
}
