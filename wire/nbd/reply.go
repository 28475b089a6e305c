package nbd

import "fmt"

// Lengths of the headers of replies, in bytes. ("Simple reply message",
// "Structured reply chunk message", "Extended reply chunk message")
const (
	SimpleReplyLen = 16
	ChunkLen       = 20
	ExtChunkLen    = 32

	// MaxReplyHead is room for every header together with the fixed part
	// of what follows: PutChunkData, PutChunkHole, PutChunkNone.
	MaxReplyHead = ExtChunkLen + 12
)

// Fixed parts of the payloads of chunks, in bytes. ("Structured reply types")
const (
	dataHead      = 8     // offset
	holeLen       = 8 + 4 // offset, length
	errorHead     = 4 + 2 // error, length of the message
	statusHead    = 4     // context id
	statusDesc    = 4 + 4 // length, flags
	statusExtHead = 4 + 4 // context id, number of extents
	statusExtDesc = 8 + 8 // length, flags
	errorTail     = 8     // offset, after the message
)

// Every Put function writes one message, or its head, to the start of b and
// returns the number of bytes. b must have room: too little is the caller's
// mistake and panics. rq is the request that is answered: it gives the cookie,
// and with extended headers the offset. None of them allocates.

// PutSimpleReply answers rq without chunks: SimpleReplyLen bytes. After a read
// that succeeded, and only then, rq.Length bytes of data follow. Not allowed
// once extended headers are negotiated, nor as an answer to a read once
// structured replies are.
func PutSimpleReply(b []byte, rq *Request, e Errno) int {
	b = b[:SimpleReplyLen]
	be.PutUint32(b, MagicSimpleReply)
	be.PutUint32(b[4:], uint32(e))
	be.PutUint64(b[8:], rq.Cookie)
	return SimpleReplyLen
}

// putChunk writes a chunk's header in front of length bytes of payload.
func putChunk(b []byte, rq *Request, extended bool, fl ReplyFlags, t ReplyType, length uint64) int {
	if !extended {
		b = b[:ChunkLen]
		be.PutUint32(b, MagicStructuredReply)
		be.PutUint16(b[4:], uint16(fl))
		be.PutUint16(b[6:], uint16(t))
		be.PutUint64(b[8:], rq.Cookie)
		be.PutUint32(b[16:], uint32(length))
		return ChunkLen
	}
	b = b[:ExtChunkLen]
	be.PutUint32(b, MagicExtendedReply)
	be.PutUint16(b[4:], uint16(fl))
	be.PutUint16(b[6:], uint16(t))
	be.PutUint64(b[8:], rq.Cookie)
	be.PutUint64(b[16:], rq.Offset)
	be.PutUint64(b[24:], length)
	return ExtChunkLen
}

// PutChunkNone ends a reply: success, if no error chunk came before it.
func PutChunkNone(b []byte, rq *Request, extended bool) int {
	return putChunk(b, rq, extended, ReplyFlagDone, ReplyNone, 0)
}

// PutChunkData writes the head of a chunk with n > 0 bytes of the export from
// off on; the n bytes must follow.
func PutChunkData(b []byte, rq *Request, extended bool, fl ReplyFlags, off uint64, n uint32) int {
	h := putChunk(b, rq, extended, fl, ReplyOffsetData, dataHead+uint64(n))
	be.PutUint64(b[h:], off)
	return h + dataHead
}

// PutChunkHole says that n > 0 bytes from off on read as zeroes.
func PutChunkHole(b []byte, rq *Request, extended bool, fl ReplyFlags, off uint64, n uint32) int {
	h := putChunk(b, rq, extended, fl, ReplyOffsetHole, holeLen)
	be.PutUint64(b[h:], off)
	be.PutUint32(b[h+8:], n)
	return h + holeLen
}

// ErrorChunkLen is the room PutChunkError and PutChunkErrorOffset need at most.
func ErrorChunkLen(msg string) int {
	return ExtChunkLen + errorHead + len(clip(msg)) + errorTail
}

// PutChunkError says that the request failed with e, which must not be 0. msg
// is for a person to read; what is longer than MaxString is cut off.
func PutChunkError(b []byte, rq *Request, extended bool, fl ReplyFlags, e Errno, msg string) int {
	msg = clip(msg)
	h := putChunk(b, rq, extended, fl, ReplyError, uint64(errorHead+len(msg)))
	return h + putErrorHead(b[h:], e, msg)
}

