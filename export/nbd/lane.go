package nbd

import (
	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/bufpool"
	"github.com/platter-storage/platter/internal/rawio"
	wire "github.com/platter-storage/platter/wire/nbd"
)

// Disks that wait: every request gets a slot. Reads and writes go straight to
// the file below where the node can say where they lie, all that one read of
// the socket brought in one system call. Everything else goes to a worker. A
// lone request is served by the reader: nothing else is faster.

// maxPlaced is how many bytes the reader reads before it sends them.
const maxPlaced = 256 << 10

// start gives a request to its slot and starts its clock.
func (c *conn) start(s *slot, rq *wire.Request, op block.Op) {
	s.rq, s.op = *rq, op
	s.req = c.beginReq()
}

// read serves a read.
func (c *conn) read(rq *wire.Request) error {
	if rq.Length > bufpool.MaxBuf && c.struc && rq.Flags&wire.CmdFlagDF == 0 {
		c.readPieces(rq)
		return nil
	}
	s := c.takeSlot()
	n := int(rq.Length)
	if c.hold(s, n, true) == 0 {
		c.releaseMine(s)
		return c.readLong(rq)
	}
	trim(s, n)
	c.start(s, rq, block.OpRead)
	c.issue(s)
	return nil
}

// readPieces splits a read whose reply may come in chunks.
func (c *conn) readPieces(rq *wire.Request) {
	p := c.parent(rq, block.OpRead)
	for off, left := rq.Offset, int(rq.Length); left > 0 && !c.broken.Load(); {
		s := c.takeSlot()
		k := c.hold(s, min(left, bufpool.MaxBuf), false)
		k = pieceLen(off, left, k)
		trim(s, k)
		c.startPiece(p, s, off, k)
		c.issue(s)
		off, left = off+uint64(k), left-k
	}
	c.mine--
	c.pieceDone(p)
}

// parent takes a slot for a request that will be split. It is the reader's
// until the reader says that there are no more pieces.
func (c *conn) parent(rq *wire.Request, op block.Op) *slot {
	p := c.takeSlot()
	p.rq, p.op = *rq, op
	p.pieces.Store(1)
	return p
}

func (c *conn) startPiece(p, s *slot, off uint64, n int) {
	rq := p.rq
	rq.Offset, rq.Length = off, uint64(n)
	p.pieces.Add(1)
	s.parent = p
	c.start(s, &rq, p.op)
}

// trim cuts a slot's memory to n bytes.
func trim(s *slot, n int) {
	last := len(s.vec) - 1
	n -= last * bufpool.MaxBuf
	s.vec[last] = s.vec[last][:n:n]
}

// write serves a write, whose data is here or about to come.
func (c *conn) write(rq *wire.Request) error {
	s, left, off := c.takeSlot(), int(rq.Length), rq.Offset
	var p *slot
	for {
		k := c.hold(s, min(left, bufpool.MaxBuf), false)
		k = pieceLen(off, left, k)
		trim(s, k)
		if err := c.receive(s.vec[0]); err != nil {
			c.releaseMine(s)
			c.giveUp(p)
			return err
		}
		if p == nil && k < left {
			p = c.parent(rq, block.OpWrite)
		}
		if p == nil {
			c.start(s, rq, block.OpWrite)
		} else {
			c.startPiece(p, s, off, k)
		}
		c.issue(s)
		if off, left = off+uint64(k), left-k; left == 0 {
			c.noMore(p)
			return nil
		}
		s = c.takeSlot()
	}
}

// noMore says that p, if there is one, has all its pieces.
func (c *conn) noMore(p *slot) {
	if p != nil {
		c.mine--
		c.pieceDone(p)
	}
}

// giveUp is noMore for a write whose data does not come: what has come may be
// written, but nobody is told that all is.
func (c *conn) giveUp(p *slot) {
	if p != nil {
		c.mu.Lock()
		p.errno, p.msg, p.errAt = wire.ESHUTDOWN, "the connection ended before the data had come", 0
		c.mu.Unlock()
	}
	c.noMore(p)
}

