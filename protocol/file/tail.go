package file

import (
	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/sys"
)

// A file whose size is no multiple of the alignment cannot be written to its
// end with direct I/O: the last request would have to be longer, and the file
// would grow by it. Such a file's last page is served through the page cache
// instead, all of it, so that no page is ever written both ways.

// placeTail finds where the part served through the page cache begins. Called
// when size or limits have changed.
func (n *node) placeTail() {
	l, size := n.info.Limits(), n.info.Size()
	a := int64(max(l.ReadAlign, l.WriteAlign))
	if !n.direct || size&(a-1) == 0 {
		n.tailFrom.Store(noTail)
		return
	}
	// Whole blocks of the file system too: it writes no less.
	page := max(a, int64(l.ZeroAlign), int64(sys.PageSize()))
	n.tailFrom.Store(size &^ (page - 1))
}

// readTail reads a range that ends in the tail, which begins at from.
func (n *node) readTail(rq *block.Req, from, off int64, v block.Vec) error {
	if head := from - off; head > 0 {
		if err := n.read(rq, n.sys.main(), off, v.AppendRange(nil, 0, head)); err != nil {
			return err
		}
		v, off = v.AppendRange(nil, head, v.Len()-head), from
	}
	return n.read(rq, n.sys.cached(), off, v)
}

// writeTail writes a range that ends in the tail. Truncate takes the lock too:
// no write to the tail is under way when the size changes, so none can make
// the file longer.
func (n *node) writeTail(rq *block.Req, from, off int64, v block.Vec, durable bool) error {
	if head := from - off; head > 0 {
		if err := n.write(rq, n.sys.main(), off, v.AppendRange(nil, 0, head), durable); err != nil {
			return err
		}
		v, off = v.AppendRange(nil, head, v.Len()-head), from
	}
	n.tailMu.Lock()
	defer n.tailMu.Unlock()
	return n.write(rq, n.sys.cached(), off, v, durable)
}
