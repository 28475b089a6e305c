package file

import (
	"syscall"

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

// writeTail writes a range that ends in the tail.
func (n *node) writeTail(rq *block.Req, from, off int64, v block.Vec, durable bool) error {
	if head := from - off; head > 0 {
		if err := n.write(rq, n.sys.main(), off, v.AppendRange(nil, 0, head), durable); err != nil {
			return err
		}
		v, off = v.AppendRange(nil, head, v.Len()-head), from
	}
	return n.write(rq, (*tailWriter)(n), off, v, durable)
}

// tailWriter is the way of writes to the tail: it never makes the file longer
// than the node is. Its lock is held for single calls, so that a request that
// waits to repeat one keeps nobody else waiting; and shared, because only who
// changes the size must be alone.
type tailWriter node

func (w *tailWriter) readv(off int64, v block.Vec) (int, error) { return w.sys.cached().readv(off, v) }

func (w *tailWriter) writev(off int64, v block.Vec, durable bool) (int, error) {
	w.tailMu.RLock()
	defer w.tailMu.RUnlock()
	if size := w.info.Size(); off+v.Len() > size {
		return 0, block.Errorf(syscall.EIO, "the file has been made shorter by somebody else: it ends at %d, and the write at %d", size, off+v.Len())
	}
	return w.sys.cached().writev(off, v, durable)
}