// PutChunkErrorOffset is PutChunkError for an error at off, which must lie in
// the range of the request.
func PutChunkErrorOffset(b []byte, rq *Request, extended bool, fl ReplyFlags, e Errno, msg string, off uint64) int {
	msg = clip(msg)
	h := putChunk(b, rq, extended, fl, ReplyErrorOffset, uint64(errorHead+len(msg)+errorTail))
	h += putErrorHead(b[h:], e, msg)
	be.PutUint64(b[h:], off)
	return h + errorTail
}

func putErrorHead(b []byte, e Errno, msg string) int {
	b = b[:errorHead+len(msg)]
	be.PutUint32(b, uint32(e))
	be.PutUint16(b[4:], uint16(len(msg)))
	copy(b[errorHead:], msg)
	return len(b)
}

// BlockStatusLen is the room PutChunkBlockStatus needs for n extents.
func BlockStatusLen(extended bool, n int) int {
	if extended {
		return ExtChunkLen + statusExtHead + n*statusExtDesc
	}
	return ChunkLen + statusHead + n*statusDesc
}

// maxCompactExtent is the longest extent that 32 bits carry, kept a multiple
// of every block size that a server can demand.
const maxCompactExtent = 1<<32 - MaxMinBlock

// PutChunkBlockStatus says what context id knows of the extents that follow
// each other from the request's offset on: one to MaxExtents of them, none of
// length 0. Without extended headers an extent that 32 bits cannot carry is
// shortened and is the last one sent: the client asks again from there.
func PutChunkBlockStatus(b []byte, rq *Request, extended bool, fl ReplyFlags, id uint32, exts []Extent) int {
	if extended {
		return putBlockStatusExt(b, rq, fl, id, exts)
	}
	for i := range exts {
		if exts[i].Length > maxCompactExtent {
			exts = exts[:i+1]
			break
		}
	}
	h := putChunk(b, rq, false, fl, ReplyBlockStatus, uint64(statusHead+len(exts)*statusDesc))
	be.PutUint32(b[h:], id)
	h += statusHead
	for i := range exts {
		be.PutUint32(b[h:], uint32(min(exts[i].Length, maxCompactExtent)))
		be.PutUint32(b[h+4:], uint32(exts[i].Flags))
		h += statusDesc
	}
	return h
}

func putBlockStatusExt(b []byte, rq *Request, fl ReplyFlags, id uint32, exts []Extent) int {
	h := putChunk(b, rq, true, fl, ReplyBlockStatusExt, uint64(statusExtHead+len(exts)*statusExtDesc))
	be.PutUint32(b[h:], id)
	be.PutUint32(b[h+4:], uint32(len(exts)))
	h += statusExtHead
	for i := range exts {
		be.PutUint64(b[h:], exts[i].Length)
		be.PutUint64(b[h+8:], exts[i].Flags)
		h += statusExtDesc
	}
	return h
}

// Reply is the header of a reply: simple, or of one chunk.
type Reply struct {
	Simple bool
	Errno  Errno // of a simple reply; an error chunk has its own in the payload
	Flags  ReplyFlags
	Type   ReplyType
	Cookie uint64
	Offset uint64 // of the request; with extended headers only
	Length uint64 // of the chunk's payload; 0 in a simple reply
}

// Done says whether this is the last message of the reply.
func (r *Reply) Done() bool { return r.Simple || r.Flags&ReplyFlagDone != 0 }

// ParseReply reads a reply's header from the start of b. n is its length, also
// when err is ErrShort (then n grows once the magic number is there). Any
// other error is a violation of the protocol. Whether the kind of reply fits
// the request is the caller's to check: only it knows the request.
func ParseReply(b []byte, extended bool) (r Reply, n int, err error) {
	if extended {
		return parseExtReply(b)
	}
	if len(b) < SimpleReplyLen {
		return r, SimpleReplyLen, ErrShort
	}
	switch m := be.Uint32(b); m {
	case MagicSimpleReply:
		r.Simple = true
		r.Errno = Errno(be.Uint32(b[4:]))
		r.Cookie = be.Uint64(b[8:])
		return r, SimpleReplyLen, nil
	case MagicStructuredReply:
		if len(b) < ChunkLen {
			return r, ChunkLen, ErrShort
		}
		r.Flags = ReplyFlags(be.Uint16(b[4:]))
		r.Type = ReplyType(be.Uint16(b[6:]))
		r.Cookie = be.Uint64(b[8:])
		r.Length = uint64(be.Uint32(b[16:]))
		return r, ChunkLen, nil
	default:
		return r, SimpleReplyLen, badMagic("reply", uint64(m), uint64(MagicSimpleReply))
	}
}

