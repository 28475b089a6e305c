package nbd

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/platter-storage/platter/internal/sys"
	wire "github.com/platter-storage/platter/wire/nbd"
)

const (
	// holeLen is the unit in which a reply is searched for zeroes that can
	// be sent as holes. Shorter reads are sent as they are.
	holeLen = 64 << 10
	// maxChunks bounds the chunks of one reply.
	maxChunks = 1 << 20 / holeLen
)

// alignedBytes allocates n bytes at an address that is a multiple of align.
func alignedBytes(n, align int) []byte {
	b := make([]byte, n+align)
	skip := int(-sys.Addr(b) & uintptr(align-1))
	return b[skip : skip+n : skip+n]
}

// appendReply appends the reply of a ready slot to iov.
func (c *conn) appendReply(iov [][]byte, s *slot) [][]byte {
	switch {
	case s.errno != 0:
		return append(iov, c.errorReply(s))
	case s.body != nil:
		return append(iov, s.body)
	case s.rq.Type != wire.CmdRead || len(s.vec) == 0: // a split read has sent its data
		return append(iov, s.head[:c.putDone(s.head[:], &s.rq)])
	}
	return c.appendData(iov, s)
}

// errorReply is allocated: errors are rare, and their texts differ in length.
func (c *conn) errorReply(s *slot) []byte {
	if !c.struc {
		return s.head[:wire.PutSimpleReply(s.head[:], &s.rq, s.errno)]
	}
	b := make([]byte, wire.ErrorChunkLen(s.msg))
	if s.errAt > s.rq.Offset {
		return b[:wire.PutChunkErrorOffset(b, &s.rq, c.ext, wire.ReplyFlagDone, s.errno, s.msg, s.errAt)]
	}
	return b[:wire.PutChunkError(b, &s.rq, c.ext, wire.ReplyFlagDone, s.errno, s.msg)]
}

// appendData appends what a read found.
func (c *conn) appendData(iov [][]byte, s *slot) [][]byte {
	if !c.struc {
		iov = append(iov, s.head[:wire.PutSimpleReply(s.head[:], &s.rq, 0)])
		return c.appendPayload(iov, s)
	}
	rq, fl := &s.rq, wire.ReplyFlagDone
	if s.parent != nil { // extended headers have the offset of what was asked
		rq, fl = &s.parent.rq, 0
	}
	if s.rq.Flags&wire.CmdFlagDF == 0 {
		if s.zero {
			return append(iov, s.head[:wire.PutChunkHole(s.head[:], rq, c.ext, fl, s.rq.Offset, uint32(s.rq.Length))])
		}
		if s.rq.Length >= holeLen && len(s.vec) == 1 && findHole(s.vec[0]) < len(s.vec[0]) {
			return c.appendChunks(iov, s, rq, fl)
		}
	}
	iov = append(iov, s.head[:wire.PutChunkData(s.head[:], rq, c.ext, fl, s.rq.Offset, uint32(s.rq.Length))])
	return c.appendPayload(iov, s)
}

func (c *conn) appendPayload(iov [][]byte, s *slot) [][]byte {
	if s.zero {
		return append(iov, zeroes()[:s.rq.Length])
	}
	return append(iov, s.vec...)
}

// appendChunks sends data and zeroes apart.
func (c *conn) appendChunks(iov [][]byte, s *slot, rq *wire.Request, last wire.ReplyFlags) [][]byte {
	if s.heads == nil {
		s.heads = make([]byte, maxChunks*wire.MaxReplyHead)
	}
	h, off := s.heads, s.rq.Offset
	for b := s.vec[0]; len(b) > 0; {
		k, hole := findHole(b), false
		if k == 0 {
			k, hole = zeroRun(b), true
		}
		fl := wire.ReplyFlags(0)
		if k == len(b) {
			fl = last
		}
		var n int
		if hole {
			n = wire.PutChunkHole(h, rq, c.ext, fl, off, uint32(k))
			iov = append(iov, h[:n])
		} else {
			n = wire.PutChunkData(h, rq, c.ext, fl, off, uint32(k))
			iov = append(iov, h[:n], b[:k])
		}
		h, b, off = h[n:], b[k:], off+uint64(k)
	}
	return iov
}

// findHole is where the first unit of zeroes begins in b, or len(b).
func findHole(b []byte) int {
	for at := 0; at < len(b); at += holeLen {
		if isZero(b[at:min(at+holeLen, len(b))]) {
			return at
		}
	}
	return len(b)
}

// zeroRun is how much of the start of b is units of zeroes.
func zeroRun(b []byte) int {
	at := 0
	for at < len(b) && isZero(b[at:min(at+holeLen, len(b))]) {
		at += holeLen
	}
	return min(at, len(b))
}

// isZero stops at the first byte that is not zero, near enough.
func isZero(b []byte) bool {
	const first = 64
	z := zeroes()
	return bytes.Equal(b[:min(first, len(b))], z[:min(first, len(b))]) && bytes.Equal(b, z[:len(b)])
}

// whyRefused says for people what Check found wrong.
func (c *conn) whyRefused(rq *wire.Request, e wire.Errno) string {
	if !c.struc {
		return ""
	}
	switch {
	case e == wire.ESHUTDOWN:
		return "the server is shutting down, or the export ends: connect again later"
	case e == wire.EPERM:
		return fmt.Sprintf("%v: the export is read-only", rq.Type)
	case e == wire.EOVERFLOW:
		return fmt.Sprintf("%v of %d bytes: at most %d can be asked for at once", rq.Type, rq.Length, c.sess.MaxPayload)
	}
	return fmt.Sprintf("%v of %d bytes at offset %d with flags %#x is not valid on this export of %d bytes",
		rq.Type, rq.Length, rq.Offset, uint16(rq.Flags), c.sess.Export.Size)
}

// whyFailed logs an I/O error, and says for the client what failed. What the
// node says is not for clients: it has names of files.
func (c *conn) whyFailed(rq *wire.Request, err error) string {
	e := wire.ErrnoOf(err)
	if e == wire.ENOTSUP && rq.Flags&wire.CmdFlagFastZero != 0 {
		return "this range cannot be zeroed faster than by writing"
	}
	givenUp := c.broken.Load() && errors.Is(err, context.Canceled) // for a client that is gone
	if !errors.Is(err, wire.ESHUTDOWN) && !givenUp {
		c.srv.limits.Warn(c.srv.log, "request failed", "export", c.exp.Name, "peer", c.peer, "error", err)
	}
	if !c.struc {
		return ""
	}
	return fmt.Sprintf("%v of %d bytes at offset %d failed: %v; the server's log says more", rq.Type, rq.Length, rq.Offset, e)
}
