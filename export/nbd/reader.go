package nbd

import (
	"fmt"
	"io"

	"github.com/platter-storage/platter/block"
	wire "github.com/platter-storage/platter/wire/nbd"
)

// Sizes of what each connection has of its own, in bytes.
const (
	inLen = 128 << 10 // read buffer
	// outLen is for the replies of requests served by the reader: 32 of
	// 4 KiB and a bit, the most that a common client has in flight.
	outLen   = 160 << 10
	shortOut = 8 << 10 // where it serves none
	// maxBuffered is the largest payload that goes through the read buffer;
	// a larger one is received where it is wanted.
	maxBuffered = 16 << 10
	// ahead is how much is read on behind such a payload, and how much is
	// read at once while payloads of that kind keep coming.
	ahead = 1 << 10
	// loneAfter is how many lone requests make a connection one that is
	// served in place, loneProbe how often it is asked whether that is so.
	loneAfter = 8
	loneProbe = 8
)

// inbuf is the read buffer: unread bytes from r to w.
type inbuf struct {
	buf  []byte
	r, w int
}

func (b *inbuf) unread() []byte { return b.buf[b.r:b.w] }

// room moves what is unread to the start and returns the rest.
func (b *inbuf) room() []byte {
	if b.r > 0 {
		b.w = copy(b.buf, b.buf[b.r:b.w])
		b.r = 0
	}
	return b.buf[b.w:]
}

// readAll reads and serves requests until the client or the server wants no
// more. It returns why.
func (c *conn) readAll() error {
	for {
		c.batch, c.alone = 0, c.used.Load() == 0
		for {
			rq, n, err := wire.ParseRequest(c.in.unread(), c.ext)
			if err == wire.ErrShort || err == nil && !c.complete(&rq, n) {
				break
			}
			if err != nil {
				return err
			}
			if c.broken.Load() {
				return errCut // nobody is left to be served
			}
			c.in.r += n
			c.batch++
			if err := c.serve(&rq); err != nil {
				return err
			}
		}
		c.countLone()
		if err := c.push(); err != nil {
			return err
		}
		if err := c.fill(); err != nil {
			return err
		}
	}
}

// complete says whether the request, whose header has n bytes, can be served
// now: all of it is here, or its payload does not belong in the read buffer.
func (c *conn) complete(rq *wire.Request, n int) bool {
	p := rq.PayloadLen(c.ext)
	return p <= uint64(len(c.in.unread())-n) || p > maxBuffered
}

// fill reads more. Behind a payload that was received in place only a little
// is asked for, so that the next one can be as well.
func (c *conn) fill() error {
	if c.stopped() != 0 {
		return errStopped
	}
	p := c.in.room()
	if c.bigRead {
		p = p[:min(len(p), ahead)]
		c.bigRead = false
	}
	n, err := c.link.read(p)
	c.in.w += n
	if n > 0 {
		return nil
	}
	if err == io.EOF && len(c.in.unread()) > 0 {
		return io.ErrUnexpectedEOF
	}
	return err
}

// countLone finds out whether the client waits for each answer before it asks
// again.
func (c *conn) countLone() {
	if c.batch != 1 || !c.alone {
		c.streak = 0
		return
	}
	if c.streak++; c.streak%loneProbe == 0 && (c.sock == nil || c.sock.pending() > 0) {
		c.streak = 0
	}
}

// lone says whether the request just read is best served at once, by the
// reader: nothing else is in flight or about to be.
func (c *conn) lone() bool {
	return c.streak >= loneAfter && c.batch == 1 && c.alone && c.in.r == c.in.w
}

