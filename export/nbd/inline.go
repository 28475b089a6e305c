package nbd

import (
	"syscall"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/bufpool"
	wire "github.com/platter-storage/platter/wire/nbd"
)

// Disks in memory, or in the page cache: the reader serves reads and writes in
// place. Nothing waits but the socket, and the replies to all that one read
// brought go out in one write.

// maxCopied is the largest read that is copied behind its header; a longer one
// is sent from where it lies.
const maxCopied = 16 << 10

// restLen is the piece in which the rest of a reply is sent that could be
// mapped at first.
const restLen = 64 << 10

// mapRead asks where a read's bytes are. It answers only if they are nowhere
// or in memory.
func (c *conn) mapRead(rq *block.Req, off, n int64) (block.Mapping, bool) {
	// The vector is for its length: nothing is written there.
	return c.mapMemory(rq, block.OpRead, off, c.vec1(zeroes()[:n]), 0)
}

func (c *conn) mapMemory(rq *block.Req, op block.Op, off int64, v block.Vec, fl block.Flags) (block.Mapping, bool) {
	m, ok := c.child.Map(rq, op, off, v, fl)
	if ok && m.Kind == block.MapFile {
		_, _ = c.child.Finish(rq, v.Len(), 0, syscall.EAGAIN) // goes on in the slow lane
		return m, false
	}
	return m, ok
}

// vec1 is a vector of b alone.
func (c *conn) vec1(b []byte) block.Vec {
	c.one[0] = b
	return c.one
}

// beginReq takes a request object of this connection.
func (c *conn) beginReq() *block.Req {
	rq := c.q.Begin()
	rq.SetContext(c.ctx)
	return rq
}

func (c *conn) readInline(rq *wire.Request) error {
	if rq.Length > maxCopied {
		return c.readLong(rq)
	}
	n := int(rq.Length)
	if err := c.outRoom(wire.MaxReplyHead + n); err != nil {
		return err
	}
	at := len(c.out)
	h := at + c.putDataHead(c.out[at:cap(c.out)], rq)
	dst := c.out[h : h+n : h+n]
	req := c.beginReq()
	zero, err := c.load(req, int64(rq.Offset), dst, c.struc && rq.Flags&wire.CmdFlagDF == 0)
	c.q.End(req, block.OpRead, int64(n), err)
	switch {
	case err != nil:
		return c.answer(rq, wire.ErrnoOf(err), c.whyFailed(rq, err))
	case zero:
		h = at + wire.PutChunkHole(c.out[at:cap(c.out)], rq, c.ext, wire.ReplyFlagDone, rq.Offset, uint32(n))
		c.out = c.out[:h]
	default:
		c.out = c.out[:h+n]
	}
	return nil
}

// putDataHead writes what goes before the data of a read that is answered in
// one piece.
func (c *conn) putDataHead(b []byte, rq *wire.Request) int {
	if c.struc {
		return wire.PutChunkData(b, rq, c.ext, wire.ReplyFlagDone, rq.Offset, uint32(rq.Length))
	}
	return wire.PutSimpleReply(b, rq, 0)
}

// load reads into dst. Where holes will do and all is zeroes for certain, it
// says so instead.
func (c *conn) load(req *block.Req, off int64, dst []byte, holes bool) (zero bool, err error) {
	v := c.vec1(dst)
	if c.inline && !c.noMap {
		m, ok := c.mapMemory(req, block.OpRead, off, v, 0)
		if ok {
			zero = m.Kind == block.MapZero && holes
			switch {
			case m.Kind == block.MapMemory:
				copy(dst, m.Mem)
			case !zero:
				clear(dst)
			}
			err, _ = c.child.Finish(req, int64(len(dst)), int64(len(dst)), nil)
			return zero, err
		}
		c.noMap = m.Kind == block.MapFile
	}
	return false, c.readNow(req, off, v)
}

// readNow and writeNow are the blocking methods, on the reader's time.

func (c *conn) readNow(req *block.Req, off int64, v block.Vec) error {
	c.submit() // what is in flight must not wait for what may wait for it
	if !c.cached {
		return c.child.Preadv(req, off, v, 0)
	}
	t := c.q.Env().Now()
	err := c.child.Preadv(req, off, v, 0)
	c.pace.took(c.q.Env().Now()-t, v.Len(), slowRead)
	return err
}

