package nbd

import (
	"bufio"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"syscall"
)

// recvBuffer is how much is read from the connection at once, in bytes.
const recvBuffer = 64 << 10

// maxErrorChunk bounds the payload of an error chunk, in bytes: the message,
// and room for what unknown types add after it.
const maxErrorChunk = errorHead + MaxString + 1024

// receiver takes replies apart and hands them to the calls they belong to.
type receiver struct {
	c       *Client
	br      *bufio.Reader
	scratch []byte // block status
	ended   chan struct{}
}

func (r *receiver) init(c *Client) {
	r.c = c
	r.br = bufio.NewReaderSize(c.conn, recvBuffer)
	r.ended = make(chan struct{})
}

// loop runs until the connection is of no more use, then ends all calls that
// wait for a reply.
func (r *receiver) loop() {
	defer close(r.ended)
	r.c.fail(r.replies())
	r.c.mu.Lock()
	err := r.c.err
	r.c.mu.Unlock()
	for i := range r.c.calls {
		if cl := &r.c.calls[i]; cl.active.Swap(0) != 0 {
			cl.connErr = err
			cl.unref()
		}
	}
}

// replies takes messages until one cannot be taken.
func (r *receiver) replies() (err error) {
	defer recoverFault(&err)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	for err == nil {
		err = r.reply()
	}
	return err
}

// recoverFault turns a fault into an error: the memory of a request may be a
// guest's, who can take it away at any time. Anything else goes on.
func recoverFault(err *error) {
	switch x := recover().(type) {
	case nil:
	case interface{ Addr() uintptr }: // runtime.Error of SetPanicOnFault
		*err = fmt.Errorf("memory of a request is gone: %w", syscall.EFAULT)
	default:
		panic(x)
	}
}

// reply takes one message.
func (r *receiver) reply() error {
	rep, err := r.header()
	if err != nil {
		return err
	}
	cl, err := r.find(rep.Cookie)
	if err != nil {
		return err
	}
	if rep.Simple {
		err = r.simple(cl, &rep)
	} else {
		err = r.chunk(cl, &rep)
	}
	if err == nil && rep.Done() {
		err = cl.complete(r.c.s)
		if err == nil {
			cl.active.Store(0)
			cl.unref()
		}
	}
	return err
}

// header reads the header of a message.
func (r *receiver) header() (Reply, error) {
	n := SimpleReplyLen
	if r.c.s.Extended {
		n = ExtChunkLen
	}
	for {
		b, err := r.peek(n)
		if err != nil {
			return Reply{}, err
		}
		rep, need, err := ParseReply(b, r.c.s.Extended)
		if err == ErrShort {
			n = need
			continue
		}
		if err == nil {
			_, err = r.br.Discard(need)
		}
		return rep, err
	}
}

// peek waits for n bytes, of which there is room in the buffer.
func (r *receiver) peek(n int) ([]byte, error) {
	b, err := r.br.Peek(n)
	if err == nil {
		return b, nil
	}
	if err == io.EOF && len(b) > 0 {
		err = io.ErrUnexpectedEOF
	}
	return nil, fmt.Errorf("reading from the server: %w", err)
}

// find is the call that waits for a reply with that cookie.
func (r *receiver) find(cookie uint64) (*call, error) {
	slot := uint64(uint32(cookie))
	if cookie == 0 || slot >= uint64(len(r.c.calls)) || r.c.calls[slot].active.Load() != cookie {
		return nil, fmt.Errorf("%w: reply with cookie %#x, which no request in flight has", ErrProtocol, cookie)
	}
	return &r.c.calls[slot], nil
}

// simple takes a simple reply and its data. ("Simple reply message")
func (r *receiver) simple(cl *call, rep *Reply) error {
	if r.c.s.Structured && cl.rq.Type == CmdRead {
		return fmt.Errorf("%w: simple reply to a read although structured replies were negotiated", ErrProtocol)
	}
	if rep.Errno != 0 {
		cl.errno = rep.Errno
		return nil
	}
	switch cl.rq.Type {
	case CmdRead:
		if err := r.readVec(cl.vec, 0, cl.length); err != nil {
			return err
		}
		cl.got.add(0, cl.length)
	case CmdBlockStatus:
		return fmt.Errorf("%w: simple reply to a block status, without an error", ErrProtocol)
	}
	return nil
}

