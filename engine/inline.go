package engine

import (
	"time"

	"github.com/platter-storage/platter/internal/rawio"
)

// inline is a queue that does its requests within Submit, on the caller.
type inline struct {
	*waiter
	caller   caller
	prepared []entry // its first ready entries are done, the reaped ones gone
	ready    int
	reaped   int
	stats    Stats
}

func newInline(cfg Config) (Queue, error) {
	w, err := newWaiter()
	if err != nil {
		return nil, err
	}
	return &inline{waiter: w, prepared: make([]entry, 0, cfg.Depth)}, nil
}

func (q *inline) Prep(io *rawio.IO, f *File) bool {
	if len(q.prepared) == cap(q.prepared) {
		return false
	}
	begin(io)
	q.prepared = append(q.prepared, entry{io, f})
	return true
}

func (q *inline) Submit() error {
	for _, e := range q.prepared[q.ready:] {
		q.caller.call(e.io, e.f)
		q.stats.Syscalls++
	}
	q.ready = len(q.prepared)
	return nil
}

func (q *inline) Reap(limit int) int {
	limit = reapLimit(limit)
	q.reap()
	n := 0
	for q.reaped < q.ready {
		io := q.prepared[q.reaped].io
		q.prepared[q.reaped] = entry{}
		q.reaped++
		finish(io)
		if n++; n == limit {
			break
		}
	}
	if q.reaped == len(q.prepared) {
		q.prepared, q.ready, q.reaped = q.prepared[:0], 0, 0
	}
	return n
}

func (q *inline) Wait(timeout time.Duration) error {
	if q.reaped < q.ready {
		return nil
	}
	return q.wait(timeout)
}

// NotifyFd is -1: what there is to reap is there when Submit returns.
func (q *inline) NotifyFd() int { return -1 }
func (q *inline) Forget(*File)  {}
func (q *inline) Depth() int    { return cap(q.prepared) }
func (q *inline) InFlight() int { return len(q.prepared) - q.reaped }
func (q *inline) Stats() Stats  { return q.stats }

func (q *inline) Reason() string {
	return "inline: calls on the queue's own thread, for files that never block"
}

func (q *inline) Close() error {
	err := drain(q)
	q.waiter.close()
	return err
}