func (c *conn) writeNow(req *block.Req, off int64, v block.Vec, fl block.Flags) error {
	c.submit()
	if !c.cached {
		return c.child.Pwritev(req, off, v, fl)
	}
	t := c.q.Env().Now()
	err := c.child.Pwritev(req, off, v, fl)
	c.pace.took(c.q.Env().Now()-t, v.Len(), slowWrite)
	return err
}

// readLong answers a read without a copy where the disk's memory can be mapped,
// and piece by piece otherwise.
func (c *conn) readLong(rq *wire.Request) error {
	req := c.beginReq()
	err := c.sendLong(req, rq)
	c.q.End(req, block.OpRead, int64(rq.Length), err)
	if e, failed := err.(*readError); failed {
		return c.answer(rq, wire.ErrnoOf(e.err), c.whyFailed(rq, e.err))
	}
	return err
}

// readError is a read that failed before its reply was begun.
type readError struct{ err error }

func (e *readError) Error() string { return e.err.Error() }
func (e *readError) Unwrap() error { return e.err }

func (c *conn) sendLong(req *block.Req, rq *wire.Request) error {
	if c.sock == nil || c.noMap || !c.inline {
		return c.sendPieces(req, rq)
	}
	// Room and the right to send first: both may wait for the client, which
	// must not happen while the request is in flight at the disk.
	if err := c.outRoom(wire.MaxReplyHead); err != nil {
		return err
	}
	c.sendMu.Lock()
	m, ok := c.mapRead(req, int64(rq.Offset), int64(rq.Length))
	if !ok {
		c.sendMu.Unlock()
		c.noMap = m.Kind == block.MapFile
		return c.sendPieces(req, rq)
	}
	long := mapped{c: c, req: req, off: int64(rq.Offset), n: int64(rq.Length), bytes: m.Mem}
	at, b := len(c.out), c.out[len(c.out):cap(c.out)]
	if m.Kind == block.MapZero {
		long.bytes = zeroes()[:rq.Length]
		if c.struc && rq.Flags&wire.CmdFlagDF == 0 {
			long.finish()
			c.sendMu.Unlock()
			c.out = c.out[:at+wire.PutChunkHole(b, rq, c.ext, wire.ReplyFlagDone, rq.Offset, uint32(rq.Length))]
			return nil
		}
	}
	c.out = c.out[:at+c.putDataHead(b, rq)]
	return c.sendMapped(req, long)
}

// sendMapped sends all of the out buffer and then the mapped bytes. Nobody else
// may send before the last of them: called with sendMu held, which it gives up.
func (c *conn) sendMapped(req *block.Req, long mapped) error {
	long.head = c.out
	rest, err := c.sock.writeMapped(long)
	if err == nil && rest.n > 0 {
		err = c.sendRest(req, rest)
	}
	return c.sentLong(err)
}

// sendRest sends what a node has declined to map in the middle of a reply.
func (c *conn) sendRest(req *block.Req, rest mapped) error {
	if c.rest == nil {
		c.rest = alignedBytes(restLen, block.MaxAlign)
	}
	if err := c.link.write(append(c.iov[:0], rest.head)); err != nil {
		return err
	}
	return c.sendFrom(req, c.rest, rest.off, rest.n)
}

// sentLong ends the sending of a long reply: the out buffer is sent, and sendMu
// is given up. After an error the client cannot be told but by hanging up.
func (c *conn) sentLong(err error) error {
	c.sendMu.Unlock()
	c.out = c.out[:0]
	if err != nil {
		c.cut()
		return err
	}
	c.kick()
	return nil
}

