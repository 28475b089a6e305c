package nbd

import (
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"syscall"
)

// Client sends requests to an export over one connection. Its methods block
// until the server has answered and may be called from many goroutines at
// once: that is how requests come to be in flight together. What several
// callers send at the same time leaves in one write.
//
// Buffers belong to the client until the method returns. After a read failed,
// their content is undefined.
//
// If the connection fails, so do all requests in flight and all later ones,
// with a *ConnError. Whether requests in flight had an effect is then unknown.
type Client struct {
	s         *ClientSession
	conn      io.ReadWriteCloser
	unchecked bool

	calls []call        // by slot; never grows
	free  chan *call    // slots that nobody uses
	dead  chan struct{} // closed once err is set

	mu      sync.Mutex // guards the five below
	err     error      // why the connection is of no more use
	leaving bool       // by Disconnect: the server may hang up
	queue   []*call    // to be sent
	spare   []*call    // the other queue, while one is being sent
	sending bool       // some goroutine is at it

	w sender   // belongs to the goroutine that sends
	r receiver // belongs to the goroutine that receives

	disconnect sync.Mutex // one Disconnect at a time; taken before mu
}

// ClientOptions are what a Client does apart from what its handshake agreed on.
type ClientOptions struct {
	// InFlight is how many requests are kept in flight; further callers
	// wait. 0 is DefaultInFlight, the limit MaxInFlight.
	InFlight int
	// Unchecked sends requests that the server did not allow, to see what
	// it says. Otherwise they fail before they are sent.
	Unchecked bool
}

// DefaultInFlight is how many requests a Client keeps in flight.
const DefaultInFlight = 128

// ErrClosed is in the chain of errors after Close and Disconnect.
var ErrClosed = errors.New("nbd: client is closed")

// CommandError is a request that failed. errors.As finds an Errno and a
// syscall.Errno in it.
type CommandError struct {
	Type    Cmd
	Offset  uint64
	Length  uint64
	Errno   Errno
	Message string // the server's words, may be empty; not to be trusted

	// HasErrOffset: the server says that the error is at ErrOffset.
	HasErrOffset bool
	ErrOffset    uint64
	// Local: the client did not send the request, see Message.
	Local bool
}

// Error says what failed, where and why.
func (e *CommandError) Error() string {
	s := fmt.Sprintf("nbd: %v at %d length %d: %v", e.Type, e.Offset, e.Length, e.Errno)
	switch {
	case e.Local:
		s += ": not sent: " + e.Message
	case e.Message != "":
		s += ": server says " + quote(e.Message)
	}
	if e.HasErrOffset {
		s += fmt.Sprintf(", error at %d", e.ErrOffset)
	}
	return s
}

// Unwrap is the Errno.
func (e *CommandError) Unwrap() error { return e.Errno }

// ConnError is the end of a connection. errors.As finds a syscall.Errno in it:
// the cause's, or EIO.
type ConnError struct{ Err error }

// Error says how the connection ended.
func (e *ConnError) Error() string { return "nbd: connection lost: " + e.Err.Error() }

// Unwrap is the cause, and EIO for those who look for an errno.
func (e *ConnError) Unwrap() []error { return []error{e.Err, syscall.EIO} }

// NewClient takes over the connection of a handshake that reached an export.
// s.Conn must be an io.ReadWriteCloser whose Close wakes those who read and
// write; net.Conn and tls.Conn are.
func NewClient(s *ClientSession, opts ClientOptions) (*Client, error) {
	conn, ok := s.Conn.(io.ReadWriteCloser)
	if !ok {
		return nil, fmt.Errorf("nbd: connection of type %T cannot be closed: give the handshake one that can", s.Conn)
	}
	n := opts.InFlight
	if n == 0 {
		n = DefaultInFlight
	}
	if n < 0 || n > MaxInFlight {
		return nil, fmt.Errorf("nbd: %d requests in flight asked for: choose 1 to %d", n, MaxInFlight)
	}
	cl := &Client{
		s: s, conn: conn, unchecked: opts.Unchecked,
		calls: make([]call, n), free: make(chan *call, n), dead: make(chan struct{}),
		queue: make([]*call, 0, n), spare: make([]*call, 0, n),
	}
	spans := make([]span, n) // what arrives in one piece allocates nothing
	for i := range cl.calls {
		cl.calls[i].got.spans = spans[i : i : i+1]
		cl.calls[i].slot = uint32(i)
		cl.calls[i].done = make(chan struct{}, 1)
		cl.free <- &cl.calls[i]
	}
	cl.w.init(conn, s.Extended)
	cl.r.init(cl)
	go cl.r.loop()
	return cl, nil
}

