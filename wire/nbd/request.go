package nbd

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Lengths of the two headers of a request, in bytes. ("Request message")
const (
	RequestLen         = 28
	ExtendedRequestLen = 32
)

var be = binary.BigEndian

// ErrShort says that the bytes end before the message does.
var ErrShort = errors.New("nbd: message is not complete")

// ErrProtocol is in the chain of every error that means the peer broke the
// protocol: the connection cannot go on.
var ErrProtocol = errors.New("NBD protocol violation")

// Request is a request as it travels, without its payload. Offset and Length
// are in bytes and unchecked.
type Request struct {
	Flags  CmdFlags
	Type   Cmd
	Cookie uint64
	Offset uint64
	Length uint64 // of effect, or of payload: see PayloadLen
}

// ParseRequest reads a request's header from the start of b: RequestLen bytes,
// or ExtendedRequestLen once extended headers are negotiated. n is the length
// of the header, also when err is ErrShort. Any other error is a violation of
// the protocol: where the next request starts is not known any more.
// ("Request message")
func ParseRequest(b []byte, extended bool) (rq Request, n int, err error) {
	magic, n := MagicRequest, RequestLen
	if extended {
		magic, n = MagicExtendedRequest, ExtendedRequestLen
	}
	if len(b) < n {
		return rq, n, ErrShort
	}
	if m := be.Uint32(b); m != magic {
		return rq, n, badMagic("request", uint64(m), uint64(magic))
	}
	rq.Flags = CmdFlags(be.Uint16(b[4:]))
	rq.Type = Cmd(be.Uint16(b[6:]))
	rq.Cookie = be.Uint64(b[8:])
	rq.Offset = be.Uint64(b[16:])
	if extended {
		rq.Length = be.Uint64(b[24:])
	} else {
		rq.Length = uint64(be.Uint32(b[24:]))
	}
	return rq, n, nil
}

// PutRequest writes the request's header and returns its length. b must have
// room for it; without extended headers Length must fit 32 bits.
func PutRequest(b []byte, rq *Request, extended bool) int {
	magic, n := MagicRequest, RequestLen
	if extended {
		magic, n = MagicExtendedRequest, ExtendedRequestLen
	}
	b = b[:n]
	be.PutUint32(b, magic)
	be.PutUint16(b[4:], uint16(rq.Flags))
	be.PutUint16(b[6:], uint16(rq.Type))
	be.PutUint64(b[8:], rq.Cookie)
	be.PutUint64(b[16:], rq.Offset)
	if extended {
		be.PutUint64(b[24:], rq.Length)
	} else {
		be.PutUint32(b[24:], uint32(rq.Length))
	}
	return n
}

// PayloadLen is the number of bytes that follow the header.
//
// A write is followed by its data even where an extended client forgot
// CmdFlagPayloadLen, which it must set: were such data taken for requests,
// whoever fills a guest's disk could forge them.
func (rq *Request) PayloadLen(extended bool) uint64 {
	if rq.Type == CmdWrite || extended && rq.Flags&CmdFlagPayloadLen != 0 {
		return rq.Length
	}
	return 0
}

// blockStatusPayloadHead is the effect length before the context ids.
const blockStatusPayloadHead = 8

// ParseBlockStatusPayload reads the payload of a block status with
// CmdFlagPayloadLen: the length of the range and the ids of the contexts that
// the client wants, appended to ids. An error means that the request is to be
// answered EINVAL; the stream is still sound. Whether ids are known and occur
// once is the caller's to check. ("Request types", NBD_CMD_BLOCK_STATUS, of
// the extension)
func ParseBlockStatusPayload(b []byte, ids []uint32) (length uint64, _ []uint32, err error) {
	if len(b) < blockStatusPayloadHead || (len(b)-blockStatusPayloadHead)%4 != 0 {
		return 0, ids, EINVAL
	}
	if (len(b)-blockStatusPayloadHead)/4 > MaxContexts {
		return 0, ids, EINVAL
	}
	length = be.Uint64(b)
	for b = b[blockStatusPayloadHead:]; len(b) > 0; b = b[4:] {
		ids = append(ids, be.Uint32(b))
	}
	return length, ids, nil
}

// AppendBlockStatusPayload appends what ParseBlockStatusPayload reads.
func AppendBlockStatusPayload(b []byte, length uint64, ids []uint32) []byte {
	b = be.AppendUint64(b, length)
	for _, id := range ids {
		b = be.AppendUint32(b, id)
	}
	return b
}

func badMagic(what string, got, want uint64) error {
	return fmt.Errorf("%w: %s starts with %#x where %#x must be: the stream is out of step",
		ErrProtocol, what, got, want)
}