// serve checks a request and sends it on its way. An error ends the
// connection.
func (c *conn) serve(rq *wire.Request) error {
	e := c.sess.Check(rq)
	if rq.Type == wire.CmdDisc { // whatever else it says: there is no reply to it
		return errDisconnect
	}
	if n := rq.PayloadLen(c.ext); n > uint64(c.sess.MaxPayload) {
		return fmt.Errorf("%w: %v with %d bytes of payload: the limit is %d", wire.ErrProtocol, rq.Type, n, c.sess.MaxPayload)
	}
	if e == 0 && c.turn.limiter != nil {
		if err := c.awaitTurn(rq); err != nil {
			return err
		}
	}
	if s := c.stopped(); e == 0 && s != 0 {
		e = s
	}
	if e != 0 {
		return c.refuse(rq, e)
	}
	switch rq.Type {
	case wire.CmdRead:
		c.inPlace = c.inline || c.cached && c.pace.inPlace()
		if c.inline || c.inPlace && rq.Length <= maxCopied {
			return c.readInline(rq)
		}
		return c.read(rq)
	case wire.CmdWrite:
		c.inPlace = c.inline || c.cached && c.pace.inPlace()
		if c.inline || c.inPlace && rq.Length <= uint64(len(c.in.unread())) {
			return c.writeInline(rq)
		}
		return c.write(rq)
	}
	return c.other(rq)
}

// refuse answers a request that was not begun, having read its payload away.
func (c *conn) refuse(rq *wire.Request, e wire.Errno) error {
	if err := c.skip(rq.PayloadLen(c.ext)); err != nil {
		return err
	}
	return c.answer(rq, e, c.whyRefused(rq, e))
}

// answer puts the reply to a request that has no data into the out buffer.
func (c *conn) answer(rq *wire.Request, e wire.Errno, msg string) error {
	need := wire.MaxReplyHead
	if e != 0 {
		need = wire.ErrorChunkLen(msg)
	}
	if err := c.outRoom(need); err != nil {
		return err
	}
	n := len(c.out)
	b := c.out[n:cap(c.out)]
	switch {
	case e == 0:
		n += c.putDone(b, rq)
	case c.struc:
		n += wire.PutChunkError(b, rq, c.ext, wire.ReplyFlagDone, e, msg)
	default:
		n += wire.PutSimpleReply(b, rq, e)
	}
	c.out = c.out[:n]
	return nil
}

// putDone writes the reply to a request without data that succeeded.
func (c *conn) putDone(b []byte, rq *wire.Request) int {
	if c.ext || c.struc && rq.Type == wire.CmdRead {
		return wire.PutChunkNone(b, rq, c.ext)
	}
	return wire.PutSimpleReply(b, rq, 0)
}

// outRoom makes room for n more bytes of replies.
func (c *conn) outRoom(n int) error {
	if cap(c.out)-len(c.out) >= n {
		return nil
	}
	return c.push()
}

// skip reads n bytes of payload away.
func (c *conn) skip(n uint64) error {
	for n > 0 {
		if k := min(uint64(len(c.in.unread())), n); k > 0 {
			c.in.r += int(k)
			n -= k
			continue
		}
		if err := c.push(); err != nil {
			return err
		}
		if err := c.fill(); err != nil {
			return unexpected(err)
		}
	}
	return nil
}

// receive reads payload to fill dst.
func (c *conn) receive(dst []byte) error {
	k := copy(dst, c.in.unread())
	c.in.r += k
	if dst = dst[k:]; len(dst) == 0 {
		return nil
	}
	if err := c.push(); err != nil {
		return err
	}
	c.in.r, c.in.w, c.bigRead = 0, 0, true
	for len(dst) > 0 {
		n, err := c.link.readv(dst, c.in.buf[:ahead])
		if err != nil {
			return unexpected(err)
		}
		if n >= len(dst) {
			c.in.w = n - len(dst)
			return nil
		}
		dst = dst[n:]
	}
	return nil
}

func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// push lets nothing wait for the reader: what is to be submitted is submitted,
// what is to be sent is sent.
func (c *conn) push() error {
	c.submit()
	c.placed = 0
	if len(c.out) > 0 || !c.ready.empty() {
		c.sendMu.Lock()
		c.sendReady(c.out)
		c.sendMu.Unlock()
		c.out = c.out[:0]
		c.kick()
	}
	if c.broken.Load() {
		return errCut
	}
	return nil
}

var errCut = fmt.Errorf("nbd: the connection was cut: %w", io.ErrClosedPipe)

// pieceLen is the length of the first piece of n bytes at off, where most fit
// at once. Pieces meet at multiples of the largest block a node can have.
func pieceLen(off uint64, n, most int) int {
	if n <= most {
		return n
	}
	return most - int(off&(block.MaxAlign-1))
}
