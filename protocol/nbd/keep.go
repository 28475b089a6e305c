package nbd

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/platter-storage/platter/block"
	wire "github.com/platter-storage/platter/wire/nbd"
)

// How long to wait between two tries to reach a server, in nanoseconds: the
// first time, and at most, with no connection and with some.
const (
	firstRetryNs = int64(100 * time.Millisecond)
	maxRetryNs   = int64(time.Second)
	rareRetryNs  = int64(30 * time.Second)
)

// leaveNs bounds the time to say goodbye to a server.
const leaveNs = int64(5 * time.Second)

// firstDial connects for the first time, for as long as open-timeout says.
func (n *node) firstDial(ctx context.Context) (*wire.Client, error) {
	end := n.env.Now() + n.cfg.openNs
	for {
		client, err := wire.Dial(ctx, n.cfg.uri.String(), n.cfg.dial)
		if err == nil {
			return client, nil
		}
		if n.env.Now() >= end || isFinal(err) || !n.pause(ctx, firstRetryNs) {
			return nil, explainDial(err)
		}
	}
}

// isFinal reports whether trying again is of no use.
func isFinal(err error) bool {
	_, refused := errors.AsType[*wire.OptionError](err)
	return refused || errors.Is(err, wire.ErrProtocol) || errors.Is(err, wire.ErrOldstyle)
}

// explainDial says in one line what failed and what to do.
func explainDial(err error) error {
	advice := ""
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED):
		advice = "; start the server, or look whether it has another address"
	case errors.Is(err, context.DeadlineExceeded):
		advice = "; does it serve as many clients as it can?"
	}
	return block.Errorf(block.Errno(err), "%v%s", err, advice)
}

// pause waits. It answers false if ctx ended.
func (n *node) pause(ctx context.Context, ns int64) bool {
	over := make(chan struct{})
	stop := n.env.After(ns, func() { close(over) })
	select {
	case <-over:
		return true
	case <-ctx.Done():
		stop()
		return false
	}
}

// keepPlace has a connection at p, where c is now, until the node is closed or
// has failed.
func (n *node) keepPlace(p *place, c *conn) {
	for {
		if c == nil {
			if c = n.reach(p); c == nil {
				return
			}
		}
		if !n.attend(c) {
			n.leave(c)
			return
		}
		if c.ended.Load() == 0 && !n.pause(n.ctx, firstRetryNs) {
			return // a server that only greets is not to keep us busy
		}
		c = nil
	}
}

// attend waits until the connection has ended and all that it acknowledged is
// counted. It answers false if the node is being closed.
func (n *node) attend(c *conn) bool {
	var tick chan struct{}
	seen := uint64(0) // of c.ended, at the last tick
	stop := func() bool { return true }
	arm := func() {
		if n.cfg.requestNs > 0 {
			stop = n.env.After(n.cfg.requestNs, func() { tick <- struct{}{} })
		}
	}
	if n.cfg.requestNs > 0 {
		tick = make(chan struct{}, 1)
	}
	waited := false // requests waited at the last tick
	arm()
	defer func() { stop() }()
	for {
		select {
		case <-c.client.Dead():
			n.down(c, c.client.Err())
			c.use.Lock()
			c.use.Unlock()
			return true
		case <-n.ctx.Done():
			return false
		case <-tick:
			ended := c.ended.Load()
			waits := c.began.Load() != ended
			if waits && waited && ended == seen {
				n.down(c, block.Errorf(syscall.ETIMEDOUT, "it answered nothing for %v", time.Duration(n.cfg.requestNs)))
				_ = c.client.Close() // never fails
			}
			seen, waited = ended, waits
			arm()
		}
	}
}

// reach connects anew, however long that takes. It answers nil if the node is
// closed or has failed.
func (n *node) reach(p *place) *conn {
	wait := firstRetryNs
	for n.ctx.Err() == nil {
		n.mu.Lock()
		failed, up := n.failed, n.up
		n.mu.Unlock()
		if failed != nil {
			return nil
		}
		c, err := n.redial(p)
		if err == nil {
			return c
		}
		n.note(err)
		if !n.pause(n.ctx, wait) {
			return nil
		}
		most := maxRetryNs
		if up > 0 {
			most = rareRetryNs
		}
		wait = min(2*wait, most)
	}
	return nil
}

