package queue

import (
	"context"
	"errors"
	"fmt"
)

// ErrClosed is what every call gets after Close.
var ErrClosed = errors.New("the queue is closed")

// order is something that the loop is to do between two batches. The loop
// obeys in the order in which they were given, but for those that wait until
// nothing is in flight.
type order struct {
	do   func() error
	idle bool // only once nothing is in flight; nothing is taken meanwhile
	err  error
	done chan struct{}
}

// command gives the loop an order and waits until it is obeyed. If ctx ends
// first the order stands all the same.
func (q *Queue) command(ctx context.Context, idle bool, do func() error) error {
	o := &order{do: do, idle: idle, done: make(chan struct{})}
	q.mu.Lock()
	if q.ended {
		q.mu.Unlock()
		return fmt.Errorf("%s: %w", q.name, ErrClosed)
	}
	q.orders = append(q.orders, o)
	q.ordered.Store(true)
	q.mu.Unlock()
	q.wake()
	select {
	case <-o.done:
		return o.err
	case <-ctx.Done():
		return fmt.Errorf("%s: it waits for %d requests in flight: %w", q.name, q.inFlight.Load(), ctx.Err())
	}
}

// obey does what was ordered. False ends the loop.
func (q *Queue) obey() bool {
	q.mu.Lock()
	given := q.orders
	q.orders = nil
	q.ordered.Store(false)
	q.mu.Unlock()
	for _, o := range given {
		if o.idle {
			q.waiting = append(q.waiting, o)
		} else {
			o.finish(o.do())
		}
	}
	return q.obeyWaiting()
}

// obeyWaiting does what had to wait, once nothing is in flight.
func (q *Queue) obeyWaiting() bool {
	for len(q.waiting) > 0 && q.quiet() {
		o := q.waiting[0]
		q.waiting = q.waiting[1:]
		err := o.do()
		closing := q.closing
		if closing {
			q.refuseOrders()
		}
		o.finish(err)
		if closing {
			return false
		}
	}
	return true
}

// refuseOrders answers all that were given behind the order to close.
func (q *Queue) refuseOrders() {
	q.mu.Lock()
	q.ended = true
	left := append(q.waiting, q.orders...)
	q.orders, q.waiting = nil, nil
	q.mu.Unlock()
	for _, o := range left {
		o.finish(fmt.Errorf("%s: %w", q.name, ErrClosed))
	}
}

func (o *order) finish(err error) {
	o.err = err
	close(o.done)
}

// wake ends the loop's sleep, this one or the one it is about to begin. Any
// goroutine may call it. wakeMu keeps the engine from being closed meanwhile;
// the loop takes it only for that.
func (q *Queue) wake() {
	if !q.asleep.Load() {
		return
	}
	q.wakeMu.Lock()
	if q.eng != nil && q.asleep.CompareAndSwap(true, false) {
		q.eng.Wake()
	}
	q.wakeMu.Unlock()
}