// Session is what the handshake agreed on. It must not be changed.
func (c *Client) Session() *ClientSession { return c.s }

// Dead is closed once the connection is of no more use; Err then says why.
func (c *Client) Dead() <-chan struct{} { return c.dead }

// Err is why the connection is of no more use, nil while it is.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Size is the export's size in bytes.
func (c *Client) Size() uint64 { return c.s.Export.Size }

// Pread reads len(p) bytes at off. Of the flags CmdFlagDF makes sense.
func (c *Client) Pread(p []byte, off uint64, fl CmdFlags) error {
	return c.do(CmdRead, fl, off, uint64(len(p)), p, nil)
}

// Preadv is Pread into several buffers, one after the other.
func (c *Client) Preadv(v [][]byte, off uint64, fl CmdFlags) error {
	return c.do(CmdRead, fl, off, vecLen(v), nil, v)
}

// Pwrite writes p at off. Of the flags CmdFlagFUA makes sense.
func (c *Client) Pwrite(p []byte, off uint64, fl CmdFlags) error {
	return c.do(CmdWrite, fl, off, uint64(len(p)), p, nil)
}

// Pwritev is Pwrite from several buffers, one after the other.
func (c *Client) Pwritev(v [][]byte, off uint64, fl CmdFlags) error {
	return c.do(CmdWrite, fl, off, vecLen(v), nil, v)
}

// Flush makes all writes durable that had completed before it was called.
func (c *Client) Flush() error { return c.do(CmdFlush, 0, 0, 0, nil, nil) }

// Trim says that n bytes at off are not needed any more.
func (c *Client) Trim(off, n uint64, fl CmdFlags) error {
	return c.do(CmdTrim, fl, off, n, nil, nil)
}

// WriteZeroes zeroes n bytes at off. Of the flags CmdFlagFUA, CmdFlagNoHole and
// CmdFlagFastZero make sense.
func (c *Client) WriteZeroes(off, n uint64, fl CmdFlags) error {
	return c.do(CmdWriteZeroes, fl, off, n, nil, nil)
}

// Cache says that n bytes at off will be wanted soon.
func (c *Client) Cache(off, n uint64) error { return c.do(CmdCache, 0, off, n, nil, nil) }

// Status is what one metadata context knows of a range: extents one after the
// other from the range's start, at least one. They may end before the range
// does, and the last may reach beyond it, but not beyond the export.
type Status struct {
	Context MetaContext
	Extents []Extent
}

// BlockStatus asks for the status of n bytes at off in the session's contexts,
// or in those with the given ids, which need FlagBlockStatusPayload. Of the
// flags CmdFlagReqOne makes sense.
func (c *Client) BlockStatus(off, n uint64, fl CmdFlags, ids ...uint32) ([]Status, error) {
	cl, err := c.take()
	if err != nil {
		return nil, err
	}
	defer func() { c.free <- cl }()
	cl.set(CmdBlockStatus, fl, off, n)
	cl.status, cl.payload = nil, nil
	if len(ids) > 0 {
		cl.payload = AppendBlockStatusPayload(nil, n, ids)
		cl.rq.Flags |= CmdFlagPayloadLen
		cl.rq.Length = uint64(len(cl.payload))
	}
	cl.ids = ids
	if err := c.roundTrip(cl); err != nil {
		return nil, err
	}
	return cl.status, nil
}

// Disconnect waits for the requests in flight, tells the server that no more
// will come, and closes the connection.
func (c *Client) Disconnect() error {
	c.disconnect.Lock()
	defer c.disconnect.Unlock()
	for range c.calls { // whoever has all slots is alone
		if _, err := c.take(); err != nil {
			return err
		}
	}
	c.mu.Lock()
	c.leaving = true
	c.mu.Unlock()
	cl := &c.calls[0]
	cl.set(CmdDisc, 0, 0, 0)
	cl.refs.Store(1) // there is no reply
	if err := c.enqueue(cl, false); err != nil {
		return err
	}
	<-cl.done
	return c.Close()
}

// Close closes the connection at once. Requests in flight fail. It never fails
// itself.
func (c *Client) Close() error {
	c.fail(ErrClosed)
	<-c.r.ended
	return nil
}

// call is a slot for one request in flight.
type call struct {
	slot uint32
	gen  uint32 // of the slot: replies to an earlier one find another cookie

	rq      Request
	length  uint64    // of effect
	one     [1][]byte // vec of those who have one buffer
	vec     [][]byte  // read into, or written from
	payload []byte    // of a block status
	ids     []uint32  // contexts asked for; all if there are none

	// active is the cookie while the request waits for its reply, else 0.
	// Whoever sets it to 0 ends the wait.
	active atomic.Uint64
	// refs counts what is outstanding: the sending and the reply. The
	// caller's buffers are not touched once it is 0.
	refs atomic.Int32
	done chan struct{} // a token once refs is 0

	// The receiver's until refs is 0, then the caller's.
	connErr   error
	errno     Errno
	message   string
	errOff    uint64
	hasErrOff bool
	chunks    int // content chunks
	got       fragments
	status    []Status
}

