package nbd

import "github.com/platter-storage/platter/block"

// incoming is payload on its way from the client into a disk in memory.
type incoming struct {
	c    *conn
	req  *block.Req
	off  int64
	n    int64 // yet to come
	over int   // how much of the read buffer came behind it
}

// room maps what is left, for one call that does not wait: the bytes are
// received where they are to lie. Nothing where the node declines, or keeps
// nothing.
func (m *incoming) room() []byte {
	mp, ok := m.c.mapMemory(m.req, block.OpWrite, m.off, m.c.vec1(zeroes()[:m.n]), 0)
	if ok && mp.Kind != block.MapMemory {
		m.finish()
		return nil
	}
	return mp.Mem
}

// finish lets go of the mapping. What has not come yet counts as written with
// the bytes that were there.
func (m *incoming) finish() {
	_, _ = m.c.child.Finish(m.req, m.n, m.n, nil) // cannot fail without an error to hand on
}

// took notes that n bytes have come.
func (m *incoming) took(n int) {
	k := min(int64(n), m.n)
	m.off += k
	m.n -= k
	m.over = n - int(k)
}

// receivesMapped says whether payload may be received straight into the disk:
// it may end at any byte for a time.
func (c *conn) receivesMapped() bool {
	return c.sock != nil && c.inline && !c.noMap && c.child.Limits().WriteAlign == 1
}

// storeArriving receives as much of a payload of n bytes for off as the disk
// takes straight from the socket, and returns what is left of it. What was in
// the read buffer has been used up. FUA means nothing to a disk in memory.
func (c *conn) storeArriving(req *block.Req, off, n int64) (next, left int64, fatal error) {
	if err := c.push(); err != nil {
		return off, n, err
	}
	c.in.r, c.in.w, c.bigRead = 0, 0, true
	rest, err := c.sock.readMapped(incoming{c: c, req: req, off: off, n: n}, c.in.buf[:ahead])
	c.in.w = rest.over
	if err != nil {
		err = unexpected(err)
	}
	return rest.off, rest.n, err
}