// issue sends a read or write on its way. The slot is the reader's no more.
func (c *conn) issue(s *slot) {
	c.mine--
	if s.parent == nil && (c.inPlace || c.lone()) {
		c.runNow(s)
		return
	}
	if c.cached && s.op == block.OpWrite {
		c.toWorker(s) // an engine hands it to a thread as well, at twice the cost
		return
	}
	m, ok := c.child.Map(s.req, s.op, int64(s.rq.Offset), s.vec, writeFlags(&s.rq))
	switch {
	case !ok:
		c.toWorker(s)
	case m.Kind == block.MapFile:
		c.gather(s, m)
	default:
		c.moveInMemory(s, m)
	}
}

// runNow serves a read or write on the reader's time. What was read is sent
// before there is too much of it for the caches.
func (c *conn) runNow(s *slot) {
	var err error
	if s.op == block.OpRead {
		if c.splice(s) {
			return
		}
		err = c.readNow(s.req, int64(s.rq.Offset), s.vec)
		c.placed += int(s.rq.Length)
	} else {
		err = c.writeNow(s.req, int64(s.rq.Offset), s.vec, writeFlags(&s.rq))
	}
	c.finish(s, err)
	if c.placed >= maxPlaced {
		_ = c.push() // that it was cut is seen when more is read
	}
}

// gather adds a request to those that will be submitted together.
func (c *conn) gather(s *slot, m block.Mapping) {
	if c.leaf != m.Leaf {
		c.submit()
		c.leaf = m.Leaf
	}
	s.io.Kind = rawio.Read
	if s.op == block.OpWrite {
		s.io.Kind = rawio.Write
	}
	s.io.Sync = s.op == block.OpWrite && s.rq.Flags&wire.CmdFlagFUA != 0
	s.io.Off, s.io.Vec = m.Off, s.vec
	c.ios = append(c.ios, &s.io)
}

// submit hands the gathered requests to the file.
func (c *conn) submit() {
	if len(c.ios) > 0 {
		c.leaf.Submit(c.ios)
		c.ios = c.ios[:0]
	}
}

// ioDone ends a request to the file. It runs on the engine's goroutine and
// does not wait.
func (c *conn) ioDone(io *rawio.IO) {
	s := c.slots[io.Owner]
	err, again := c.child.Finish(s.req, int64(s.rq.Length), int64(io.N), io.Err)
	if again {
		c.toWorker(s)
		return
	}
	c.finish(s, err)
	c.wakeWriter()
}

// moveInMemory serves a request whose bytes turned out to be in memory.
func (c *conn) moveInMemory(s *slot, m block.Mapping) {
	switch {
	case m.Kind == block.MapZero:
		s.zero = s.op == block.OpRead
	case s.op == block.OpRead:
		s.vec.CopyIn(m.Mem, 0)
	default:
		s.vec.CopyOut(m.Mem, 0)
	}
	n := int64(s.rq.Length)
	err, _ := c.child.Finish(s.req, n, n, nil)
	c.finish(s, err)
}

// finish takes the result of a request that ran. The slot goes to who sends,
// or, of a piece that leaves nothing to send, is free. It does not wait.
func (c *conn) finish(s *slot, err error) {
	c.q.End(s.req, s.op, int64(s.rq.Length), err)
	s.req = nil
	if err != nil {
		s.errno, s.msg = wire.ErrnoOf(err), c.whyFailed(&s.rq, err)
	}
	p := s.parent
	if p == nil {
		c.ready.push(s)
		return
	}
	if s.errno != 0 {
		c.noteError(p, s)
	}
	if s.errno != 0 || s.op == block.OpWrite {
		c.release(s)
	} else {
		c.ready.push(s)
	}
	c.pieceDone(p)
}

// noteError keeps the first error of a split request.
func (c *conn) noteError(p, s *slot) {
	c.mu.Lock()
	if p.errno == 0 {
		p.errno, p.msg, p.errAt = s.errno, s.msg, s.rq.Offset
	}
	c.mu.Unlock()
}

// pieceDone counts down the pieces of p, and makes it ready behind the last.
func (c *conn) pieceDone(p *slot) {
	if p.pieces.Add(-1) == 0 {
		c.ready.push(p)
	}
}
