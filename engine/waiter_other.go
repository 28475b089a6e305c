//go:build !linux

package engine

import (
	"errors"
	"time"
)

// waiter waits for completions.
type waiter struct{ ch chan struct{} }

func newWaiter() (*waiter, error) { return &waiter{ch: make(chan struct{}, 1)}, nil }

// Wake is Queue's.
func (w *waiter) Wake() {
	select {
	case w.ch <- struct{}{}:
	default:
	}
}

func (w *waiter) wait(timeout time.Duration) error {
	if timeout < 0 {
		<-w.ch
		return nil
	}
	t := time.NewTimer(timeout)
	defer t.Stop()
	select {
	case <-w.ch:
	case <-t.C:
	}
	return nil
}

func (w *waiter) reap() {}

func (w *waiter) Watch(int, func()) error {
	return errors.New("watching descriptors: only on Linux")
}

func (w *waiter) Unwatch(int)   {}
func (w *waiter) NotifyFd() int { return -1 }
func (w *waiter) close()        {}