// note keeps why the last try failed.
func (n *node) note(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.up == 0 {
		n.last = err
	}
}

// redial connects, and goes on if it is the same disk.
func (n *node) redial(p *place) (*conn, error) {
	client, err := wire.Dial(n.ctx, n.cfg.uri.String(), n.cfg.dial)
	if err != nil {
		return nil, explainDial(err)
	}
	s := spaceOf(client.Session())
	n.mu.Lock()
	err = s.replaces(&n.space, n.info.ReadOnly)
	n.mu.Unlock()
	if err == nil {
		err = n.suits(&s)
	}
	if err != nil {
		_ = client.Disconnect() // nothing is in flight; what it says changes nothing
		return nil, err
	}
	return n.use(p, client), nil
}

// use makes a connection p's.
func (n *node) use(p *place, client *wire.Client) *conn {
	s := spaceOf(client.Session())
	c := &conn{client: client, place: p, status: s.context, size: uint64(s.size), since: n.acked.Load()}
	n.mu.Lock()
	if !s.sameLimits(&n.space) {
		n.info.SetLimits(s.limits(n.info.Limits().Generation + 1))
	}
	n.space = s
	first := n.up == 0 && n.downSince != 0
	lost := c.since - n.flushed.Load()
	n.up++
	p.conn.Store(c)
	n.tell()
	n.mu.Unlock()
	n.info.SetSize(s.size)
	switch {
	case first && lost > 0:
		n.pace.Warn(n.env.Log, "the NBD server is back; that it has kept the writes it acknowledged and that were not flushed is its own part", "disk", n.info.Filename, "writes", lost, "after-loss", n.policy())
	case first:
		n.pace.Info(n.env.Log, "the NBD server is back", "disk", n.info.Filename)
	}
	return c
}

func (n *node) policy() string {
	if n.cfg.strict {
		return "fail"
	}
	return "trust"
}

// tell wakes all who wait for a change. Under mu.
func (n *node) tell() {
	close(n.changed)
	n.changed = make(chan struct{})
}

// down takes a connection from its place; the first to hear of its end does. A
// server that came back and went again without ending a single request of
// those it was sent has not been back. A server that broke the protocol is left
// for good.
func (n *node) down(c *conn, why error) {
	n.mu.Lock()
	if !c.place.conn.CompareAndSwap(c, nil) {
		n.mu.Unlock()
		return
	}
	n.up--
	n.last = why
	lied := errors.Is(why, wire.ErrProtocol)
	if lied && n.failed == nil {
		n.failed = block.Errorf(syscall.EPROTO, "%s: the server broke the protocol, and is left: %v; reopen the disk once it is mended", n.info.Filename, why)
	}
	none := n.up == 0
	if none && (n.downSince == 0 || c.ended.Load() > 0 || c.began.Load() == 0) {
		n.downSince = max(n.env.Now(), 1)
	}
	n.tell()
	n.mu.Unlock()
	switch {
	case lied:
		n.env.Log.Error("the NBD server broke the protocol, and is left for good", "disk", n.info.Filename, "error", why)
		for i := range n.places {
			if other := n.places[i].conn.Load(); other != nil {
				_ = other.client.Close() // never fails
			}
		}
	case none && n.ctx.Err() == nil:
		n.pace.Warn(n.env.Log, "the NBD server has gone", "disk", n.info.Filename, "error", why, "requests_wait", fmt.Sprint(time.Duration(n.cfg.reconnectNs)))
		n.env.After(n.cfg.reconnectNs, n.tellOnce)
	}
}

// tellOnce wakes those who have waited long enough.
func (n *node) tellOnce() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.tell()
}

// leave says goodbye, and does not wait for long that the server hears it.
func (n *node) leave(c *conn) {
	stop := n.env.After(leaveNs, func() { _ = c.client.Close() })
	_ = c.client.Disconnect() // it has gone already, or does now
	stop()
	_ = c.client.Close() // where it had gone
}
