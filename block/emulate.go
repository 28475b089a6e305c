package block

import "syscall"

// fuaByFlush makes a completed change durable where the node has no FUA of its
// own for it.
func (c *Child) fuaByFlush(f *frame, op Op, fl Flags) error {
	native := c.info.WriteFlags
	if op == OpZero {
		native = c.info.ZeroFlags
	}
	if fl&FUA == 0 || native&FUA != 0 {
		return nil
	}
	f.rq.Took(PathFlushForFUA)
	return c.flushNode(f.rq)
}

// flushNode flushes, and remembers for good that a flush failed: the kernel
// may have dropped what it could not write, so that a later success would
// promise what is lost. Running out of space loses nothing.
func (c *Child) flushNode(rq *Req) error {
	if c.in.flushLost.Load() {
		return errFlushLost
	}
	err := c.node.Flush(rq)
	if err != nil && !IsNotSupported(err) && !transient(Errno(err)) {
		c.in.flushLost.Store(true)
		c.in.env.Log.Error("a flush failed: flush and FUA fail from now on until the disk is reopened; reads go on",
			"node", c.in.label(), "error", err)
	}
	return err
}

func transient(e syscall.Errno) bool {
	return e == syscall.ENOSPC || e == syscall.EDQUOT || e == syscall.EINTR || e == syscall.EAGAIN
}

// Flush makes every write that completed before it durable.
func (c *Child) Flush(rq *Req) error {
	f := rq.push()
	// An empty range below every real one: a flush meets drains only.
	c.enter(f, -2, -1, false)
	err := c.flushNode(rq)
	c.leave(f)
	rq.pop()
	if err != nil {
		return c.fail(OpFlush, 0, 0, err)
	}
	return nil
}

// Discard tells the node that the content of [off, off+n) is of no use. The
// range is trimmed inwards to what the node can discard; reads of it return
// anything until it is written again.
func (c *Child) Discard(rq *Req, off, n int64) error {
	if err := c.checkRange(PermWrite, off, n); err != nil {
		return c.fail(OpDiscard, off, n, err)
	}
	if n == 0 || c.ignoreDiscard {
		return nil
	}
	f := rq.push()
	c.enter(f, off, off+n, false)
	err := c.discard(rq, off, off+n)
	c.leave(f)
	rq.pop()
	if err != nil && !IsNotSupported(err) {
		return c.fail(OpDiscard, off, n, err)
	}
	return nil
}

func (c *Child) discard(rq *Req, off, end int64) error {
	l := c.info.Limits()
	mask := int64(l.DiscardAlign) - 1
	off = (off + mask) &^ mask
	if end != c.info.Size() {
		end &^= mask
	}
	step := atMost(l.MaxDiscard, mask)
	for ; off < end; off += step {
		rq.queue.c.nodeCalls.Add(1)
		if err := c.node.Discard(rq, off, min(step, end-off)); err != nil {
			return err
		}
	}
	return nil
}

// atMost is the largest step of a long operation: limit, rounded down to the
// alignment of mask, or no bound where limit is 0.
func atMost(limit, mask int64) int64 {
	if limit == 0 {
		limit = 1 << 62
	}
	return max(limit&^mask, mask+1)
}

// zero makes [s.off, s.end) read as zeroes: partial blocks at the ends by
// read-modify-write, the rest by the node or, where it cannot and the flags
// allow, by writing zeroes.
func (c *Child) zero(f *frame, s span, fl Flags, l *Limits) error {
	if s.aligned() {
		return c.zeroAligned(f, s.off, s.end, fl, l)
	}
	if fl&NoFallback != 0 {
		return ErrNotSupported
	}
	f.rq.Took(PathPadded | PathRMW)
	pool := c.in.env.Buffers
	buf := f.rq.getBuf(pool, int(2*l.blockLen()))
	defer pool.Put(buf)
	e, err := c.readBothEnds(f, s, buf, l)
	if err != nil {
		return err
	}
	wfl := fl & c.info.WriteFlags
	if e.head != nil {
		clear(e.head[s.off-s.aOff : min(s.end-s.aOff, int64(len(e.head)))])
		if err := c.nodeWrite(f.rq, s.aOff, f.one(e.head), wfl); err != nil {
			return err
		}
	}
	if e.tail != nil {
		clear(e.tail[:s.end-e.mid.end])
		if err := c.nodeWrite(f.rq, e.mid.end, f.one(e.tail), wfl); err != nil {
			return err
		}
	}
	if e.mid.off >= e.mid.end {
		return nil
	}
	return c.zeroAligned(f, e.mid.off, e.mid.end, fl, l)
}

