package nbd

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"sync"
)

// startTLS encrypts the connection.
func (c *conn) startTLS(io.ReadWriter) (io.ReadWriter, error) {
	c.tlsOut = &gatherer{Conn: c.nc}
	tc := tls.Server(c.tlsOut, c.srv.cfg.TLS)
	return tc, tc.HandshakeContext(context.Background()) // bounded by the deadline
}

// gatherLen is how much a gatherer keeps.
const gatherLen = 256 << 10

// gatherer is a connection under TLS. TLS writes each record of 16 KiB by
// itself; between hold and release they are gathered and leave together.
type gatherer struct {
	net.Conn
	mu   sync.Mutex // TLS also writes when it reads
	held bool
	buf  []byte
}

func (g *gatherer) hold() {
	g.mu.Lock()
	g.held = true
	g.mu.Unlock()
}

// release writes what was gathered.
func (g *gatherer) release() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held = false
	return g.flush()
}

func (g *gatherer) flush() error {
	if len(g.buf) == 0 {
		return nil
	}
	_, err := g.Conn.Write(g.buf)
	g.buf = g.buf[:0]
	return err
}

// Write implements net.Conn.
func (g *gatherer) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.held {
		return g.Conn.Write(p)
	}
	if len(g.buf)+len(p) > gatherLen {
		if err := g.flush(); err != nil {
			return 0, err
		}
	}
	if g.buf == nil {
		g.buf = make([]byte, 0, gatherLen)
	}
	g.buf = append(g.buf, p...)
	return len(p), nil
}
