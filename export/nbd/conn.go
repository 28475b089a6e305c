package nbd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	wire "github.com/platter-storage/platter/wire/nbd"
)

// conn is the connection of one client.
type conn struct {
	srv   *Server
	nc    net.Conn
	since time.Time
	gone  chan struct{} // closed when its last request is done

	exp *export // chosen; guarded by srv.mu

	mu       sync.Mutex
	sess     *wire.Session // nil during the handshake
	stopping wire.Errno    // 0, or what requests are answered from now on
}

func newConn(s *Server, nc net.Conn) *conn {
	return &conn{srv: s, nc: nc, since: time.Now(), gone: make(chan struct{})}
}

// run serves the client from greeting to end.
func (c *conn) run() {
	defer c.nc.Close()
	if err := c.handshake(); err != nil {
		c.logHandshake(err)
		return
	}
}

// handshake lets the client choose an export.
func (c *conn) handshake() error {
	s := c.srv
	if t := s.cfg.HandshakeTimeout; t > 0 {
		c.setDeadline(time.Now().Add(t))
	}
	sess, err := wire.ServerHandshake(c.nc, &wire.ServerConfig{
		Exports: offered{s}, TLS: s.cfg.TLSMode, StartTLS: c.startTLS, NoList: s.cfg.NoList, Shutdown: s.isClosing,
	})
	if err != nil {
		return err
	}
	x := sess.Export.Handle.(*export)
	if !s.choose(c, x) {
		return fmt.Errorf("export %q was removed while a client was about to use it", x.Name)
	}
	c.setDeadline(time.Time{})
	c.mu.Lock()
	c.sess = sess
	c.mu.Unlock()
	return nil
}

// setDeadline sets the connection's deadline unless it is being stopped.
func (c *conn) setDeadline(t time.Time) {
	c.mu.Lock()
	if c.stopping == 0 {
		_ = c.nc.SetDeadline(t) // fails only on a closed connection, as will what follows
	}
	c.mu.Unlock()
}

// startTLS encrypts the connection.
func (c *conn) startTLS(rw io.ReadWriter) (io.ReadWriter, error) {
	tc := tls.Server(c.nc, c.srv.cfg.TLS)
	return tc, tc.HandshakeContext(context.Background()) // bounded by the deadline
}

func (c *conn) logHandshake(err error) {
	switch {
	case errors.Is(err, wire.ErrAborted), errors.Is(err, io.EOF):
		c.srv.log.Debug("client left without using an export", "peer", c.nc.RemoteAddr())
	default:
		c.srv.limits.warn(c.srv.log, "handshake failed", "peer", c.nc.RemoteAddr(), "error", err)
	}
}

// stop ends reading from the client: what has arrived from now on is answered
// e, what is in flight is answered as it ends, then the connection is closed.
func (c *conn) stop(e wire.Errno) {
	c.mu.Lock()
	if c.stopping == 0 {
		c.stopping = e
		_ = c.nc.SetReadDeadline(time.Unix(1, 0))
	}
	c.mu.Unlock()
}

// kill closes the socket. Requests in flight end when storage is done.
func (c *conn) kill() { c.nc.Close() }

// status describes the connection. Called with srv.mu held.
func (c *conn) status() ConnInfo {
	info := ConnInfo{Peer: c.nc.RemoteAddr().String(), Since: c.since}
	if c.exp != nil {
		info.Export = c.exp.Name
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	info.Ending = c.stopping != 0
	if s := c.sess; s != nil {
		info.Negotiated = true
		info.TLS, info.Structured, info.Extended = s.TLS, s.Structured, s.Extended
		for _, m := range s.Contexts {
			info.Contexts = append(info.Contexts, m.Name)
		}
	}
	return info
}
