package vhostuser

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/platter-storage/platter/internal/sys"
)

// Conn is one side of a connection. One goroutine reads; any may write.
type Conn struct {
	c       *net.UnixConn
	header  [HeaderSize]byte
	payload [MaxPayload]byte
	oob     []byte

	writing sync.Mutex // guards out and the order of messages
	out     []byte
}

// NewConn takes over a connected socket.
func NewConn(c *net.UnixConn) *Conn { return &Conn{c: c, oob: make([]byte, sys.RightsRoom)} }

// Read reads one message. It returns io.EOF where the peer ended in good order,
// and io.ErrUnexpectedEOF, wrapped, where it did halfway through a message.
// After an error the connection is of no use, and m holds nothing.
//
// Never more than the message is read: descriptors that arrive with its bytes
// are its own.
func (c *Conn) Read(m *Message) error {
	m.Fds, m.Payload = Fds{}, nil
	err := c.read(m)
	if err != nil {
		m.Fds.Close()
	}
	return err
}

func (c *Conn) read(m *Message) error {
	if n, err := c.fill(m, c.header[:]); err != nil {
		if n == 0 && errors.Is(err, io.EOF) {
			return io.EOF
		}
		return cut("header", n, HeaderSize, err)
	}
	request, fl, size := parseHeader(c.header[:])
	m.Request, m.Flags = Request(request), fl
	if size > MaxPayload {
		return badf(m.Request, "a payload of %d bytes was announced: the most is %d", size, MaxPayload)
	}
	if n, err := c.fill(m, c.payload[:size]); err != nil {
		return cut("payload of "+m.Request.String(), n, int(size), err)
	}
	m.Payload = c.payload[:size:size]
	return nil
}

// cut describes a message that did not come whole.
func cut(what string, n, size int, err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("the connection ended after %d of %d bytes of the %s: %w", n, size, what, err)
}

// fill reads all of b, and gives the message the descriptors that came with it.
func (c *Conn) fill(m *Message, b []byte) (n int, err error) {
	for n < len(b) {
		k, fds, err := sys.RecvFds(c.c, b[n:], c.oob)
		if !m.Fds.add(fds) && err == nil {
			err = badf(m.Request, "it carries more than %d descriptors", MaxFds)
		}
		n += max(k, 0)
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// Write sends one message with descriptors, which stay the caller's.
func (c *Conn) Write(request Request, fl Flags, payload []byte, fds ...int) error {
	if len(payload) > MaxPayload || len(fds) > MaxFds {
		return badf(request, "%d bytes and %d descriptors are too much for one message", len(payload), len(fds))
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.out == nil {
		c.out = make([]byte, HeaderSize, HeaderSize+MaxPayload)
	}
	PutHeader(c.out[:HeaderSize], uint32(request), fl&^FlagVersionMask|Version, len(payload))
	for rest := append(c.out[:HeaderSize], payload...); len(rest) > 0; {
		n, err := sys.SendFds(c.c, rest, fds)
		if err != nil {
			return err
		}
		rest, fds = rest[n:], nil
	}
	return nil
}

// Reply answers m.
func (c *Conn) Reply(m *Message, payload []byte, fds ...int) error {
	return c.Write(m.Request, FlagReply, payload, fds...)
}

// Ack answers m with what became of it, where that was asked for: zero is good.
func (c *Conn) Ack(m *Message, result uint64) error {
	var b [sizeU64]byte
	return c.Reply(m, AppendU64(b[:0], result))
}

// SetDeadline bounds reads and writes; the zero time takes the bound away.
func (c *Conn) SetDeadline(t time.Time) error { return c.c.SetDeadline(t) }

// SetWriteDeadline bounds writes.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.c.SetWriteDeadline(t) }

// Close ends the connection; Read and Write return.
func (c *Conn) Close() error { return c.c.Close() }

// Socket is the socket underneath, still the connection's.
func (c *Conn) Socket() *net.UnixConn { return c.c }
