package block

import (
	"errors"
)

// MaxRequest is the longest read or write in bytes, as in the reference: the
// largest int32 rounded down to a sector.
const MaxRequest = 1<<31 - 512

// Preadv reads v.Len() bytes from off. Any alignment is served. After an error
// v is undefined.
func (c *Child) Preadv(rq *Req, off int64, v Vec, fl Flags) error {
	n := v.Len()
	err := c.check(PermRead, off, n)
	if err == nil && n > 0 {
		err = c.readTracked(rq, off, n, v, fl&Serialising != 0)
	}
	if err != nil {
		return c.fail(rq, OpRead, off, n, err)
	}
	return nil
}

// Pwritev writes v.Len() bytes at off. Any alignment is served; with FUA the
// data is durable on return.
func (c *Child) Pwritev(rq *Req, off int64, v Vec, fl Flags) error {
	n := v.Len()
	err := c.check(PermWrite, off, n)
	if err == nil && n > 0 {
		err = c.changeTracked(rq, OpWrite, off, n, v, fl)
	}
	if err != nil {
		return c.fail(rq, OpWrite, off, n, err)
	}
	return nil
}

// WriteZeroes makes [off, off+n) read as zeroes. Any alignment is served.
func (c *Child) WriteZeroes(rq *Req, off, n int64, fl Flags) error {
	err := c.checkRange(PermWrite, off, n)
	if err == nil && n > 0 {
		if c.ignoreDiscard {
			fl &^= MayUnmap
		}
		err = c.changeTracked(rq, OpZero, off, n, nil, fl)
	}
	if err != nil {
		return c.fail(rq, OpZero, off, n, err)
	}
	return nil
}

// check is checkRange, for operations that carry data.
func (c *Child) check(perm Perm, off, n int64) error {
	if n > MaxRequest {
		return errTooLong
	}
	return c.checkRange(perm, off, n)
}

func (c *Child) checkRange(perm Perm, off, n int64) error {
	switch size := c.info.Size(); {
	case off < 0 || n < 0 || off > size-n:
		return errRange(size)
	case perm&PermWrite != 0 && c.info.ReadOnly:
		return errReadOnly
	case perm&^c.perm != 0:
		return errPerm
	}
	return nil
}

// readTracked counts the read in flight and tries it, once more where the
// limits turned out to be stale.
func (c *Child) readTracked(rq *Req, off, n int64, v Vec, serialising bool) error {
	rq.Took(PathSlow)
	for again := false; ; again = true {
		err := c.readOnce(rq, off, n, v, serialising)
		if !errors.Is(err, ErrLimitsChanged) {
			return err
		}
		if again {
			return errLimits
		}
		rq.Took(PathRetried)
	}
}

func (c *Child) readOnce(rq *Req, off, n int64, v Vec, serialising bool) error {
	f := rq.push()
	if err := c.enter(f, off, off+n, serialising); err != nil {
		return err
	}
	defer c.leave(f)
	return c.read(f, off, n, v)
}

// changeTracked does the same for a write or write zeroes. An unaligned one is
// serialising over the blocks that it reads, modifies and writes.
func (c *Child) changeTracked(rq *Req, op Op, off, n int64, v Vec, fl Flags) error {
	rq.Took(PathSlow)
	again := false
	for {
		err := c.changeOnce(rq, op, off, n, v, fl)
		switch {
		case errors.Is(err, errOvertaken):
			continue // nothing was tried yet
		case !errors.Is(err, ErrLimitsChanged):
			return err
		case again:
			return errLimits
		}
		again = true
		rq.Took(PathRetried)
	}
}

// changeOnce enters the blocks that the change touches, as the size and the
// limits now are, and makes it. What it waited for may have changed them.
func (c *Child) changeOnce(rq *Req, op Op, off, n int64, v Vec, fl Flags) error {
	l, size := c.info.Limits(), c.info.Size()
	if off+n > size {
		return errRange(size)
	}
	s := spanOf(off, off+n, size, l.WriteAlign)
	if !s.aligned() {
		s = spanOf(off, off+n, size, uint32(l.blockLen()))
	}
	f := rq.push()
	if err := c.enter(f, s.aOff, s.aEnd, fl&Serialising != 0 || !s.aligned()); err != nil {
		return err
	}
	defer c.leave(f)
	if c.info.Limits() != l || c.info.Size() != size {
		return errOvertaken
	}
	return c.change(f, op, s, v, fl&^Serialising, l)
}

func (c *Child) change(f *frame, op Op, s span, v Vec, fl Flags, l *Limits) error {
	byFlush, err := c.wantsFlush(op, fl)
	if err != nil {
		return err
	}
	if byFlush {
		fl &^= FUA
	}
	if op == OpZero {
		err = c.zero(f, s, fl, l)
	} else {
		err = c.write(f, s, v, fl, l)
	}
	if err != nil || !byFlush {
		return err
	}
	f.rq.Took(PathFlushForFUA)
	return c.in.flush(f.rq)
}

