package engine

import (
	"fmt"
	"time"

	"github.com/platter-storage/platter/internal/rawio"
)

// threads is a queue whose requests are blocking calls on worker threads.
type threads struct {
	*waiter
	workers  *workers
	prepared []entry
	done     doneList
	inFlight int
	depth    int
	stats    Stats
}

func newThreads(cfg Config) (Queue, error) {
	w, err := newWaiter()
	if err != nil {
		return nil, fmt.Errorf("threads: %w", err)
	}
	q := &threads{waiter: w, depth: cfg.Depth, done: newDoneList(cfg.Depth), prepared: make([]entry, 0, cfg.Depth)}
	q.workers = newWorkers(cfg.Workers, cfg.Depth, q.completed)
	return q, nil
}

// completed runs on a worker.
func (q *threads) completed(io *rawio.IO) {
	if q.done.add(io) {
		q.Wake()
	}
}

func (q *threads) Prep(io *rawio.IO, f *File) bool {
	if q.inFlight == q.depth {
		return false
	}
	begin(io)
	q.inFlight++
	q.prepared = append(q.prepared, entry{io, f})
	return true
}

func (q *threads) Submit() error {
	if len(q.prepared) > 0 {
		q.stats.Syscalls++
		q.workers.push(q.prepared)
		clear(q.prepared)
		q.prepared = q.prepared[:0]
	}
	return nil
}

func (q *threads) Reap(limit int) int {
	limit = reapLimit(limit)
	q.reap()
	n := 0
	for io := q.done.next(); io != nil; io = q.done.next() {
		q.inFlight--
		finish(io)
		if n++; n == limit {
			break
		}
	}
	return n
}

func (q *threads) Wait(timeout time.Duration) error {
	if q.done.n.Load() > 0 {
		return nil
	}
	return q.wait(timeout)
}

func (q *threads) Forget(*File)  {}
func (q *threads) Depth() int    { return q.depth }
func (q *threads) InFlight() int { return q.inFlight }
func (q *threads) Stats() Stats  { return q.stats }

func (q *threads) Reason() string {
	return fmt.Sprintf("threads with %d slots: up to %d worker threads with blocking calls", q.depth, q.workers.max)
}

func (q *threads) Close() error {
	err := drain(q)
	q.workers.close()
	q.waiter.close()
	return err
}