// sendPieces reads and sends piece by piece. If the first read fails, nothing
// has been sent.
func (c *conn) sendPieces(req *block.Req, rq *wire.Request) error {
	s := c.takeSlot()
	defer c.releaseMine(s)
	off, n := int64(rq.Offset), int64(rq.Length)
	k := int64(c.hold(s, int(min(n, bufpool.MaxBuf)), false))
	if err := c.readNow(req, off, c.vec1(s.vec[0])); err != nil {
		return &readError{err}
	}
	if err := c.outRoom(wire.MaxReplyHead); err != nil {
		return err
	}
	c.out = c.out[:len(c.out)+c.putDataHead(c.out[len(c.out):cap(c.out)], rq)]
	c.sendMu.Lock()
	err := c.link.write(append(c.iov[:0], c.out, s.vec[0]))
	if err == nil {
		err = c.sendFrom(req, s.vec[0], off+k, n-k)
	}
	return c.sentLong(err)
}

// sendFrom reads and sends n bytes through buf. Called with sendMu held.
func (c *conn) sendFrom(req *block.Req, buf []byte, off, n int64) error {
	for n > 0 {
		b := buf[:min(int64(len(buf)), n)]
		if err := c.readNow(req, off, c.vec1(b)); err != nil {
			return err
		}
		if err := c.link.write(append(c.iov[:0], b)); err != nil {
			return err
		}
		off, n = off+int64(len(b)), n-int64(len(b))
	}
	return nil
}

// store writes src, all of a request's data or a piece of it, in place.
func (c *conn) store(req *block.Req, off int64, src []byte, fl block.Flags) error {
	v := c.vec1(src)
	if c.inline && !c.noMap {
		m, ok := c.mapMemory(req, block.OpWrite, off, v, fl)
		if ok {
			copy(m.Mem, src) // nowhere to put it: MapZero
			err, _ := c.child.Finish(req, int64(len(src)), int64(len(src)), nil)
			return err
		}
		c.noMap = m.Kind == block.MapFile
	}
	return c.writeNow(req, off, v, fl)
}

// writeInline serves a write whose data is here or about to come. Long ones
// pass through one buffer, piece by piece, each multiple of the storage's
// blocks at a time.
func (c *conn) writeInline(rq *wire.Request) error {
	n, fl := int(rq.Length), writeFlags(rq)
	req := c.beginReq()
	var err error
	if u := c.in.unread(); n <= len(u) {
		err = c.store(req, int64(rq.Offset), u[:n:n], fl)
		c.in.r += n
	} else {
		var fatal error
		if err, fatal = c.storePieces(req, rq, fl); fatal != nil {
			c.q.End(req, block.OpWrite, int64(n), fatal)
			return fatal
		}
	}
	c.q.End(req, block.OpWrite, int64(n), err)
	if err != nil {
		return c.answer(rq, wire.ErrnoOf(err), c.whyFailed(rq, err))
	}
	return c.answer(rq, 0, "")
}

// storePieces receives and writes: straight into the disk where that can be,
// else through a buffer. After an error of the disk the rest of the data is read
// away; fatal is an error of the connection.
func (c *conn) storePieces(req *block.Req, rq *wire.Request, fl block.Flags) (err, fatal error) {
	off, left := int64(rq.Offset), int64(rq.Length)
	if c.receivesMapped() {
		if u := c.in.unread(); len(u) > 0 {
			err = c.store(req, off, u, fl)
			c.in.r = c.in.w
			off, left = off+int64(len(u)), left-int64(len(u))
		}
		if err == nil {
			if off, left, fatal = c.storeArriving(req, off, left); left == 0 || fatal != nil {
				return nil, fatal
			}
		}
	}
	return c.storeBuffered(req, uint64(off), int(left), fl, err)
}

// storeBuffered receives left bytes and writes them, unless err is one already.
func (c *conn) storeBuffered(req *block.Req, off uint64, left int, fl block.Flags, err error) (_, fatal error) {
	s := c.takeSlot()
	defer c.releaseMine(s)
	c.hold(s, min(left, bufpool.MaxBuf), false)
	for left > 0 {
		b := s.vec[0]
		b = b[:pieceLen(off, left, len(b))]
		if fatal = c.receive(b); fatal != nil {
			return err, fatal
		}
		if err == nil {
			err = c.store(req, int64(off), b, fl)
		}
		off, left = off+uint64(len(b)), left-len(b)
	}
	return err, nil
}

// writeFlags are the flags of a write.
func writeFlags(rq *wire.Request) block.Flags {
	if rq.Flags&wire.CmdFlagFUA != 0 {
		return block.FUA
	}
	return 0
}
