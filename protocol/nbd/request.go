package nbd

import (
	"errors"
	"syscall"

	"github.com/platter-storage/platter/block"
	wire "github.com/platter-storage/platter/wire/nbd"
)

// request is one on its way: it lives on its caller's stack.
type request struct {
	cmd wire.Cmd
	fl  wire.CmdFlags
	off uint64
	n   uint64    // 0 where vec has the length
	vec block.Vec // of a read or write

	status []wire.Status // the answer to a block status
}

// errDoubt is what a flush gets where after-loss is fail.
var errDoubt = block.Errorf(syscall.EIO, "the server went after it had acknowledged writes that were not flushed, and whether it has kept them is not known (after-loss=trust believes so): compare the data, and reopen the disk")

// do has the request done on some connection. One whose connection is lost is
// sent again on another, as long as the user wants to wait: each command is
// the same done twice as done once.
func (n *node) do(rq *block.Req, r *request) error {
	generation := n.info.Limits().Generation
	firstLoss := int64(-1)
	for {
		c, err := n.pick(rq, r, firstLoss)
		if err != nil {
			return err
		}
		err = n.try(c, r)
		switch {
		case err == nil:
			return nil
		case n.isLoss(c, err):
			if firstLoss < 0 {
				firstLoss = n.env.Now()
			}
		case n.info.Limits().Generation != generation && isLocal(err):
			return block.ErrLimitsChanged
		default:
			return err
		}
	}
}

// try sends the request over c and waits for the reply.
func (n *node) try(c *conn, r *request) error {
	c.use.RLock()
	defer c.use.RUnlock()
	c.began.Add(1)
	err := r.send(c)
	if err == nil {
		c.ended.Add(1)
		if r.wantsFlush() {
			n.acked.Add(1)
		}
		return nil
	}
	if _, answered := errors.AsType[*wire.CommandError](err); answered {
		c.ended.Add(1)
	}
	return err
}

// wantsFlush reports whether the request, once done, is durable by a flush
// only. What was discarded may come back.
func (r *request) wantsFlush() bool {
	return (r.cmd == wire.CmdWrite || r.cmd == wire.CmdWriteZeroes) && r.fl&wire.CmdFlagFUA == 0
}

func (r *request) send(c *conn) (err error) {
	switch r.cmd {
	case wire.CmdRead:
		return c.client.Preadv(r.vec, r.off, 0)
	case wire.CmdWrite:
		return c.client.Pwritev(r.vec, r.off, r.fl)
	case wire.CmdWriteZeroes:
		return c.client.WriteZeroes(r.off, r.n, r.fl)
	case wire.CmdTrim:
		return c.client.Trim(r.off, r.n, r.fl)
	case wire.CmdFlush:
		return c.client.Flush()
	}
	if !c.status {
		return nil
	}
	r.status, err = c.client.BlockStatus(r.off, r.n, r.fl)
	return err
}

// end is where the request's range ends.
func (r *request) end() uint64 {
	if r.vec != nil {
		return r.off + uint64(r.vec.Len())
	}
	return r.off + r.n
}

// isLoss reports whether err means that c is of no more use. A server that is
// about to end says so to each request; one that is to wait for its successor
// does not go on with it. ("Error values", NBD_ESHUTDOWN)
func (n *node) isLoss(c *conn, err error) bool {
	if _, lost := errors.AsType[*wire.ConnError](err); lost {
		n.down(c, err)
		return true
	}
	if e, ok := errors.AsType[*wire.CommandError](err); ok && !e.Local && e.Errno == wire.ESHUTDOWN && n.cfg.reconnectNs > 0 {
		n.down(c, err)
		_ = c.client.Close() // never fails
		return true
	}
	return false
}

// isLocal reports whether a request was not sent because the server does not
// take it.
func isLocal(err error) bool {
	e, ok := errors.AsType[*wire.CommandError](err)
	return ok && e.Local
}

// pick is a connection for the request, waited for where there is none and the
// user wants that. firstLoss is when the request first lost one, or negative.
func (n *node) pick(rq *block.Req, r *request, firstLoss int64) (*conn, error) {
	for {
		if firstLoss < 0 || n.env.Now() < firstLoss+n.cfg.reconnectNs {
			if c := n.find(r); c != nil {
				return c, nil
			}
		}
		changed, err := n.mayWait(r, firstLoss)
		if err != nil {
			return nil, err
		}
		if c := n.find(r); c != nil { // it came before we asked to be told
			return c, nil
		}
		select {
		case <-changed:
		case <-rq.Context().Done():
			return nil, &givenUp{rq.Context().Err()}
		}
	}
}

// find is a connection that suits the request, in turns.
func (n *node) find(r *request) *conn {
	start := uint32(0)
	if len(n.places) > 1 {
		start = n.turn.Add(1)
	}
	for i := range n.places {
		c := n.places[(start+uint32(i))%uint32(len(n.places))].conn.Load()
		if c == nil || r.end() > c.size {
			continue
		}
		if r.cmd == wire.CmdFlush && n.cfg.strict && c.since > n.flushed.Load() {
			continue // it would vouch for what another server acknowledged
		}
		return c
	}
	return nil
}

// mayWait says what tells of a change, or why there is no waiting.
func (n *node) mayWait(r *request, firstLoss int64) (<-chan struct{}, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	since := n.downSince
	if firstLoss >= 0 && (n.up > 0 || firstLoss < since) {
		since = firstLoss
	}
	switch {
	case n.failed != nil:
		return nil, n.failed
	case n.up > 0 && r.cmd == wire.CmdFlush && firstLoss < 0:
		return nil, errDoubt
	case n.up > 0 && firstLoss < 0:
		return nil, block.Errorf(syscall.EINVAL, "the request ends at %d, where the server has nothing", r.end())
	case n.env.Now() >= since+n.cfg.reconnectNs:
		return nil, block.Errorf(syscall.ENOTCONN, "%s: the server has gone (%v); whether what it had to do was done is not known; %s", n.info.Filename, n.last, n.advice())
	}
	return n.changed, nil
}

// advice is what to do about a server that has gone.
func (n *node) advice() string {
	if n.cfg.reconnectNs == 0 {
		return "reconnect-delay=SECONDS has requests wait for it"
	}
	return "it was not back in time (reconnect-delay)"
}

// givenUp is the end of a wait because the request's context ended. Nothing was
// sent: EINTR is what the block layer takes for harmless.
type givenUp struct{ err error }

func (e *givenUp) Error() string {
	return "given up while it waited for the NBD server: " + e.err.Error()
}

// Unwrap gives the context's error, and an errno.
func (e *givenUp) Unwrap() []error { return []error{e.err, syscall.EINTR} }
