package file

import (
	"github.com/platter-storage/platter/block"
)

// The fast lane: a request that needs nothing but moving bytes of the main
// descriptor is mapped to itself, and the export hands it to the engine with
// the rest of its batch. What does not end in full comes back by the blocking
// methods.

// Map answers for what lies before the tail. Durable writes are declined where
// the kernel has no flag for them.
func (n *node) Map(rq *block.Req, op block.Op, off int64, v block.Vec, fl block.Flags) (block.Mapping, bool) {
	end := off + v.Len()
	m := block.Mapping{Kind: block.MapFile, Leaf: n.leaf, Off: off}
	if end > n.tailFrom.Load() {
		return m, false
	}
	if op == block.OpWrite {
		if n.durable(fl) && n.noDsync.Load() {
			return m, false
		}
		m.Cookie = rangeCookie(off, end)
	}
	return m, true
}

// Done hears that a mapped request is over.
func (n *node) Done(op block.Op, cookie uint64, err error) {
	if op == block.OpWrite {
		off, end := cookieRange(cookie)
		n.status.wrote(off, end)
	}
}

// A cookie is the range of a write in whole MiB: where it begins, and how many
// it touches, which for the longest request is 2049.
const (
	cookieShift = 20
	cookieBits  = 12
)

func rangeCookie(off, end int64) uint64 {
	first, last := uint64(off)>>cookieShift, uint64(end-1)>>cookieShift
	return first<<cookieBits | (last - first + 1)
}

func cookieRange(c uint64) (off, end int64) {
	first := c >> cookieBits
	return int64(first << cookieShift), int64((first + c&(1<<cookieBits-1)) << cookieShift)
}
