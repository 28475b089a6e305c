package blocktest

import (
	"fmt"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/sys"
)

// request is one call of a node.
type request struct {
	op  block.Op
	off int64
	n   int64
	v   block.Vec
	fl  block.Flags
}

// head is the request's first n bytes.
func (r request) head(n int64) request {
	r.v, r.n = r.v.AppendRange(nil, 0, n), n
	return r
}

type errViolation struct {
	request
	why string
}

func (e errViolation) Error() string {
	lens := make([]int, len(e.v))
	addrs := make([]string, len(e.v))
	for i, x := range e.v {
		lens[i], addrs[i] = len(x), fmt.Sprintf("…%05x", sys.Addr(x)&0xfffff)
	}
	return fmt.Sprintf("%s at %d, %d bytes, flags %q, elements %v at %v: %s", e.op, e.off, e.n, e.fl, lens, addrs, e.why)
}

// violation says which of the limits a request breaks, "" where none.
func (e *Emulator) violation(r request, l *block.Limits) string {
	switch r.op {
	case block.OpFlush, block.OpTruncate:
		return ""
	}
	if size := e.info.Size(); r.n <= 0 || r.off < 0 || r.off > size-r.n {
		return fmt.Sprintf("the range is not inside the size %d", size)
	}
	switch r.op {
	case block.OpRead:
		return firstOf(e.misplaced(r, l.ReadAlign, int64(l.MaxTransfer)), e.shape(r, l), undeclared(r.fl, 0))
	case block.OpWrite:
		return firstOf(e.misplaced(r, l.WriteAlign, int64(l.MaxTransfer)), e.shape(r, l), undeclared(r.fl, e.cfg.WriteFlags), e.writable())
	case block.OpZero:
		return firstOf(e.misplaced(r, l.ZeroAlign, l.MaxZero), undeclared(r.fl, e.cfg.ZeroFlags|block.NoFallback), e.writable())
	case block.OpDiscard:
		return firstOf(e.misplaced(r, l.DiscardAlign, l.MaxDiscard), e.writable())
	}
	return e.misplaced(r, l.ReadAlign, 0) // block status
}

func firstOf(whys ...string) string {
	for _, w := range whys {
		if w != "" {
			return w
		}
	}
	return ""
}

// misplaced checks offset and length.
func (e *Emulator) misplaced(r request, align uint32, most int64) string {
	mask := int64(align) - 1
	switch end := r.off + r.n; {
	case r.off&mask != 0:
		return fmt.Sprintf("the offset is not a multiple of %d", align)
	case end&mask != 0 && end != e.info.Size():
		return fmt.Sprintf("the length is not a multiple of %d and the end not that of the storage", align)
	case most != 0 && r.n > most:
		return fmt.Sprintf("the length is above %d", most)
	}
	return ""
}

// shape checks the elements.
func (e *Emulator) shape(r request, l *block.Limits) string {
	if len(r.v) > int(l.MaxSegments) {
		return fmt.Sprintf("there are more than %d elements", l.MaxSegments)
	}
	last := len(r.v) - 1
	for last > 0 && len(r.v[last]) == 0 {
		last--
	}
	tail := r.off+r.n == e.info.Size()
	for i, x := range r.v {
		if len(x) == 0 {
			continue
		}
		if sys.Addr(x)&uintptr(l.MinMem-1) != 0 {
			return fmt.Sprintf("the address of element %d is not a multiple of %d", i, l.MinMem)
		}
		if len(x)&int(l.SegmentAlign-1) != 0 && (i != last || !tail) {
			return fmt.Sprintf("the length of element %d is not a multiple of %d", i, l.SegmentAlign)
		}
	}
	return ""
}

func undeclared(fl, declared block.Flags) string {
	if extra := fl &^ declared; extra != 0 {
		return fmt.Sprintf("the flags %q are not declared", extra)
	}
	return ""
}

func (e *Emulator) writable() string {
	if e.cfg.ReadOnly {
		return "the storage is read-only"
	}
	return ""
}
