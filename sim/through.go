package sim

import "github.com/platter-storage/platter/block"

// through passes requests on to an edge as they are, flushes apart.
type through struct {
	c     *block.Child
	info  block.Info
	flush func(rq *block.Req) error
}

// Through is a node over c that does flush instead of flushing: storage, or a
// format, that is wrong about order. A write with FUA is a write and a flush.
func Through(c *block.Child, flush func(rq *block.Req) error) block.Node {
	x := &through{c: c, flush: flush}
	x.info = block.Info{Driver: "through", Filename: c.Info().Filename, ZeroFlags: block.MayUnmap}
	x.info.FollowSize(c.Info(), 0)
	x.info.SetLimits(c.Limits())
	return x
}

// Info is the node's.
func (x *through) Info() *block.Info { return &x.info }

// Preadv passes a read on.
func (x *through) Preadv(rq *block.Req, off int64, v block.Vec, fl block.Flags) error {
	return x.c.Preadv(rq, off, v, fl)
}

// Pwritev passes a write on.
func (x *through) Pwritev(rq *block.Req, off int64, v block.Vec, fl block.Flags) error {
	return x.c.Pwritev(rq, off, v, fl)
}

// WriteZeroes passes it on.
func (x *through) WriteZeroes(rq *block.Req, off, n int64, fl block.Flags) error {
	return x.c.WriteZeroes(rq, off, n, fl)
}

// Discard passes it on.
func (x *through) Discard(rq *block.Req, off, n int64) error { return x.c.Discard(rq, off, n) }

// Flush does what it was told to.
func (x *through) Flush(rq *block.Req) error { return x.flush(rq) }

// BlockStatus passes it on.
func (x *through) BlockStatus(rq *block.Req, off, n int64) (block.Extent, error) {
	return x.c.BlockStatus(rq, off, n)
}

// Truncate passes it on.
func (x *through) Truncate(rq *block.Req, size int64, pre block.Prealloc) error {
	return x.c.Truncate(rq, size, pre)
}

// Close leaves the edge to who made it.
func (x *through) Close() error { return nil }