// chunk takes one chunk. ("Structured reply types")
func (r *receiver) chunk(cl *call, rep *Reply) error {
	s := r.c.s
	if !s.Structured {
		return fmt.Errorf("%w: %v chunk although structured replies were not negotiated", ErrProtocol, rep.Type)
	}
	if s.Extended && rep.Offset != cl.rq.Offset {
		return fmt.Errorf("%w: reply to a %v at %d says offset %d", ErrProtocol, cl.rq.Type, cl.rq.Offset, rep.Offset)
	}
	switch t := rep.Type; {
	case t.IsError():
		return r.errorChunk(cl, rep)
	case t == ReplyNone:
		if rep.Length != 0 || !rep.Done() {
			return fmt.Errorf("%w: NONE chunk with %d bytes and flags %#x", ErrProtocol, rep.Length, uint16(rep.Flags))
		}
		return nil
	case t == ReplyOffsetData && cl.rq.Type == CmdRead:
		return r.dataChunk(cl, rep)
	case t == ReplyOffsetHole && cl.rq.Type == CmdRead:
		return r.holeChunk(cl, rep)
	case t == ReplyBlockStatus && !s.Extended && cl.rq.Type == CmdBlockStatus,
		t == ReplyBlockStatusExt && s.Extended && cl.rq.Type == CmdBlockStatus:
		return r.statusChunk(cl, rep)
	default:
		return fmt.Errorf("%w: %v chunk in reply to a %v", ErrProtocol, t, cl.rq.Type)
	}
}

// errorChunk takes an error chunk, known or not. The first one counts.
func (r *receiver) errorChunk(cl *call, rep *Reply) error {
	if rep.Length > maxErrorChunk {
		return fmt.Errorf("%w: %v chunk with %d bytes: the limit is %d", ErrProtocol, rep.Type, rep.Length, maxErrorChunk)
	}
	b, err := r.peek(int(rep.Length))
	if err != nil {
		return err
	}
	ce, err := ParseChunkError(b, rep.Type)
	if err != nil {
		return err
	}
	if ce.HasOffset && (ce.Offset < cl.rq.Offset || ce.Offset-cl.rq.Offset >= max(cl.length, 1)) {
		return fmt.Errorf("%w: error at %d for a %v at %d of length %d", ErrProtocol, ce.Offset, cl.rq.Type, cl.rq.Offset, cl.length)
	}
	if cl.errno == 0 {
		cl.errno, cl.message = ce.Errno, string(ce.Message)
		cl.errOff, cl.hasErrOff = ce.Offset, ce.HasOffset
	}
	_, err = r.br.Discard(int(rep.Length))
	return err
}

// dataChunk takes an OFFSET_DATA.
func (r *receiver) dataChunk(cl *call, rep *Reply) error {
	if rep.Length <= dataHead {
		return badChunk(rep.Type, int(rep.Length), "it holds no data")
	}
	b, err := r.peek(dataHead)
	if err != nil {
		return err
	}
	n := rep.Length - dataHead
	rel, err := cl.place(be.Uint64(b), n)
	if err != nil {
		return err
	}
	if _, err := r.br.Discard(dataHead); err != nil {
		return err
	}
	return r.readVec(cl.vec, rel, n)
}

// holeChunk takes an OFFSET_HOLE.
func (r *receiver) holeChunk(cl *call, rep *Reply) error {
	if rep.Length != holeLen {
		return fmt.Errorf("%w: %v chunk with %d bytes, it has %d", ErrProtocol, rep.Type, rep.Length, holeLen)
	}
	b, err := r.peek(holeLen)
	if err != nil {
		return err
	}
	off, n, err := ParseChunkHole(b)
	if err != nil {
		return err
	}
	rel, err := cl.place(off, uint64(n))
	if err != nil {
		return err
	}
	eachPart(cl.vec, rel, uint64(n), func(p []byte) error {
		clear(p)
		return nil
	})
	_, err = r.br.Discard(holeLen)
	return err
}

// place notes n bytes at off as arrived and says where in the request they
// are. What lies outside or came before is the server's fault.
func (cl *call) place(off, n uint64) (rel uint64, err error) {
	rel = off - cl.rq.Offset
	if off < cl.rq.Offset || n > cl.length || rel > cl.length-n {
		return 0, fmt.Errorf("%w: content at %d length %d for a read at %d length %d", ErrProtocol, off, n, cl.rq.Offset, cl.length)
	}
	cl.chunks++
	if cl.chunks > 1 && cl.rq.Flags&CmdFlagDF != 0 {
		return 0, fmt.Errorf("%w: several content chunks for a read that must not be split", ErrProtocol)
	}
	if why := cl.got.add(rel, n); why != "" {
		return 0, fmt.Errorf("%w: content at %d length %d: %s", ErrProtocol, off, n, why)
	}
	return rel, nil
}

