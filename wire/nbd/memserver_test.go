package nbd

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"slices"
	"sync"
	"testing"
)

// memServer is a server over memory, as wilful as the document allows.
type memServer struct {
	data []byte

	mu     sync.Mutex
	counts map[Cmd]int
	flags  CmdFlags // all that were ever seen

	// pieces answers reads in pieces of this many bytes, the last first,
	// those that are zero as holes.
	pieces int
	// reverse answers requests that came together in the opposite order.
	reverse bool
	// fail is the error to answer with.
	fail Errno
	// statusLen is the length of the extents of a block status.
	statusLen uint64
}

// serve answers requests until the client leaves.
func (m *memServer) serve(s *Session) error {
	br := bufio.NewReaderSize(s.Conn, 256<<10)
	for {
		var replies [][]byte
		for {
			rq, payload, err := readRequest(br, s.Extended)
			if err != nil {
				return err
			}
			m.note(&rq)
			if rq.Type == CmdDisc {
				return nil
			}
			replies = append(replies, m.answer(s, &rq, payload))
			if br.Buffered() == 0 || len(replies) == 64 {
				break
			}
		}
		if m.reverse {
			slices.Reverse(replies)
		}
		if _, err := s.Conn.Write(bytes.Join(replies, nil)); err != nil {
			return err
		}
	}
}

func (m *memServer) note(rq *Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.counts == nil {
		m.counts = map[Cmd]int{}
	}
	m.counts[rq.Type]++
	m.flags |= rq.Flags
}

func readRequest(br *bufio.Reader, extended bool) (Request, []byte, error) {
	_, n, _ := ParseRequest(nil, extended)
	b, err := br.Peek(n)
	if err != nil {
		return Request{}, nil, err
	}
	rq, n, err := ParseRequest(b, extended)
	if err != nil {
		return rq, nil, err
	}
	br.Discard(n)
	if rq.PayloadLen(extended) > MaxPayload {
		return rq, nil, errors.New("payload is too long")
	}
	payload := make([]byte, rq.PayloadLen(extended))
	_, err = io.ReadFull(br, payload)
	return rq, payload, err
}

// answer does the request and makes the reply.
func (m *memServer) answer(s *Session, rq *Request, payload []byte) []byte {
	e := s.Check(rq)
	if e == 0 {
		e = m.fail
	}
	b := make([]byte, 1024)
	if e != 0 {
		if !s.Structured {
			return b[:PutSimpleReply(b, rq, e)]
		}
		if m.pieces > 0 {
			return b[:PutChunkErrorOffset(b, rq, s.Extended, ReplyFlagDone, e, "no luck", rq.Offset)]
		}
		return b[:PutChunkError(b, rq, s.Extended, ReplyFlagDone, e, "no luck")]
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch rq.Type {
	case CmdRead:
		return m.read(s, rq)
	case CmdWrite:
		copy(m.data[rq.Offset:], payload)
	case CmdWriteZeroes, CmdTrim:
		clear(m.data[rq.Offset : rq.Offset+rq.Length])
	case CmdBlockStatus:
		return m.status(s, rq, payload)
	}
	if !s.Structured || m.reverse && !s.Extended { // a simple reply is allowed here
		return b[:PutSimpleReply(b, rq, 0)]
	}
	return b[:PutChunkNone(b, rq, s.Extended)]
}

func (m *memServer) read(s *Session, rq *Request) []byte {
	head := make([]byte, MaxReplyHead)
	data := m.data[rq.Offset : rq.Offset+rq.Length]
	if !s.Structured {
		return append(head[:PutSimpleReply(head, rq, 0)], data...)
	}
	if m.pieces == 0 || rq.Flags&CmdFlagDF != 0 {
		return append(head[:PutChunkData(head, rq, s.Extended, ReplyFlagDone, rq.Offset, uint32(len(data)))], data...)
	}
	var out []byte
	for pos := (len(data) - 1) / m.pieces * m.pieces; pos >= 0; pos -= m.pieces {
		p := data[pos:min(pos+m.pieces, len(data))]
		off := rq.Offset + uint64(pos)
		if len(bytes.Trim(p, "\x00")) == 0 {
			out = append(out, head[:PutChunkHole(head, rq, s.Extended, 0, off, uint32(len(p)))]...)
			continue
		}
		out = append(out, head[:PutChunkData(head, rq, s.Extended, 0, off, uint32(len(p)))]...)
		out = append(out, p...)
	}
	return append(out, head[:PutChunkNone(head, rq, s.Extended)]...)
}

func (m *memServer) status(s *Session, rq *Request, payload []byte) []byte {
	length, ids := rq.Length, []uint32(nil)
	if rq.Flags&CmdFlagPayloadLen != 0 {
		length, ids, _ = ParseBlockStatusPayload(payload, nil)
	} else {
		for _, c := range s.Contexts {
			ids = append(ids, c.ID)
		}
	}
	step := m.statusLen
	if step == 0 {
		step = length
	}
	var out []byte
	for i, id := range ids {
		var exts []Extent
		for pos := uint64(0); pos < length; pos += step {
			exts = append(exts, Extent{step, uint64(id)})
			if rq.Flags&CmdFlagReqOne != 0 {
				exts[0].Length = min(step, length)
				break
			}
		}
		fl := ReplyFlags(0)
		if i == len(ids)-1 {
			fl = ReplyFlagDone
		}
		b := make([]byte, BlockStatusLen(s.Extended, len(exts)))
		out = append(out, b[:PutChunkBlockStatus(b, rq, s.Extended, fl, id, exts)]...)
	}
	return out
}

// connected is a client of m over the given connection.
func connected(t testing.TB, m *memServer, client, server io.ReadWriteCloser, cc ClientConfig, sc ServerConfig, opts ClientOptions) *Client {
	t.Helper()
	if sc.Exports == nil {
		sc.Exports = disks{{Name: "mem", Size: uint64(len(m.data)), Flags: allFlags, Contexts: []string{ContextAllocation, ContextDepth}}}
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		defer server.Close()
		s, err := ServerHandshake(server, &sc)
		if err != nil {
			t.Errorf("server: %v", err)
			return
		}
		if s.TLS {
			defer s.Conn.(io.Closer).Close()
		}
		if err := m.serve(s); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrClosedPipe) {
			t.Logf("server: %v", err)
		}
	})
	t.Cleanup(wg.Wait)
	cs, err := ClientHandshake(client, cc)
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewClient(cs, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}