// enter counts the request in flight at the node; a serialising one is then
// alone in its range. Where its context ends first the edge is left again.
func (c *Child) enter(f *frame, off, end int64, serialising bool) (err error) {
	f.barrier = serialising
	waited := false
	if serialising {
		waited, err = c.in.track.enterBarrier(f, off, end)
	} else {
		waited, err = c.in.track.enter(f, off, end)
	}
	if waited {
		f.rq.Took(PathSerialised)
	}
	if err != nil {
		f.rq.pop()
	}
	return err
}

// leave is deferred, and so is what gives buffers back: memory of a guest may
// go away under a copy, and who recovers from that fault far above must find
// nothing left in flight here.
func (c *Child) leave(f *frame) {
	if f.barrier {
		c.in.track.leaveBarrier(f)
	} else {
		c.in.track.leave(f)
	}
	f.rq.pop()
}

// read chooses the way of a read that is in flight.
func (c *Child) read(f *frame, off, n int64, v Vec) error {
	l, size := c.info.Limits(), c.info.Size()
	if off+n > size {
		return errRange(size) // it shrank while the request waited
	}
	s := spanOf(off, off+n, size, l.ReadAlign)
	if !s.aligned() {
		f.rq.Took(PathPadded)
		return c.readLinear(f, s, v, 0, l)
	}
	if len(v) > 1 {
		v = f.join(v)
	}
	if why := l.misfit(v, s.end, size); why != 0 {
		f.rq.Took(why)
		return c.readLinear(f, s, v, 0, l)
	}
	ch := c.lineChoose(f.rq, OpRead, v, n)
	err := c.readAs(f, &ch, s, v, l)
	c.lineLearn(&ch, n, err)
	return err
}

// readAs reads the aligned range s in the way that was chosen.
func (c *Child) readAs(f *frame, ch *lineChoice, s span, v Vec, l *Limits) error {
	if ch.linear {
		f.rq.Took(PathLinearised)
		return c.readLinear(f, s, v, 0, l)
	}
	f.rq.Took(PathDirect)
	if l.fitsOnce(v, s.end-s.off) {
		return c.nodeRead(f.rq, s.off, v)
	}
	return c.split(f, OpRead, s, v, 0, l)
}

// write chooses the way of a write that is in flight.
func (c *Child) write(f *frame, s span, v Vec, fl Flags, l *Limits) error {
	fl &= c.info.WriteFlags
	if !s.aligned() {
		f.rq.Took(PathPadded | PathRMW)
		if s.aEnd-s.aOff <= l.bounceLen(uint32(l.blockLen())) {
			return c.modifyOnce(f, s, v, fl, l)
		}
		return c.modifyEnds(f, s, v, fl, l)
	}
	if len(v) > 1 {
		v = f.join(v)
	}
	if why := l.misfit(v, s.end, s.size); why != 0 {
		f.rq.Took(why)
		return c.writeLinear(f, s, v, 0, fl, l)
	}
	ch := c.lineChoose(f.rq, OpWrite, v, s.end-s.off)
	err := c.writeAs(f, &ch, s, v, fl, l)
	c.lineLearn(&ch, s.end-s.off, err)
	return err
}

// writeAs writes the aligned range s in the way that was chosen.
func (c *Child) writeAs(f *frame, ch *lineChoice, s span, v Vec, fl Flags, l *Limits) error {
	if ch.linear {
		f.rq.Took(PathLinearised)
		return c.writeLinear(f, s, v, 0, fl, l)
	}
	f.rq.Took(PathDirect)
	if l.fitsOnce(v, s.end-s.off) {
		return c.nodeWrite(f.rq, s.off, v, fl)
	}
	return c.split(f, OpWrite, s, v, fl, l)
}

// nodeRead and nodeWrite are where requests leave the edge for the driver.
func (c *Child) nodeRead(rq *Req, off int64, v Vec) error {
	c.count(rq, v)
	return c.node.Preadv(rq, off, v, 0) // no flag means anything to a read
}

func (c *Child) nodeWrite(rq *Req, off int64, v Vec, fl Flags) error {
	c.count(rq, v)
	err := c.node.Pwritev(rq, off, v, fl)
	if err != nil && fl&FUA != 0 {
		c.in.durableFailed(err)
	}
	return err
}

func (c *Child) count(rq *Req, v Vec) {
	rq.queue.c.nodeCalls.Add(1)
	rq.queue.c.nodeSegments.Add(uint64(len(v)))
}
