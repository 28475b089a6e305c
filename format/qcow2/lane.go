package qcow2

import "github.com/platter-storage/platter/block"

// Map answers where a request's data lies if it lies in one piece, in clusters
// that are this image's alone where it writes. What lies in the backing file is
// asked of it. The clusters stay this request's until Done.
func (n *node) Map(rq *block.Req, op block.Op, off int64, v block.Vec, fl block.Flags) (block.Mapping, bool) {
	if op == block.OpWrite && (n.broken.Load() != nil || fl&block.FUA != 0 && n.isDirty()) {
		return block.Mapping{}, false
	}
	pin := n.pins.pin(off >> n.clusterBits)
	m, ok := n.mapPinned(rq, op, off, v, fl)
	if !ok {
		n.pins.unpin(pin)
		return m, false
	}
	if op == block.OpWrite {
		n.changed(off, v.Len())
	}
	m.Cookie = pin
	return m, true
}

func (n *node) mapPinned(rq *block.Req, op block.Op, off int64, v block.Vec, fl block.Flags) (block.Mapping, bool) {
	length := v.Len()
	s := n.find(off)
	if s == nil {
		return block.Mapping{}, false
	}
	r := n.runIn(s, off, length)
	touch(s)
	for at := r.n; at < length; {
		next := n.find(off + at)
		if next == nil {
			return block.Mapping{}, false
		}
		more := n.runIn(next, off+at, length-at)
		if more.kind != r.kind || r.kind == stored && (more.host != r.host+at || more.copied != r.copied) {
			return block.Mapping{}, false
		}
		at += more.n
	}
	switch {
	case r.kind == stored && (op == block.OpRead || r.copied):
		if r.host+length > n.data.Size() {
			return block.Mapping{}, false
		}
		return n.data.Map(rq, op, r.host, v, fl)
	case op != block.OpRead:
		return block.Mapping{}, false
	case r.kind == zeroes, r.kind == absent && (n.backing == nil || off >= n.backing.Size()):
		return block.Mapping{Kind: block.MapZero}, true
	case r.kind == absent && off+length <= n.backing.Size():
		return n.backing.Map(rq, op, off, v, fl)
	}
	return block.Mapping{}, false
}

// Done lets the clusters go.
func (n *node) Done(_ block.Op, cookie uint64, _ error) { n.pins.unpin(cookie) }
