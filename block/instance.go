package block

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
)

// Instance is an opened node together with what all edges to it share: the
// requests in flight, the permissions in use, and whether a flush has failed.
type Instance struct {
	node    Node
	name    string
	label   string // the node's name and file, for messages
	env     *Env
	track   tracker
	flushes flushes
	// flushLost is set when a flush failed: what was written before may be
	// gone though later flushes succeed, so none may succeed any more.
	flushLost atomic.Bool

	mu     sync.Mutex
	edges  map[*Child]struct{}
	closed bool
}

// NewInstance takes ownership of an opened node. name is what messages call
// it; two instances of one graph have different names.
func NewInstance(node Node, name string, env *Env) *Instance {
	if node.Info().Limits() == nil {
		panic("block: driver " + node.Info().Driver + " opened a node without limits")
	}
	in := &Instance{node: node, name: name, label: name, env: env, edges: map[*Child]struct{}{}}
	if f := node.Info().Filename; f != "" && f != name {
		in.label = fmt.Sprintf("%s (%s)", name, f)
	}
	return in
}

// Name is the node's name in its graph.
func (in *Instance) Name() string { return in.name }

// Info is the node's own.
func (in *Instance) Info() *Info { return in.node.Info() }

// Env is what the node runs in.
func (in *Instance) Env() *Env { return in.env }

// NewChild makes an edge: user names who will use it. perm is what the user
// does through it, shared what it lets other edges do meanwhile.
func (in *Instance) NewChild(user string, role Role, perm, shared Perm) (*Child, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed {
		return nil, Errorf(syscall.ESHUTDOWN, "%s is closed; open it again", in.label)
	}
	if perm&(PermWrite|PermResize) != 0 && in.node.Info().ReadOnly {
		return nil, Errorf(syscall.EROFS, "%s is opened read-only, but %s wants to %s it; open it writable, or export it read-only",
			in.label, user, perm&(PermWrite|PermResize))
	}
	for e := range in.edges {
		if clash := perm &^ e.shared; clash != 0 {
			return nil, Errorf(syscall.EBUSY, "%s: %s wants %q, which %s does not allow while it uses the node", in.label, user, clash, e.user)
		}
		if clash := e.perm &^ shared; clash != 0 {
			return nil, Errorf(syscall.EBUSY, "%s: %s does not allow %q, which %s already does", in.label, user, clash, e.user)
		}
	}
	c := &Child{in: in, node: in.node, info: in.node.Info(), mapper: in.node.Info().Abilities.Mapper, user: user, role: role, perm: perm, shared: shared}
	in.edges[c] = struct{}{}
	return c, nil
}

// Drain stops new requests to the node and waits for those in flight. rq lends
// its semaphore. Each Drain takes one Undrain. Who drains waits for nothing
// through an edge to this node until then, and drains the nodes above first: one
// of their requests may be waiting here.
func (in *Instance) Drain(rq *Req) { in.track.drain(rq) }

// Undrain lets requests in again.
func (in *Instance) Undrain() { in.track.undrain() }

// Edges is the number of edges to the node.
func (in *Instance) Edges() int {
	in.mu.Lock()
	defer in.mu.Unlock()
	return len(in.edges)
}

// Close drains and closes the node. All edges must have been closed.
func (in *Instance) Close(rq *Req) error {
	in.mu.Lock()
	if n := len(in.edges); n > 0 || in.closed {
		in.mu.Unlock()
		if n > 0 {
			return Errorf(syscall.EBUSY, "%s is still in use by %d users", in.label, n)
		}
		return nil
	}
	in.closed = true
	in.mu.Unlock()
	in.Drain(rq)
	return in.node.Close()
}
