package engine

import (
	"fmt"
	"time"

	"github.com/platter-storage/platter/internal/rawio"
)

// inline is a queue that does its requests within Submit, on the caller.
type inline struct {
	*waiter
	caller   caller
	depth    int
	prepared fifo
	ready    fifo // done, to be reaped
	stats    Stats
}

func newInline(cfg Config) (Queue, error) {
	w, err := newWaiter()
	if err != nil {
		return nil, fmt.Errorf("inline: %w", err)
	}
	return &inline{waiter: w, depth: cfg.Depth, prepared: newFifo(cfg.Depth), ready: newFifo(cfg.Depth)}, nil
}

func (q *inline) Prep(io *rawio.IO, f *File) bool {
	if q.InFlight() == q.depth {
		return false
	}
	begin(io)
	q.prepared.push(entry{io, f})
	return true
}

func (q *inline) Submit() error {
	for q.prepared.n > 0 {
		e := q.prepared.pop()
		q.caller.call(e.io, e.f)
		q.stats.Syscalls++
		q.ready.push(e)
	}
	return nil
}

func (q *inline) Reap(limit int) int {
	limit = reapLimit(limit)
	q.reap()
	n := 0
	for ; q.ready.n > 0 && n < limit; n++ {
		finish(q.ready.pop().io)
	}
	return n
}

func (q *inline) Wait(timeout time.Duration) error {
	if q.ready.n > 0 {
		return nil
	}
	return q.wait(timeout)
}

// NotifyFd is -1: what there is to reap is there when Submit returns.
func (q *inline) NotifyFd() int { return -1 }
func (q *inline) Forget(*File)  {}
func (q *inline) Depth() int    { return q.depth }
func (q *inline) InFlight() int { return q.prepared.n + q.ready.n }
func (q *inline) Stats() Stats  { return q.stats }

func (q *inline) Reason() string {
	return "inline: calls on the queue's own thread, for files that never block"
}

func (q *inline) Close() error {
	err := drain(q)
	q.waiter.close()
	return err
}