// statusChunk takes a BLOCK_STATUS or BLOCK_STATUS_EXT.
func (r *receiver) statusChunk(cl *call, rep *Reply) (err error) {
	s := r.c.s
	if limit := uint64(BlockStatusLen(s.Extended, MaxExtents)); rep.Length > limit {
		return fmt.Errorf("%w: %v chunk with %d bytes: the limit is %d", ErrProtocol, rep.Type, rep.Length, limit)
	}
	if r.scratch, err = readGrowing(r.br, r.scratch, int(rep.Length)); err != nil {
		return fmt.Errorf("reading a block status: %w", err)
	}
	id, exts, err := ParseChunkBlockStatus(r.scratch, s.Extended, nil)
	if err != nil {
		return err
	}
	if cap(r.scratch) > recvBuffer { // a rare giant is not kept
		r.scratch = nil
	}
	i := slices.IndexFunc(s.Contexts, func(c MetaContext) bool { return c.ID == id })
	if i < 0 || len(cl.ids) > 0 && !slices.Contains(cl.ids, id) {
		return fmt.Errorf("%w: block status of context %d, which was not asked for", ErrProtocol, id)
	}
	if slices.ContainsFunc(cl.status, func(st Status) bool { return st.Context.ID == id }) {
		return fmt.Errorf("%w: block status of context %d comes twice", ErrProtocol, id)
	}
	if err := cl.fitExtents(exts, s.Export.Size); err != nil {
		return err
	}
	cl.status = append(cl.status, Status{s.Contexts[i], exts})
	return nil
}

// fitExtents holds extents against the request. The last may reach beyond it:
// it is cut at the end of the export.
func (cl *call) fitExtents(exts []Extent, size uint64) error {
	if cl.rq.Flags&CmdFlagReqOne != 0 && (len(exts) != 1 || exts[0].Length > cl.length) {
		return fmt.Errorf("%w: block status of %d extents, the first of %d bytes, where one of up to %d was asked for",
			ErrProtocol, len(exts), exts[0].Length, cl.length)
	}
	left := cl.length
	for i := range exts[:len(exts)-1] {
		if exts[i].Length >= left {
			return fmt.Errorf("%w: block status goes on after the %d bytes asked for", ErrProtocol, cl.length)
		}
		left -= exts[i].Length
	}
	pos := cl.rq.Offset + cl.length - left
	if pos < size {
		last := &exts[len(exts)-1]
		last.Length = min(last.Length, size-pos)
	}
	return nil
}

// complete says what a reply that calls itself complete lacks.
func (cl *call) complete(s *ClientSession) error {
	if cl.errno != 0 {
		return nil
	}
	switch cl.rq.Type {
	case CmdRead:
		if !cl.got.is(cl.length) {
			return fmt.Errorf("%w: reply to a read at %d length %d ends without all the data", ErrProtocol, cl.rq.Offset, cl.length)
		}
	case CmdBlockStatus:
		want := len(cl.ids)
		if want == 0 {
			want = len(s.Contexts)
		}
		if len(cl.status) != want {
			return fmt.Errorf("%w: reply to a block status ends after %d of %d contexts", ErrProtocol, len(cl.status), want)
		}
	}
	return nil
}

// readVec reads n bytes from the connection to where they belong in v.
func (r *receiver) readVec(v [][]byte, rel, n uint64) error {
	err := eachPart(v, rel, n, func(p []byte) error {
		_, err := io.ReadFull(r.br, p)
		return err
	})
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return fmt.Errorf("reading data from the server: %w", err)
	}
	return nil
}

// eachPart calls f for the parts of v that are its n bytes from rel on.
func eachPart(v [][]byte, rel, n uint64, f func([]byte) error) error {
	for _, p := range v {
		if rel >= uint64(len(p)) {
			rel -= uint64(len(p))
			continue
		}
		p = p[rel:]
		p = p[:min(uint64(len(p)), n)]
		rel, n = 0, n-uint64(len(p))
		if err := f(p); err != nil || n == 0 {
			return err
		}
	}
	return nil
}

// span is a range of a read, relative to its start.
type span struct{ off, end uint64 }

// fragments is what of a read has arrived: sorted spans that neither overlap
// nor touch.
type fragments struct{ spans []span }

func (f *fragments) reset() { f.spans = f.spans[:0] }

// is says whether exactly the first n bytes have arrived.
func (f *fragments) is(n uint64) bool {
	if n == 0 {
		return len(f.spans) == 0
	}
	return len(f.spans) == 1 && f.spans[0] == span{0, n}
}

// add notes n bytes at off and says what is wrong with that. Adding nothing
// changes nothing.
func (f *fragments) add(off, n uint64) (why string) {
	if n == 0 {
		return ""
	}
	end := off + n
	i, _ := slices.BinarySearchFunc(f.spans, off, func(s span, off uint64) int {
		if s.end <= off {
			return -1
		}
		return 1
	}) // the first span that ends after off
	if i < len(f.spans) && f.spans[i].off < end {
		return "it overlaps what came before"
	}
	left := i > 0 && f.spans[i-1].end == off
	right := i < len(f.spans) && f.spans[i].off == end
	switch {
	case left && right:
		f.spans[i-1].end = f.spans[i].end
		f.spans = slices.Delete(f.spans, i, i+1)
	case left:
		f.spans[i-1].end = end
	case right:
		f.spans[i].off = off
	case len(f.spans) == MaxReadFragments:
		return fmt.Sprintf("the reply is in more than %d pieces", MaxReadFragments)
	default:
		f.spans = slices.Insert(f.spans, i, span{off, end})
	}
	return ""
}
