package engine

import (
	"syscall"
	"time"
)

// backoff bounds the repetition of a call for which the kernel was short of
// something: ten times, over about 100 ms in all.
type backoff struct {
	tries int
	delay time.Duration
}

const maxTries = 10

// again sleeps, longer each time; false: enough.
func (b *backoff) again() bool {
	if b.tries == maxTries {
		return false
	}
	b.tries++
	b.delay = max(2*b.delay, 100*time.Microsecond)
	time.Sleep(b.delay)
	return true
}

// transient errors of a submission may go away by themselves.
func transient(errno syscall.Errno) bool {
	switch errno {
	case 0, syscall.EAGAIN, syscall.EBUSY, syscall.EINTR, syscall.ENOMEM:
		return true
	}
	return false
}

// drain submits and reaps until nothing is in flight. It returns the first
// error of Submit, whose requests have it too.
func drain(q Queue) error {
	var first error
	for {
		if err := q.Submit(); first == nil {
			first = err
		}
		if q.InFlight() == 0 {
			return first
		}
		if q.Reap(0) > 0 {
			continue
		}
		if err := q.Wait(-1); err != nil {
			return err
		}
	}
}
