package engine

import (
	"math"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/platter-storage/platter/internal/rawio"
)

// Marks in IO.Engine: whose the request is, if not its submitter's.
const (
	inFlight = 1 << 63 // a queue's or a worker's
	inInbox  = 1 << 62 // on its way to a loop's queue
)

// begin marks io as in flight. A queue takes what lies in its loop's inbox.
func begin(io *rawio.IO) {
	if io.Engine&inFlight != 0 {
		panic("engine: a request was submitted while it is in flight")
	}
	io.Engine = inFlight
}

// post marks io as on its way.
func post(io *rawio.IO) {
	if io.Engine&(inFlight|inInbox) != 0 {
		panic("engine: a request was submitted while it is in flight")
	}
	io.Engine = inInbox
}

// finish gives io back to its submitter.
func finish(io *rawio.IO) {
	io.Engine = 0
	io.Done(io)
}

// setResult stores what a system call returned: a count, or an errno below 0.
// Conversion of an errno to error does not allocate: they are all below 256.
func setResult(io *rawio.IO, res int) {
	if res < 0 {
		io.N, io.Err = 0, syscall.Errno(-res)
		return
	}
	io.N, io.Err = res, nil
}

// reapLimit turns "not positive: all" into a number.
func reapLimit(limit int) int {
	if limit <= 0 {
		return math.MaxInt
	}
	return limit
}

// doneList has requests that completed away from the kernel's own completion
// ring: refused ones, and those that a worker ran.
type doneList struct {
	n    atomic.Int32 // its length, to be seen without the lock
	mu   sync.Mutex
	list []*rawio.IO
	out  []*rawio.IO // the reaper's, being delivered
}

func newDoneList(depth int) doneList {
	return doneList{list: make([]*rawio.IO, 0, depth), out: make([]*rawio.IO, 0, depth)}
}

// add appends io, whose result is set. It returns true if the list was empty.
func (d *doneList) add(io *rawio.IO) bool {
	d.mu.Lock()
	d.list = append(d.list, io)
	first := len(d.list) == 1
	d.n.Add(1) // before the reaper can take the list: it may have been woken for all of it
	d.mu.Unlock()
	return first
}

// next takes one request out, nil if there is none. For the reaper only.
func (d *doneList) next() *rawio.IO {
	if d.n.Load() == 0 {
		return nil
	}
	if len(d.out) == 0 {
		d.mu.Lock()
		d.list, d.out = d.out, d.list
		d.mu.Unlock()
		for i, j := 0, len(d.out)-1; i < j; i, j = i+1, j-1 {
			d.out[i], d.out[j] = d.out[j], d.out[i]
		}
	}
	last := len(d.out) - 1
	if last < 0 {
		return nil
	}
	io := d.out[last]
	d.out[last] = nil
	d.out = d.out[:last]
	d.n.Add(-1)
	return io
}
