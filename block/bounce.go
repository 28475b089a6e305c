package block

import "github.com/platter-storage/platter/internal/bufpool"

// bounceLen is the most bytes that one bounce buffer moves at a time: a
// multiple of align.
func (l *Limits) bounceLen(align uint32) int64 {
	n := int64(bufpool.MaxBuf)
	if l.MaxTransfer != 0 {
		n = min(n, int64(l.MaxTransfer))
	}
	return n &^ int64(align-1)
}

// buffer gives n bytes of our own, aligned to OptMem: a buffer of a power of
// two is at a multiple of it.
func (f *frame) buffer(n int64, l *Limits) ([]byte, error) {
	b, err := f.rq.Buffer(int(max(n, int64(l.OptMem))))
	if err != nil {
		return nil, err
	}
	return b[:n], nil
}

// one makes the vector of a single buffer, in the frame's reused memory.
func (f *frame) one(b []byte) Vec {
	f.vec = append(f.vec[:0], b)
	return f.vec
}

// readLinear reads the aligned range of s through a bounce buffer, piece by
// piece, and copies what of it was asked for to v from its byte at. A failed
// piece is not copied.
func (c *Child) readLinear(f *frame, s span, v Vec, at int64, l *Limits) error {
	chunk := min(l.bounceLen(l.ReadAlign), s.aEnd-s.aOff)
	buf, err := f.buffer(chunk, l)
	if err != nil {
		return err
	}
	defer f.rq.Release(buf)
	for pos := s.aOff; pos < s.aEnd; pos += chunk {
		b := buf[:min(chunk, s.aEnd-pos)]
		if err := c.nodeRead(f.rq, pos, f.one(b)); err != nil {
			return err
		}
		from, to := max(pos, s.off), min(pos+int64(len(b)), s.end)
		v.CopyIn(b[from-pos:to-pos], at+from-s.off)
	}
	return nil
}

// writeLinear writes the aligned request s, whose data begins at byte at of v,
// through a bounce buffer.
func (c *Child) writeLinear(f *frame, s span, v Vec, at int64, fl Flags, l *Limits) error {
	buf, err := f.buffer(min(l.bounceLen(l.WriteAlign), s.end-s.off), l)
	if err != nil {
		return err
	}
	defer f.rq.Release(buf)
	return c.writeThrough(f, s, v, at, buf, fl)
}

// writeThrough writes [s.off, s.end) from byte at of v, through buf.
func (c *Child) writeThrough(f *frame, s span, v Vec, at int64, buf []byte, fl Flags) error {
	for pos := s.off; pos < s.end; pos += int64(len(buf)) {
		b := buf[:min(int64(len(buf)), s.end-pos)]
		v.CopyOut(b, at+pos-s.off)
		if err := c.nodeWrite(f.rq, pos, f.one(b), fl); err != nil {
			return err
		}
	}
	return nil
}

// modifyOnce is read-modify-write where the aligned range fits one buffer: the
// first and the last block are read into their places as far as the request
// does not cover them, its data goes between, and one write follows. If a read
// fails nothing is written.
func (c *Child) modifyOnce(f *frame, s span, v Vec, fl Flags, l *Limits) error {
	buf, err := f.buffer(s.aEnd-s.aOff, l)
	if err != nil {
		return err
	}
	defer f.rq.Release(buf)
	if err := c.readEnds(f, s, buf, l); err != nil {
		return err
	}
	v.CopyOut(buf[s.off-s.aOff:s.end-s.aOff], 0)
	return c.nodeWrite(f.rq, s.aOff, f.one(buf), fl)
}

// blockLen is the unit of read-modify-write. It is no less than what memory
// must be aligned to, so that each block of a buffer may be read on its own.
func (l *Limits) blockLen() int64 { return int64(max(l.ReadAlign, l.WriteAlign, l.MinMem)) }

// readEnds reads into buf, which stands for the aligned range of s, the blocks
// that the request covers in part. One read where they are the same block or
// neighbours.
func (c *Child) readEnds(f *frame, s span, buf []byte, l *Limits) error {
	a, n := l.blockLen(), int64(len(buf))
	head, tail := s.off > s.aOff, s.end < s.aEnd
	if n <= a || n <= 2*a && head && tail {
		return c.nodeRead(f.rq, s.aOff, f.one(buf))
	}
	if head {
		if err := c.nodeRead(f.rq, s.aOff, f.one(buf[:a])); err != nil {
			return err
		}
	}
	if tail {
		from := (n - 1) &^ (a - 1)
		return c.nodeRead(f.rq, s.aOff+from, f.one(buf[from:]))
	}
	return nil
}

// ends are the partial blocks at both ends of an unaligned request, in memory,
// and the aligned range between them.
type ends struct {
	head, tail []byte // nil where that end is aligned
	mid        span
}

// readBothEnds reads the partial blocks into buf, which has room for two
// blocks. If either read fails nothing has been written.
func (c *Child) readBothEnds(f *frame, s span, buf []byte, l *Limits) (e ends, err error) {
	a := l.blockLen()
	e.mid = span{off: s.off, end: s.end}
	if s.off > s.aOff {
		e.head = buf[:min(a, s.aEnd-s.aOff)]
		e.mid.off = min(s.aOff+a, s.end)
		if err = c.nodeRead(f.rq, s.aOff, f.one(e.head)); err != nil {
			return e, err
		}
	}
	if last := (s.end - 1) &^ (a - 1); s.end < s.aEnd && last >= e.mid.off {
		e.mid.end = last
		e.tail = buf[a : a+s.aEnd-last]
		err = c.nodeRead(f.rq, last, f.one(e.tail))
	}
	return e, err
}

// modifyEnds is read-modify-write of a request too long for one buffer: both
// partial blocks are read before anything is written; then they are written,
// and between them the rest through the same buffer, so that no request ever
// waits for a buffer while it holds another.
func (c *Child) modifyEnds(f *frame, s span, v Vec, fl Flags, l *Limits) error {
	a := l.blockLen()
	chunk := min(l.bounceLen(uint32(a)), (bufpool.MaxBuf-2*a)&^(a-1))
	buf, err := f.buffer(2*a+chunk, l)
	if err != nil {
		return err
	}
	defer f.rq.Release(buf)
	e, err := c.readBothEnds(f, s, buf, l)
	if err != nil {
		return err
	}
	if e.head != nil {
		v.CopyOut(e.head[s.off-s.aOff:], 0)
		if err := c.nodeWrite(f.rq, s.aOff, f.one(e.head), fl); err != nil {
			return err
		}
	}
	if err := c.writeThrough(f, e.mid, v, e.mid.off-s.off, buf[2*a:], fl); err != nil {
		return err
	}
	if e.tail != nil {
		v.CopyOut(e.tail[:s.end-e.mid.end], e.mid.end-s.off)
		return c.nodeWrite(f.rq, e.mid.end, f.one(e.tail), fl)
	}
	return nil
}
