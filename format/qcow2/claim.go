package qcow2

import (
	"slices"

	"github.com/platter-storage/platter/block"
)

// claim keeps other requests from changing where a range of guest clusters lies
// while one is at it: two writers to one new cluster must not both allocate it. A
// request holds at most one claim and waits for none while it does.
type claim struct {
	off, end int64 // guest offsets, whole clusters
	done     chan struct{}
}

// claim takes [off, off+length), cut down to what is not claimed. Where not even
// its beginning is free it waits, with mu released, and returns nil: look again.
// mu is held on entry and on return.
func (n *node) claim(rq *block.Req, off, length int64) (*claim, error) {
	end := off + length
	for _, c := range n.busy {
		if c.off >= end || c.end <= off {
			continue
		}
		if c.off > off {
			end = min(end, c.off)
			continue
		}
		n.mu.Unlock()
		defer n.mu.Lock()
		select {
		case <-c.done:
			return nil, nil
		case <-rq.Context().Done():
			return nil, rq.Context().Err()
		}
	}
	c := &claim{off: off, end: end, done: make(chan struct{})}
	n.busy = append(n.busy, c)
	return c, nil
}

// unclaim lets others go on. mu is held.
func (n *node) unclaim(c *claim) {
	n.busy = slices.DeleteFunc(n.busy, func(x *claim) bool { return x == c })
	close(c.done)
}
