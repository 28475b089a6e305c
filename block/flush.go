package block

import (
	"errors"
	"slices"
	"sync"
	"syscall"
)

// flushes lets one flush of a node run at a time. Those who come meanwhile
// wait for it to end and then share the next one, which one of them runs: it
// starts after all of them came. Many connections that flush cost few flushes,
// and no two can race for the report of a lost write, which the kernel gives
// only once.
type flushes struct {
	mu      sync.Mutex
	running bool
	// last is the number of the flush that runs or ran last, good that of
	// the last one that succeeded; err is how the last that failed did.
	last, good uint64
	err        error
	waiting    []*Req
}

// flush makes every write that completed before the call durable.
func (in *Instance) flush(rq *Req) error {
	fs := &in.flushes
	fs.mu.Lock()
	// The one that runs now may have started too early for this caller.
	need := fs.last + 1
	for fs.running {
		fs.waiting = append(fs.waiting, rq)
		fs.mu.Unlock()
		if err := rq.wait(); err != nil {
			fs.unwait(rq)
			return err
		}
		fs.mu.Lock()
		if fs.ended() >= need {
			err := fs.err
			if fs.good >= need {
				err = nil
			}
			fs.mu.Unlock() // not deferred: that allocates in a loop
			return err
		}
	}
	fs.running = true
	fs.last++
	number := fs.last
	fs.mu.Unlock()
	err := in.flushNode(rq)
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.running = false
	switch {
	case err == nil:
		fs.good = number
	case wasGivenUp(err):
		fs.last-- // it was not run: one of those who wait for it does
	default:
		fs.err = lasting(err)
	}
	fs.wakeAll()
	return err
}

// lasting is err in memory of its own: it may be part of a request's object, and
// those who share the flush look at it when that has gone on.
func lasting(err error) error {
	if e, ok := err.(*Error); ok {
		c := *e
		return &c
	}
	return err
}

// ended is the number of the last flush that is over.
func (fs *flushes) ended() uint64 {
	if fs.running {
		return fs.last - 1
	}
	return fs.last
}

// unwait takes rq off those who are woken.
func (fs *flushes) unwait(rq *Req) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.waiting = slices.DeleteFunc(fs.waiting, func(w *Req) bool { return w == rq })
}

func (fs *flushes) wakeAll() {
	for i, rq := range fs.waiting {
		rq.wake()
		fs.waiting[i] = nil
	}
	fs.waiting = fs.waiting[:0]
}

// flushNode flushes, and remembers for good that a flush failed: the kernel
// may have dropped what it could not write, so that a later success would
// promise what is lost.
func (in *Instance) flushNode(rq *Req) error {
	if in.flushLost.Load() {
		return errFlushLost
	}
	err := in.node.Flush(rq)
	if err != nil && !IsNotSupported(err) && !wasGivenUp(err) && !in.harmless(Errno(err)) {
		in.loseFlush(err)
	}
	return err
}

func (in *Instance) loseFlush(err error) {
	in.flushLost.Store(true)
	in.env.Log.Error("a flush failed: flush and FUA fail from now on until the disk is reopened; reads go on",
		"node", in.label, "error", err)
}

// durableFailed hears of a native FUA write that failed. It may have consumed
// the kernel's only report that an earlier write was lost, in the page cache or
// in the device, so no later flush may succeed. Refused arguments consume none,
// and neither does memory of the caller that is gone (EFAULT): a virtual machine
// that cuts its memory short must not end a disk's service to those after it.
func (in *Instance) durableFailed(err error) {
	e := Errno(err)
	if IsNotSupported(err) || wasGivenUp(err) || errors.Is(err, ErrLimitsChanged) || errors.Is(err, errFlushLost) || e == syscall.EINVAL || e == syscall.EFAULT || in.harmless(e) {
		return
	}
	in.loseFlush(err)
}

// harmless reports whether nothing is lost where making data durable failed
// with e. Out of space is harmless unless a page cache has taken the data
// already: on thin storage it drops what it has no room for.
func (in *Instance) harmless(e syscall.Errno) bool {
	switch e {
	case syscall.ENOSPC, syscall.EDQUOT:
		return !in.node.Info().Cached
	}
	return e == syscall.EINTR || e == syscall.EAGAIN
}