// set makes the slot ready for a request.
func (cl *call) set(t Cmd, fl CmdFlags, off, n uint64) {
	cl.gen++
	if cl.gen == 0 {
		cl.gen = 1
	}
	cl.rq = Request{Flags: fl, Type: t, Cookie: uint64(cl.gen)<<32 | uint64(cl.slot), Offset: off, Length: n}
	cl.length = n
	cl.vec = nil
	cl.refs.Store(2)
	cl.connErr, cl.errno, cl.message, cl.hasErrOff = nil, 0, "", false
	cl.chunks = 0
	cl.got.reset()
}

// unref says that the sending or the reply is over.
func (cl *call) unref() {
	if cl.refs.Add(-1) == 0 {
		cl.done <- struct{}{}
	}
}

// result is the request's error, once done.
func (cl *call) result() error {
	if cl.connErr != nil {
		return cl.connErr
	}
	if cl.errno == 0 {
		return nil
	}
	return &CommandError{
		Type: cl.rq.Type, Offset: cl.rq.Offset, Length: cl.length,
		Errno: cl.errno, Message: cl.message, HasErrOffset: cl.hasErrOff, ErrOffset: cl.errOff,
	}
}

// do is one request that has no more to give back than success: p or v, if
// any, is its buffer.
func (c *Client) do(t Cmd, fl CmdFlags, off, n uint64, p []byte, v [][]byte) error {
	cl, err := c.take()
	if err != nil {
		return err
	}
	cl.set(t, fl, off, n)
	if t == CmdWrite && c.s.Extended {
		cl.rq.Flags |= CmdFlagPayloadLen
	}
	cl.vec = v
	if v == nil && p != nil {
		cl.one[0] = p
		cl.vec = cl.one[:]
	}
	err = c.roundTrip(cl)
	cl.vec, cl.one[0] = nil, nil
	c.free <- cl
	return err
}

// take waits for a slot.
func (c *Client) take() (*call, error) {
	select {
	case cl := <-c.free:
		return cl, nil
	case <-c.dead:
		c.mu.Lock()
		defer c.mu.Unlock()
		return nil, c.err
	}
}

// roundTrip sends the request and waits for the reply.
func (c *Client) roundTrip(cl *call) error {
	if !c.unchecked {
		if err := c.check(cl); err != nil {
			return err
		}
	} else if !c.s.Extended && cl.rq.Length > math.MaxUint32 {
		return c.notSent(cl, EOVERFLOW, "lengths have 32 bits without extended headers")
	}
	if err := c.enqueue(cl, true); err != nil {
		return err
	}
	<-cl.done
	return cl.result()
}

// check keeps back what the server did not allow.
func (c *Client) check(cl *call) error {
	if !c.s.Extended && cl.rq.Length > math.MaxUint32 {
		return c.notSent(cl, EOVERFLOW, "lengths have 32 bits without extended headers: send several requests")
	}
	e := c.s.Check(&cl.rq)
	if e == 0 && cl.rq.Type == CmdBlockStatus && cl.rq.Flags&CmdFlagPayloadLen != 0 {
		e = c.s.CheckRange(CmdBlockStatus, cl.rq.Offset, cl.length)
	}
	if e == 0 {
		return nil
	}
	return c.notSent(cl, e, fmt.Sprintf("the export has size %d, minimum block %d, maximum payload %d, flags %#x, %d metadata contexts; command flags were %#x",
		c.s.Export.Size, c.s.MinBlock, c.s.MaxPayload, uint16(c.s.Flags), len(c.s.Contexts), uint16(cl.rq.Flags)))
}

func (c *Client) notSent(cl *call, e Errno, why string) error {
	return &CommandError{Type: cl.rq.Type, Offset: cl.rq.Offset, Length: cl.length, Errno: e, Message: why, Local: true}
}

// fail ends the connection; the first reason stays. The receiver, which the
// closed connection wakes, then ends the requests in flight.
func (c *Client) fail(err error) {
	c.mu.Lock()
	first := c.err == nil
	if first {
		if c.leaving {
			err = ErrClosed
		}
		c.err = &ConnError{err}
		close(c.dead)
	}
	c.mu.Unlock()
	if first {
		_ = c.conn.Close()
	}
}

func vecLen(v [][]byte) uint64 {
	var n uint64
	for _, b := range v {
		n += uint64(len(b))
	}
	return n
}