func parseExtReply(b []byte) (r Reply, n int, err error) {
	if len(b) < ExtChunkLen {
		return r, ExtChunkLen, ErrShort
	}
	if m := be.Uint32(b); m != MagicExtendedReply {
		return r, ExtChunkLen, badMagic("reply", uint64(m), uint64(MagicExtendedReply))
	}
	r.Flags = ReplyFlags(be.Uint16(b[4:]))
	r.Type = ReplyType(be.Uint16(b[6:]))
	r.Cookie = be.Uint64(b[8:])
	r.Offset = be.Uint64(b[16:])
	r.Length = be.Uint64(b[24:])
	return r, ExtChunkLen, nil
}

// ChunkError is the payload of an error chunk.
type ChunkError struct {
	Errno     Errno
	Message   []byte // within the bytes parsed
	Offset    uint64
	HasOffset bool
}

// ParseChunkError reads the payload of an error chunk of type t, known or not.
// Every error is a violation of the protocol.
func ParseChunkError(b []byte, t ReplyType) (ce ChunkError, err error) {
	if len(b) < errorHead {
		return ce, badChunk(t, len(b), "its fixed part is longer")
	}
	ce.Errno = Errno(be.Uint32(b))
	n := int(be.Uint16(b[4:]))
	rest := b[errorHead:]
	if n > MaxString || n > len(rest) {
		return ce, badChunk(t, len(b), "its message is too long")
	}
	if ce.Errno == 0 {
		return ce, badChunk(t, len(b), "its error is 0")
	}
	ce.Message, rest = rest[:n], rest[n:]
	if t == ReplyErrorOffset {
		if len(rest) < errorTail {
			return ce, badChunk(t, len(b), "its offset is missing")
		}
		ce.Offset, ce.HasOffset = be.Uint64(rest), true
	}
	return ce, nil
}

// ParseChunkHole reads the payload of an OFFSET_HOLE. Every error is a
// violation of the protocol.
func ParseChunkHole(b []byte) (off uint64, n uint32, err error) {
	if len(b) != holeLen {
		return 0, 0, badChunk(ReplyOffsetHole, len(b), "its payload has 12")
	}
	off, n = be.Uint64(b), be.Uint32(b[8:])
	if n == 0 {
		return 0, 0, badChunk(ReplyOffsetHole, len(b), "its hole is empty")
	}
	return off, n, nil
}

// ParseChunkBlockStatus reads the payload of a BLOCK_STATUS, or of a
// BLOCK_STATUS_EXT if extended, and appends its extents to exts. Every error is
// a violation of the protocol.
func ParseChunkBlockStatus(b []byte, extended bool, exts []Extent) (id uint32, _ []Extent, err error) {
	t, head, desc := ReplyBlockStatus, statusHead, statusDesc
	if extended {
		t, head, desc = ReplyBlockStatusExt, statusExtHead, statusExtDesc
	}
	if len(b) < head+desc || (len(b)-head)%desc != 0 {
		return 0, exts, badChunk(t, len(b), "it holds no whole extents")
	}
	n := (len(b) - head) / desc
	if n > MaxExtents {
		return 0, exts, badChunk(t, len(b), "it holds too many extents")
	}
	id = be.Uint32(b)
	if extended && uint64(be.Uint32(b[4:])) != uint64(n) {
		return 0, exts, badChunk(t, len(b), "its count of extents is another")
	}
	for b = b[head:]; len(b) > 0; b = b[desc:] {
		e := Extent{uint64(be.Uint32(b)), uint64(be.Uint32(b[4:]))}
		if extended {
			e = Extent{be.Uint64(b), be.Uint64(b[8:])}
		}
		if e.Length == 0 {
			return 0, exts, badChunk(t, n*desc+head, "an extent is empty")
		}
		exts = append(exts, e)
	}
	return id, exts, nil
}

func badChunk(t ReplyType, n int, why string) error {
	return fmt.Errorf("%w: %v chunk of %d bytes: %s", ErrProtocol, t, n, why)
}
