package nbd

import (
	"fmt"
	"io"
	"net"
	"runtime/debug"
)

// sendBuffer is what headers and small payloads are gathered in, in bytes.
const sendBuffer = 64 << 10

// copyMax is the largest payload that is copied behind its header, in bytes:
// up to there a copy costs less than a further element of the vector.
const copyMax = 16 << 10

// enqueue hands the call to whoever sends, and sends itself if nobody does.
// Only an error means that the call was not taken.
func (c *Client) enqueue(cl *call, reply bool) error {
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		return c.err
	}
	if reply {
		cl.active.Store(cl.rq.Cookie)
	}
	c.queue = append(c.queue, cl)
	if c.sending {
		c.mu.Unlock()
		return nil
	}
	c.sending = true
	c.mu.Unlock()
	c.sendQueue(cl)
	return nil
}

// sendQueue sends what is queued, and what others queue meanwhile, until there
// is no more. A caller whose own call is answered before that hands the duty
// on, so that no one is kept for the others' sake.
func (c *Client) sendQueue(own *call) {
	for {
		c.mu.Lock()
		batch, failed := c.queue, c.err != nil
		if len(batch) == 0 {
			c.sending = false
			c.mu.Unlock()
			return
		}
		if own != nil && own.refs.Load() == 0 {
			c.mu.Unlock()
			go c.sendQueue(nil)
			return
		}
		c.queue, c.spare = c.spare[:0], batch
		c.mu.Unlock()
		if !failed {
			if err := c.w.send(batch); err != nil {
				c.fail(fmt.Errorf("writing to the server: %w", err))
			}
		}
		for _, cl := range batch {
			cl.unref()
		}
	}
}

// sender writes requests to the connection, many at once.
type sender struct {
	conn     io.Writer
	extended bool
	buf      []byte // headers and small payloads; never grows, segs point into it
	cut      int    // what of buf is in segs
	segs     [][]byte
	vec      net.Buffers // consumed by its own write
}

func (w *sender) init(conn io.Writer, extended bool) {
	w.conn, w.extended = conn, extended
	w.buf = make([]byte, 0, sendBuffer)
}

func (w *sender) send(batch []*call) (err error) {
	defer recoverFault(&err)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	for _, cl := range batch {
		if err := w.add(cl); err != nil {
			return err
		}
	}
	return w.flush()
}

// add gathers one request.
func (w *sender) add(cl *call) error {
	if cap(w.buf)-len(w.buf) < ExtendedRequestLen+copyMax {
		if err := w.flush(); err != nil {
			return err
		}
	}
	n := len(w.buf)
	w.buf = w.buf[:n+ExtendedRequestLen]
	w.buf = w.buf[:n+PutRequest(w.buf[n:], &cl.rq, w.extended)]
	w.buf = append(w.buf, cl.payload...)
	if cl.rq.Type != CmdWrite {
		return nil
	}
	for _, p := range cl.vec {
		if cl.length <= copyMax {
			w.buf = append(w.buf, p...)
			continue
		}
		w.cutSegment()
		w.segs = append(w.segs, p)
	}
	return nil
}

// cutSegment moves what is new in buf to segs.
func (w *sender) cutSegment() {
	if len(w.buf) > w.cut {
		w.segs = append(w.segs, w.buf[w.cut:])
		w.cut = len(w.buf)
	}
}

// flush writes what has been gathered.
func (w *sender) flush() error {
	w.cutSegment()
	var err error
	if len(w.segs) == 1 {
		_, err = w.conn.Write(w.segs[0])
	} else {
		w.vec = w.segs
		_, err = w.vec.WriteTo(w.conn)
	}
	clear(w.segs) // the callers' memory is not ours to hold
	w.segs = w.segs[:0]
	w.buf, w.cut = w.buf[:0], 0
	return err
}
