package nbd

import "github.com/platter-storage/platter/block"

// mapped is a part of the disk on its way to the client.
type mapped struct {
	c     *conn
	req   *block.Req
	head  []byte // to be sent first
	off   int64
	n     int64
	bytes []byte // the mapping, while there is one: n bytes
}

// refresh maps what is left unless it is mapped.
func (m *mapped) refresh() bool {
	if m.bytes != nil {
		return true
	}
	mp, ok := m.c.mapRead(m.req, m.off, m.n)
	if !ok {
		return false
	}
	m.bytes = mp.Mem
	if mp.Kind == block.MapZero {
		m.bytes = zeroes()[:m.n]
	}
	return true
}

// finish lets go of the mapping.
func (m *mapped) finish() {
	if m.bytes != nil {
		_, _ = m.c.child.Finish(m.req, m.n, m.n, nil) // cannot fail without an error to hand on
		m.bytes = nil
	}
}

// advance notes that n bytes have been sent.
func (m *mapped) advance(n int) {
	k := min(n, len(m.head))
	m.head = m.head[k:]
	m.off += int64(n - k)
	m.n -= int64(n - k)
}