// zeroAligned serves a range aligned for writing. What of it is not aligned
// for native zeroing is written.
func (c *Child) zeroAligned(f *frame, off, end int64, fl Flags, l *Limits) error {
	mask := int64(l.ZeroAlign) - 1
	from, to := (off+mask)&^mask, end
	if end != c.info.Size() {
		to = end &^ mask
	}
	if from >= to {
		from, to = end, end // no native part at all
	}
	if (from != off || to != end) && fl&NoFallback != 0 {
		return ErrNotSupported
	}
	if err := c.writeZeroBytes(f, off, from, fl, l); err != nil {
		return err
	}
	if err := c.zeroNative(f, from, to, fl, l); err != nil {
		return err
	}
	return c.writeZeroBytes(f, to, end, fl, l)
}

func (c *Child) zeroNative(f *frame, off, end int64, fl Flags, l *Limits) error {
	step := atMost(l.MaxZero, int64(l.ZeroAlign)-1)
	for off < end {
		k := min(step, end-off)
		f.rq.queue.c.nodeCalls.Add(1)
		err := c.node.WriteZeroes(f.rq, off, k, fl&(c.info.ZeroFlags|NoFallback))
		if err != nil && IsNotSupported(err) && fl&NoFallback == 0 {
			return c.writeZeroBytes(f, off, end, fl, l)
		}
		if err != nil {
			return err
		}
		off += k
	}
	return nil
}

// zeroes is what write zeroes falls back to: aligned for every node.
var zeroes = alignedZeroes(MaxAlign)

func alignedZeroes(n int) []byte {
	b := make([]byte, n+MaxAlign)
	pad := -addrOf(b) & (MaxAlign - 1)
	return b[pad : pad+uintptr(n)]
}

// zeroElements bounds the vector of a fallback write: 1 MiB of zeroes.
const zeroElements = 16

// writeZeroBytes writes zeroes over [off, end), which is aligned for writing.
func (c *Child) writeZeroBytes(f *frame, off, end int64, fl Flags, l *Limits) error {
	if off >= end {
		return nil
	}
	f.rq.Took(PathZeroFallback)
	most := int64(min(int(l.MaxSegments), zeroElements)) * MaxAlign
	if l.MaxTransfer != 0 {
		most = min(most, int64(l.MaxTransfer)&^(int64(l.WriteAlign)-1))
	}
	for off < end {
		k := min(most, end-off)
		f.vec = f.vec[:0]
		for left := k; left > 0; left -= MaxAlign {
			f.vec = append(f.vec, zeroes[:min(left, MaxAlign)])
		}
		if err := c.nodeWrite(f.rq, off, f.vec, fl&c.info.WriteFlags); err != nil {
			return err
		}
		off += k
	}
	// Where zeroing has FUA of its own and writing does not, nothing else
	// would make this part durable.
	if fl&FUA != 0 && c.info.ZeroFlags&FUA != 0 && c.info.WriteFlags&FUA == 0 {
		return c.flushNode(f.rq)
	}
	return nil
}

// BlockStatus describes a run of the content that starts at off, at most n
// bytes and at least one.
func (c *Child) BlockStatus(rq *Req, off, n int64) (Extent, error) {
	n = min(n, c.info.Size()-off)
	if off < 0 || n <= 0 {
		return Extent{}, c.fail(OpStatus, off, n, errRange)
	}
	f := rq.push()
	c.enter(f, off, off+n, false)
	s := spanOf(off, off+n, c.info.Size(), c.info.Limits().ReadAlign)
	e, err := c.node.BlockStatus(rq, s.aOff, s.aEnd-s.aOff)
	c.leave(f)
	rq.pop()
	if err != nil {
		return Extent{}, c.fail(OpStatus, off, n, err)
	}
	return trimExtent(e, s), nil
}

// trimExtent cuts what a node said of the aligned range down to what was asked.
func trimExtent(e Extent, s span) Extent {
	skip := s.off - s.aOff
	e.Len -= skip
	if e.Host >= 0 {
		e.Host += skip
	}
	if most := s.end - s.off; e.Len > most {
		e.Len, e.EOF = most, e.EOF && s.end == s.aEnd
	}
	return e
}

// Truncate sets the node's size. It runs alone. On growth the new part reads
// as zeroes, allocated as pre says.
func (c *Child) Truncate(rq *Req, size int64, pre Prealloc) error {
	err := c.checkTruncate(size)
	if err == nil {
		f := rq.push()
		c.enter(f, -2, everything, true)
		err = c.node.Truncate(rq, size, pre)
		c.leave(f)
		rq.pop()
	}
	if err != nil {
		return c.fail(OpTruncate, 0, size, err)
	}
	return nil
}

func (c *Child) checkTruncate(size int64) error {
	switch {
	case size < 0:
		return errRange
	case c.info.ReadOnly:
		return errReadOnly
	case c.perm&PermResize == 0:
		return errPerm
	}
	return nil
}
