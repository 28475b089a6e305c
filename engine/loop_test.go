package engine

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/platter-storage/platter/internal/rawio"
)

// slowWake is a queue whose first Wake takes until gate is closed.
type slowWake struct {
	Queue
	wakes  atomic.Int32
	gate   chan struct{}
	woken  chan struct{}
	taken  []*rawio.IO
	closed bool
	late   bool // Wake was still running when Close was called
}

func (q *slowWake) Prep(io *rawio.IO, _ *File) bool {
	begin(io)
	q.taken = append(q.taken, io)
	return true
}

func (q *slowWake) Submit() error { return nil }
func (q *slowWake) InFlight() int { return len(q.taken) }
func (q *slowWake) Forget(*File)  {}

func (q *slowWake) Reap(int) int {
	n := len(q.taken)
	for _, io := range q.taken {
		finish(io)
	}
	q.taken = nil
	return n
}

func (q *slowWake) Wait(time.Duration) error {
	<-q.woken
	return nil
}

func (q *slowWake) Wake() {
	if q.wakes.Add(1) == 1 {
		<-q.gate
		q.late = q.closed
	}
	q.woken <- struct{}{}
}

func (q *slowWake) Close() error {
	q.closed = true
	return nil
}

// A loop closed its queue while a goroutine that had found it asleep was about
// to write to the queue's eventfd, whose number could be another file's by then.
func TestQueueIsNotClosedUnderItsWaker(t *testing.T) {
	for name, call := range map[string]func(l *loop){
		"submit": func(l *loop) { l.submit([]*rawio.IO{{Done: func(*rawio.IO) {}}}, nil) },
		"forget": func(l *loop) { l.forget(nil) },
		"close":  func(l *loop) { _ = l.close() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := &slowWake{gate: make(chan struct{}), woken: make(chan struct{}, 4)}
				l := &loop{q: q, ended: make(chan error, 1)}
				l.asleep.Store(true)
				go call(l)
				synctest.Wait() // it has found the loop asleep, and is held up
				go l.live()     // which sees what has come without being woken
				if name != "close" {
					synctest.Wait()
					go l.close()
				}
				synctest.Wait()
				close(q.gate)
				time.Sleep(time.Second) // of the bubble's time
				synctest.Wait()
				if q.late || !q.closed {
					t.Errorf("closed while being woken: %v; closed at the end: %v", q.late, q.closed)
				}
			})
		})
	}
}

// The reaper took a request off the list that was not counted yet, found the
// list empty by the count, and slept over the request it had been woken for.
func TestDoneListCountsWhatCanBeTaken(t *testing.T) {
	const each, all = 1 << 17, 1 << 19
	d, io := newDoneList(all), &rawio.IO{}
	var adders sync.WaitGroup
	for range all / each {
		adders.Go(func() {
			for range each {
				d.add(io)
			}
		})
	}
	for got := 0; got < all; {
		d.mu.Lock()
		if n, has := int(d.n.Load()), len(d.list); n < has {
			t.Errorf("the count is %d with %d on the list", n, has)
			got = all
		}
		got = max(got, len(d.list))
		d.mu.Unlock()
	}
	adders.Wait()
}
