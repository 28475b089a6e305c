package nbd

import (
	"time"

	"github.com/platter-storage/platter/block"
	wire "github.com/platter-storage/platter/wire/nbd"
)

// Limits to a disk hold before its requests are begun: one that has to wait is
// a header in the read buffer, and has neither slot nor memory. The reader reads
// no further meanwhile, so that what is behind it stays with the client; what
// the reader has begun, and other connections, go on.

// Limiter holds requests back that come too fast. Several exports may share
// one: its method is called by the readers of all their connections, must not
// wait, and must not allocate.
type Limiter interface {
	// Admit asks for a request of n bytes at nowNs of the environment's
	// clock. 0 admits it and counts it; otherwise it is not counted and the
	// connection asks again after waitNs nanoseconds. Reads, writes, write
	// zeroes, trims (block.OpDiscard) and cache requests (block.OpRead) are
	// asked for, those of one connection in the order in which they came.
	Admit(op block.Op, n, nowNs int64) (waitNs int64)
}

// maxPause is for how long the reader waits before it looks whether the client
// is still there, and asks again.
const maxPause = time.Second

// turn is what the reader waits with for the limiter.
type turn struct {
	limiter Limiter // nil: nobody waits
	timer   *time.Timer
	hangup  hangup
}

func (t *turn) init(c *conn) {
	if t.limiter = c.exp.Limiter; t.limiter == nil {
		return
	}
	t.timer = time.NewTimer(time.Hour)
	t.timer.Stop()
	t.hangup.init(c.nc)
}

// limited is what a request asks of the limiter, if anything.
func limited(rq *wire.Request) (op block.Op, n int64, yes bool) {
	switch n = int64(rq.Length); rq.Type {
	case wire.CmdRead:
		return block.OpRead, n, true
	case wire.CmdWrite:
		return block.OpWrite, n, true
	case wire.CmdWriteZeroes:
		return block.OpZero, n, true
	case wire.CmdTrim:
		return block.OpDiscard, n, true
	case wire.CmdCache:
		return block.OpRead, min(n, maxPrefetch), true
	}
	return 0, 0, false
}

// awaitTurn waits until the limiter admits the request, or the connection is
// stopped. What was gathered before it is not held up. An error ends the
// connection.
func (c *conn) awaitTurn(rq *wire.Request) error {
	op, n, yes := limited(rq)
	for yes && c.stopped() == 0 {
		wait := c.turn.limiter.Admit(op, n, c.q.Env().Now())
		if wait <= 0 {
			return nil
		}
		if err := c.push(); err != nil {
			return err
		}
		if c.turn.hangup.seen() {
			c.cut()
			return errCut
		}
		c.pause(wait)
	}
	return nil
}

// pause waits for ns nanoseconds, at most for maxPause, or until the connection is
// stopped or cut.
func (c *conn) pause(ns int64) {
	c.turn.timer.Reset(min(time.Duration(ns), maxPause))
	select {
	case <-c.turn.timer.C:
	case <-c.ending:
	case <-c.ctx.Done():
	}
	c.turn.timer.Stop()
}
