package nbd

import (
	"github.com/platter-storage/platter/block"
	wire "github.com/platter-storage/platter/wire/nbd"
)

const (
	// maxWorkers is how many requests of one connection may block at once.
	maxWorkers = 16
	// maxInPlace is the longest range that the reader discards, zeroes or
	// prefetches itself on a disk in memory.
	maxInPlace = 1 << 20
	// maxStep bounds how much is discarded or zeroed in one call, so that a
	// connection can be ended in between. A multiple of every block.
	maxStep = 256 << 20
	// maxPrefetch bounds what one cache request reads.
	maxPrefetch = wire.MaxPayload
)

// other serves requests without data: they may take long, and workers run them
// where they may.
func (c *conn) other(rq *wire.Request) error {
	s := c.takeSlot()
	quick := c.inline
	switch rq.Type {
	case wire.CmdFlush:
		c.start(s, rq, block.OpFlush)
	case wire.CmdTrim:
		c.start(s, rq, block.OpDiscard)
		quick = quick && rq.Length <= maxInPlace
	case wire.CmdWriteZeroes:
		c.start(s, rq, block.OpZero)
		quick = quick && rq.Length <= maxInPlace
	case wire.CmdCache:
		c.tryHold(s, int(min(rq.Length, privateLen)), true)
		c.start(s, rq, block.OpRead)
		quick = quick && rq.Length <= maxInPlace
	case wire.CmdBlockStatus:
		if e, err := c.startStatus(s, rq); e != 0 || err != nil {
			c.releaseMine(s)
			if err != nil {
				return err
			}
			return c.answer(rq, e, c.whyRefused(rq, e))
		}
	}
	c.mine--
	if quick {
		c.run1(s)
	} else {
		c.toWorker(s)
	}
	return nil
}

// run1 runs a request through the blocking methods. The answer is left on the
// ready list.
func (c *conn) run1(s *slot) { c.finish(s, c.perform(s)) }

func (c *conn) perform(s *slot) error {
	off, n := int64(s.rq.Offset), int64(s.rq.Length)
	switch s.rq.Type {
	case wire.CmdRead:
		return c.child.Preadv(s.req, off, s.vec, 0)
	case wire.CmdWrite:
		return c.child.Pwritev(s.req, off, s.vec, writeFlags(&s.rq))
	case wire.CmdFlush:
		return c.child.Flush(s.req)
	case wire.CmdTrim:
		return c.discard(s.req, off, n, writeFlags(&s.rq))
	case wire.CmdWriteZeroes:
		return c.zero(s.req, off, n, zeroFlags(&s.rq))
	case wire.CmdCache:
		return c.prefetch(s, off, n)
	}
	return c.blockStatus(s)
}

// zeroFlags are the flags of write zeroes.
func zeroFlags(rq *wire.Request) block.Flags {
	fl := writeFlags(rq)
	if rq.Flags&wire.CmdFlagNoHole == 0 {
		fl |= block.MayUnmap
	}
	if rq.Flags&wire.CmdFlagFastZero != 0 {
		fl |= block.NoFallback
	}
	return fl
}

// step is the length of the first step of n bytes at off.
func step(off, n int64) int64 { return min(n, maxStep-off&(maxStep-1)) }

func (c *conn) discard(req *block.Req, off, n int64, fl block.Flags) error {
	for n > 0 {
		k := step(off, n)
		if err := c.child.Discard(req, off, k); err != nil {
			return err
		}
		if off, n = off+k, n-k; n > 0 && c.broken.Load() {
			return wire.ESHUTDOWN
		}
	}
	if fl&block.FUA != 0 {
		return c.child.Flush(req)
	}
	return nil
}

// zero makes a range durable once, behind the last step.
func (c *conn) zero(req *block.Req, off, n int64, fl block.Flags) error {
	if step(off, n) == n {
		return c.child.WriteZeroes(req, off, n, fl)
	}
	for n > 0 {
		k := step(off, n)
		if err := c.child.WriteZeroes(req, off, k, fl&^block.FUA); err != nil {
			return err
		}
		if off, n = off+k, n-k; n > 0 && c.broken.Load() {
			return wire.ESHUTDOWN
		}
	}
	if fl&block.FUA != 0 {
		return c.child.Flush(req)
	}
	return nil
}

// prefetch reads a range and drops it. It is a favour: without memory it is not
// done.
func (c *conn) prefetch(s *slot, off, n int64) error {
	if len(s.vec) == 0 {
		return nil
	}
	buf := s.vec[0]
	for end := off + min(n, maxPrefetch); off < end && !c.broken.Load(); {
		s.vec[0] = buf[:min(int64(len(buf)), end-off)]
		if err := c.child.Preadv(s.req, off, s.vec, 0); err != nil {
			return err
		}
		off += int64(len(s.vec[0]))
	}
	return nil
}

// toWorker hands a request to a worker, a new one if all are busy and there
// may be more. It does not wait: the queue has room for all slots.
func (c *conn) toWorker(s *slot) {
	if c.idle.Add(-1) < 0 {
		c.mu.Lock()
		more := c.workers < maxWorkers
		if more {
			c.workers++
		}
		c.mu.Unlock()
		if more {
			c.idle.Add(1)
			c.helpers.Go(c.worker)
		}
	}
	c.work <- s
}

// worker runs what may block, and sends what is ready then.
func (c *conn) worker() {
	for s := range c.work {
		c.run1(s)
		c.kick()
		c.idle.Add(1)
	}
}
