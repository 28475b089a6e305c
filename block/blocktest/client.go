package blocktest

import (
	"testing"

	"github.com/platter-storage/platter/block"
)

// Client is a user of an edge with a queue of its own: one call, one request.
// It may be used from many goroutines.
type Client struct {
	Child *block.Child
	Queue *block.Queue
	Group *block.QueueGroup
}

// NewClient makes a client of c.
func NewClient(t testing.TB, c *block.Child) *Client {
	t.Helper()
	g := block.NewQueueGroup()
	cl := &Client{Child: c, Group: g, Queue: block.NewQueue(c.Instance().Env(), g)}
	t.Cleanup(cl.Queue.Close)
	return cl
}

// Do runs one request that moves no data of its own.
func (c *Client) Do(op block.Op, f func(rq *block.Req) error) error { return c.do(op, 0, f) }

func (c *Client) do(op block.Op, n int64, f func(rq *block.Req) error) error {
	rq := c.Queue.Begin()
	err := f(rq)
	c.Queue.End(rq, op, n, err)
	return err
}

// Read fills b from off.
func (c *Client) Read(off int64, b ...[]byte) error {
	v := block.Vec(b)
	return c.do(block.OpRead, v.Len(), func(rq *block.Req) error { return c.Child.Preadv(rq, off, v, 0) })
}

// Write writes b at off.
func (c *Client) Write(off int64, fl block.Flags, b ...[]byte) error {
	v := block.Vec(b)
	return c.do(block.OpWrite, v.Len(), func(rq *block.Req) error { return c.Child.Pwritev(rq, off, v, fl) })
}

// Zero makes a range read as zeroes.
func (c *Client) Zero(off, n int64, fl block.Flags) error {
	return c.do(block.OpZero, n, func(rq *block.Req) error { return c.Child.WriteZeroes(rq, off, n, fl) })
}

// Discard discards a range.
func (c *Client) Discard(off, n int64) error {
	return c.do(block.OpDiscard, n, func(rq *block.Req) error { return c.Child.Discard(rq, off, n) })
}

// Flush flushes.
func (c *Client) Flush() error { return c.Do(block.OpFlush, c.Child.Flush) }

// Truncate sets the size.
func (c *Client) Truncate(size int64) error {
	return c.Do(block.OpTruncate, func(rq *block.Req) error { return c.Child.Truncate(rq, size, block.PreallocOff) })
}

// Status describes a run of the content.
func (c *Client) Status(off, n int64) (e block.Extent, err error) {
	err = c.do(block.OpStatus, n, func(rq *block.Req) error {
		e, err = c.Child.BlockStatus(rq, off, n)
		return err
	})
	return e, err
}

// ReadFast reads through the fast lane where the node answers in memory or
// zeroes; ok tells.
func (c *Client) ReadFast(off int64, b ...[]byte) (ok bool, err error) {
	return c.fast(block.OpRead, off, block.Vec(b), 0)
}

// WriteFast writes through the fast lane where the node answers in memory.
func (c *Client) WriteFast(off int64, fl block.Flags, b ...[]byte) (ok bool, err error) {
	return c.fast(block.OpWrite, off, block.Vec(b), fl)
}

func (c *Client) fast(op block.Op, off int64, v block.Vec, fl block.Flags) (ok bool, err error) {
	n := v.Len()
	rq := c.Queue.Begin()
	defer func() { c.Queue.End(rq, op, n, err) }()
	m, ok := c.Child.Map(rq, op, off, v, fl)
	if !ok {
		return false, nil
	}
	moved, ioErr := complete(op, m, v, fl)
	var again bool
	if err, again = c.Child.Finish(rq, n, moved, ioErr); !again {
		return true, err
	}
	if op == block.OpRead {
		return true, c.Child.Preadv(rq, off, v, fl)
	}
	return true, c.Child.Pwritev(rq, off, v, fl)
}

// complete moves the bytes of a mapped request, as an export does.
func complete(op block.Op, m block.Mapping, v block.Vec, fl block.Flags) (int64, error) {
	n := v.Len()
	switch {
	case m.Kind == block.MapFile:
		return submit(op, m, v, fl)
	case m.Kind == block.MapMemory && op == block.OpRead:
		v.CopyIn(m.Mem[:n], 0)
	case m.Kind == block.MapMemory:
		v.CopyOut(m.Mem[:n], 0)
	case op == block.OpRead:
		v.Zero(0, n)
	}
	return n, nil
}
