package block

// Child is an edge from a user (an export, a job, a tool, or a node above) to
// a node, and the only place where requests enter a node. Its methods take any
// offset, length and memory; what the node below cannot serve as it stands is
// padded, bounced, split or emulated here.
//
// All methods may be called from many goroutines, each with a Req of its own.
type Child struct {
	in     *Instance
	node   Node
	info   *Info
	mapper Mapper
	user   string
	role   Role
	perm   Perm
	shared Perm
	// ignoreDiscard drops discards and MayUnmap at this edge.
	ignoreDiscard bool
}

// Instance is the node that the edge leads to.
func (c *Child) Instance() *Instance { return c.in }

// Info is that of the node that the edge leads to.
func (c *Child) Info() *Info { return c.info }

// Size is the node's size in bytes.
func (c *Child) Size() int64 { return c.info.Size() }

// Limits are the node's; what exceeds them costs a copy, not an error.
func (c *Child) Limits() *Limits { return c.info.Limits() }

// Name is the node's name.
func (c *Child) Name() string { return c.in.name }

// Perm is what the edge may do.
func (c *Child) Perm() Perm { return c.perm }

// Role is what the node is to the edge's user.
func (c *Child) Role() Role { return c.role }

// IgnoreDiscard makes discard through this edge succeed without effect, and
// write zeroes keep its space: the option discard=ignore.
func (c *Child) IgnoreDiscard() { c.ignoreDiscard = true }

// Close ends the edge. No request may be in flight through it.
func (c *Child) Close() {
	c.in.mu.Lock()
	delete(c.in.edges, c)
	c.in.mu.Unlock()
}

// fail builds the error of a request.
func (c *Child) fail(rq *Req, op Op, off, n int64, err error) error {
	if e, ok := err.(*Error); ok {
		return e // a node below has said it already
	}
	e := &rq.failure
	if !rq.queue.ownErrors {
		e = new(Error)
	}
	*e = Error{Op: op, Node: c.in.label, Off: off, Len: n, Err: err}
	return e
}
