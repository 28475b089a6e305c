package file

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/platter-storage/platter/block"
)

// Whole transfers out of calls that may be short, interrupted or refused. The
// fast lane hands over here what did not complete in full: this is the one
// place where a transfer is finished.

// read reads all of v from off through d.
func (n *node) read(rq *block.Req, d descriptor, off int64, v block.Vec) error {
	size := n.info.Size()
	got, err := d.readv(off, v)
	if err == nil && int64(got) == v.Len() {
		return nil
	}
	t := transferRest{retry: retry{rq: rq}, n: n, d: d, off: off, v: v, size: size}
	return t.read(got, err)
}

// write writes all of v at off through d.
func (n *node) write(rq *block.Req, d descriptor, off int64, v block.Vec, durable bool) error {
	got, err := d.writev(off, v, durable)
	if err == nil && int64(got) == v.Len() {
		return nil
	}
	t := transferRest{retry: retry{rq: rq}, n: n, d: d, off: off, v: v, durable: durable}
	return t.write(got, err)
}

// transferRest finishes what the first call did not do.
type transferRest struct {
	retry
	n       *node
	d       descriptor
	off     int64 // of v
	v       block.Vec
	durable bool
	size    int64 // of the node, when a read began
	done    int64 // bytes of v that are moved
	from    int64 // where in v the last call began
	stalls  int   // calls in a row that moved nothing
}

// maxStalls calls in a row that move nothing and give no error end a transfer.
const maxStalls = 2

func (t *transferRest) read(got int, err error) error {
	for total := t.v.Len(); ; {
		t.count(got, err)
		switch {
		case t.done >= total:
			return nil
		case err == nil && t.stalls > 0, isMisaligned(err):
			// Some file systems say EINVAL past an unaligned end.
			if end, err := t.atEnd(); end || err != nil {
				return err
			}
		}
		if err != nil && !t.again(err) {
			return t.failed(err, false)
		}
		got, err = t.d.readv(t.off+t.step(), t.rest())
	}
}

func (t *transferRest) write(got int, err error) error {
	for total := t.v.Len(); ; {
		t.count(got, err)
		switch {
		case err != nil && !t.again(err):
			return t.failed(err, true)
		case t.done >= total:
			return nil
		case t.stalls >= maxStalls:
			// What else would a file refuse without saying why?
			return block.Errorf(syscall.ENOSPC, "the storage takes nothing more at offset %d, without an error: no space left", t.off+t.done)
		}
		got, err = t.d.writev(t.off+t.step(), t.rest(), t.durable)
	}
}

// count adds what the last call moved.
func (t *transferRest) count(got int, err error) {
	if err != nil {
		return
	}
	if reached := t.from + int64(got); reached > t.done {
		t.done, t.stalls = reached, 0
	} else {
		t.stalls++
	}
}

// step is where in v the next call begins: at the first byte not moved, or
// before it, where direct I/O could not begin there.
func (t *transferRest) step() int64 {
	l := t.n.info.Limits()
	a := int64(1)
	if t.n.direct && t.d == t.n.sys.main() {
		a = int64(max(l.ReadAlign, l.WriteAlign, l.SegmentAlign))
	}
	t.from = max((t.off+t.done)&^(a-1)-t.off, 0)
	return t.from
}

// rest is v from where the last call began.
func (t *transferRest) rest() block.Vec {
	return t.v.AppendRange(nil, t.from, t.v.Len()-t.from)
}

// atEnd decides what a read means that moved nothing: the end of the file
// where that is so, and a fault of the storage elsewhere.
func (t *transferRest) atEnd() (end bool, err error) {
	at := t.off + t.done
	size, err := t.n.sys.size()
	switch {
	case err != nil:
		return false, err
	case at >= size:
		return true, t.pastEnd(at, size)
	case t.stalls >= maxStalls:
		return false, block.Errorf(syscall.EIO, "the storage gives nothing at offset %d, and no error, though the file has %d bytes", at, size)
	}
	return false, nil
}

// pastEnd serves the part of a read that lies at or past the file's end. Past
// the size that the node had when the read began it reads as zeroes. Before it,
// the file has shrunk behind our back: what was there is lost, and saying
// "zeroes" would hide that, also where another read has found it out meanwhile.
func (t *transferRest) pastEnd(at, size int64) error {
	if at >= t.size {
		t.v.Zero(t.done, t.v.Len()-t.done)
		return nil
	}
	return t.n.shrunk(at, size)
}

// failed turns an errno of the storage into the request's error.
func (t *transferRest) failed(err error, write bool) error {
	off, v := t.off+t.from, t.rest()
	switch block.Errno(err) {
	case syscall.EINVAL:
		return t.n.refused(off, v, write)
	case syscall.EIO:
		if t.d == t.n.sys.main() && t.n.changedInFlight(off, v, write) {
			return t.n.refused(off, v, write)
		}
	case syscall.ESTALE:
		return fmt.Errorf("the file is gone from its server: %w", err)
	}
	return err
}

// retry bounds the repetition of calls that failed for a passing reason.
type retry struct {
	rq         *block.Req
	interrupts int
	waits      int
}

// Waiting between repetitions doubles from the first to the last: about a
// second in all.
const (
	firstWaitNs = 1e6
	maxWaits    = 10
)

// again reports whether the call may be repeated, having waited where it
// should.
func (r *retry) again(err error) bool {
	switch {
	case errors.Is(err, syscall.EINTR) && r.interrupts < maxInterrupts:
		r.interrupts++
		return true
	case (errors.Is(err, syscall.EINTR) || errors.Is(err, syscall.EAGAIN)) && r.waits < maxWaits:
		r.waits++
		return r.rq.Sleep(firstWaitNs<<(r.waits-1)) == nil
	}
	return false
}
