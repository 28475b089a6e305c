package block

import "errors"

// wantsFlush reports whether a change that is to be durable becomes so by a
// flush, because the node has no FUA of its own for all of it: write zeroes may
// be writes in part.
func (c *Child) wantsFlush(op Op, fl Flags) (bool, error) {
	if fl&FUA == 0 {
		return false, nil
	}
	if c.in.flushLost.Load() {
		return false, errFlushLost
	}
	native := c.info.WriteFlags
	if op == OpZero {
		native &= c.info.ZeroFlags
	}
	return native&FUA == 0, nil
}

// Flush makes every write that completed before it durable.
func (c *Child) Flush(rq *Req) error {
	f := rq.push()
	// An empty range below every real one: a flush meets drains only.
	if err := c.enter(f, -2, -1, false); err != nil {
		return c.fail(rq, OpFlush, 0, 0, err)
	}
	defer c.leave(f)
	if err := c.in.flush(rq); err != nil {
		return c.fail(rq, OpFlush, 0, 0, err)
	}
	return nil
}

// Discard tells the node that the content of [off, off+n) is of no use. The
// range is trimmed inwards to what the node can discard; reads of it return
// anything until it is written again.
func (c *Child) Discard(rq *Req, off, n int64) error {
	if err := c.checkRange(PermWrite, off, n); err != nil {
		return c.fail(rq, OpDiscard, off, n, err)
	}
	if n == 0 || c.ignoreDiscard {
		return nil
	}
	f := rq.push()
	if err := c.enter(f, off, off+n, false); err != nil {
		return c.fail(rq, OpDiscard, off, n, err)
	}
	defer c.leave(f)
	// It is a hint: what limits that just changed refuse is not worth a
	// second try.
	err := c.discard(rq, off, off+n)
	if err != nil && !IsNotSupported(err) && !errors.Is(err, ErrLimitsChanged) {
		return c.fail(rq, OpDiscard, off, n, err)
	}
	return nil
}

func (c *Child) discard(rq *Req, off, end int64) error {
	l, size := c.info.Limits(), c.info.Size()
	if end > size {
		return errRange(size) // it shrank while the request waited
	}
	mask := int64(l.DiscardAlign) - 1
	off = (off + mask) &^ mask
	if end != size {
		end &^= mask
	}
	step := atMost(l.MaxDiscard, mask)
	for off < end {
		k := min(step, end-off)
		rq.queue.c.nodeCalls.Add(1)
		if err := c.node.Discard(rq, off, k); err != nil {
			return err
		}
		off += k
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
		return c.zeroAligned(f, s, fl, l)
	}
	if fl&NoFallback != 0 {
		return ErrNotSupported
	}
	f.rq.Took(PathPadded | PathRMW)
	buf, err := f.buffer(2*l.blockLen(), l)
	if err != nil {
		return err
	}
	defer f.rq.Release(buf)
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
	return c.zeroAligned(f, e.mid, fl, l)
}

// zeroAligned serves a range aligned for writing. What of it is not aligned
// for native zeroing is written.
func (c *Child) zeroAligned(f *frame, s span, fl Flags, l *Limits) error {
	off, end, mask := s.off, s.end, int64(l.ZeroAlign)-1
	from, to := (off+mask)&^mask, end
	if end != s.size {
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
	// Steps end where a write could go on, if the node gives up.
	step := atMost(l.MaxZero, int64(max(l.ZeroAlign, l.WriteAlign))-1)
	for off < end {
		k := min(step, end-off)
		f.rq.queue.c.nodeCalls.Add(1)
		err := c.node.WriteZeroes(f.rq, off, k, fl&(c.info.ZeroFlags|NoFallback))
		if err != nil && fl&c.info.ZeroFlags&FUA != 0 {
			c.in.durableFailed(err)
		}
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
	return nil
}

// BlockStatus describes a run of the content that starts at off, at most n
// bytes and at least one.
func (c *Child) BlockStatus(rq *Req, off, n int64) (Extent, error) {
	size := c.info.Size()
	if off < 0 || off >= size || n <= 0 {
		return Extent{}, c.fail(rq, OpStatus, off, n, errRange(size))
	}
	f := rq.push()
	if err := c.enter(f, off, off+min(n, size-off), false); err != nil {
		return Extent{}, c.fail(rq, OpStatus, off, n, err)
	}
	defer c.leave(f)
	e, err := c.status(rq, off, n)
	if err != nil {
		return Extent{}, c.fail(rq, OpStatus, off, n, err)
	}
	return e, nil
}

func (c *Child) status(rq *Req, off, n int64) (Extent, error) {
	size := c.info.Size()
	if off >= size {
		return Extent{}, errRange(size) // it shrank while the request waited
	}
	s := spanOf(off, off+min(n, size-off), size, c.info.Limits().ReadAlign)
	e, err := c.node.BlockStatus(rq, s.aOff, s.aEnd-s.aOff)
	if err == nil && e.Len <= s.off-s.aOff {
		// Finer than it may be: of the part asked for nothing is known.
		e = Extent{Len: s.aEnd - s.aOff, Data: true, Allocated: true, Host: -1}
	}
	return trimExtent(e, s), err
}

// trimExtent cuts what a node said of the aligned range down to what was asked.
func trimExtent(e Extent, s span) Extent {
	skip := s.off - s.aOff
	e.Len = min(e.Len-skip, s.end-s.off)
	e.EOF = s.off+e.Len == s.size
	if e.Host >= 0 {
		e.Host += skip
	}
	return e
}

// Truncate sets the node's size. It runs alone. On growth the new part reads
// as zeroes, allocated as pre says.
func (c *Child) Truncate(rq *Req, size int64, pre Prealloc) error {
	if err := c.checkTruncate(size); err != nil {
		return c.fail(rq, OpTruncate, 0, size, err)
	}
	f := rq.push()
	if err := c.enter(f, -2, everything, true); err != nil {
		return c.fail(rq, OpTruncate, 0, size, err)
	}
	defer c.leave(f)
	if err := c.node.Truncate(rq, size, pre); err != nil {
		return c.fail(rq, OpTruncate, 0, size, err)
	}
	return nil
}

func (c *Child) checkTruncate(size int64) error {
	switch {
	case size < 0:
		return errNegative
	case size > MaxSize:
		return errTooLarge
	case c.info.ReadOnly:
		return errReadOnly
	case c.perm&PermResize == 0:
		return errPerm
	}
	return nil
}
