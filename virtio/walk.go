package virtio

import "encoding/binary"

// desc is a descriptor of either layout, copied out of guest memory once.
type desc struct {
	addr  uint64
	len   uint32
	flags uint16
	next  uint16 // the buffer ID if packed
}

// splitDesc copies descriptor i of a table that has it.
func splitDesc(table []byte, i int) desc {
	b := table[i*descSize : i*descSize+descSize]
	m := binary.LittleEndian.Uint64(b[8:])
	return desc{binary.LittleEndian.Uint64(b), uint32(m), uint16(m >> 32), uint16(m >> 48)}
}

// packedDesc is splitDesc for the packed layout, which has the last two fields
// the other way around.
func packedDesc(table []byte, i int) desc {
	d := splitDesc(table, i)
	d.flags, d.next = d.next, d.flags
	return d
}

// walk is the state of one chain being read.
type walk struct {
	n      int    // descriptors that hold memory
	last   desc   // the last writable one that is not empty
	wrote  bool   // there is one
	rule   Rule   // the first that was broken
	broken desc   // where
	at     uint16 // its index
	outSum uint64 // bytes to read
	inSum  uint64 // bytes to write
}

// begin prepares for a chain.
func (r *Ring) begin(c *Chain) {
	w := &r.walk
	w.n, w.wrote, w.rule, w.outSum, w.inSum = 0, false, RuleNone, 0, 0
	c.Out, c.In = c.Out[:0], c.In[:0]
	c.Handle, c.Resubmit = Handle{}, false
}

// add takes the memory of one descriptor into the chain. A descriptor of no
// bytes is dropped. After the first one that is wrong only the place of the
// status is still looked for. It answers false if the chain is too long to be
// followed at all.
func (r *Ring) add(c *Chain, d desc, index uint16) bool {
	w := &r.walk
	if w.n++; w.n > MaxSegs {
		return false
	}
	if d.len == 0 {
		return true
	}
	write := d.flags&descWrite != 0
	if write {
		w.last, w.wrote = d, true
	}
	if w.rule != RuleNone {
		return true
	}
	ok := true
	switch {
	case write:
		c.In, ok = r.mem.Append(c.In, d.addr, d.len, &r.cache)
		w.inSum += uint64(d.len)
	case w.wrote:
		w.rule = RuleOrder
	default:
		c.Out, ok = r.mem.Append(c.Out, d.addr, d.len, &r.cache)
		w.outSum += uint64(d.len)
	}
	switch {
	case !ok:
		w.rule = RuleAddress
	case len(c.Out)+len(c.In) > MaxSegs:
		w.rule = RuleSegments
	case w.outSum+w.inSum > 1<<32:
		w.rule = RuleLength
	}
	if w.rule != RuleNone {
		w.broken, w.at = d, index
	}
	return true
}

// finish completes a chain that was read to its end.
func (r *Ring) finish(c *Chain) error {
	w := &r.walk
	c.OutBytes, c.InBytes = w.outSum, w.inSum
	if w.rule == RuleNone {
		return nil
	}
	c.Out, c.In, c.OutBytes, c.InBytes = c.Out[:0], c.In[:0], 0, 0
	r.fault = Error{Rule: w.rule, Index: w.at, Addr: w.broken.addr, Len: w.broken.len}
	ok := w.wrote
	if ok {
		c.In, ok = r.mem.Append(c.In, w.last.addr, w.last.len, &r.cache)
		c.InBytes = uint64(w.last.len)
	}
	if !ok {
		r.fault.Rule, r.fault.Fatal = RuleNoStatus, true
	}
	return &r.fault
}

// addTable walks the indirect table that d points at. A split table is linked
// by next; a packed one is read from its beginning to its end, and of its
// descriptors' flags only one counts (section 2.8.7).
func (r *Ring) addTable(c *Chain, d desc, index uint16) Rule {
	n := d.len / descSize
	if n == 0 || d.len%descSize != 0 {
		return RuleTable
	}
	table := r.mem.guest(d.addr, uint64(d.len), &r.cache)
	for i, left := uint32(0), n; ; left-- {
		if left == 0 {
			return RuleLoop
		}
		var e desc
		if table != nil {
			e = splitDesc(table, int(i))
		} else if !r.readDesc(&e, d.addr+uint64(i)*descSize) {
			return RuleTable
		}
		if r.packed {
			e.flags, e.next = e.next&descWrite, uint16(i+1)
			if i+1 < n {
				e.flags |= descNext
			}
		}
		switch {
		case e.flags&descIndirect != 0:
			return RuleIndirect
		case !r.add(c, e, uint16(i)):
			return RuleLoop
		case e.flags&descNext == 0:
			return RuleNone
		case uint32(e.next) >= n:
			return RuleNext
		}
		i = uint32(e.next)
	}
}

// readDesc copies a descriptor of a table that lies in more than one region.
func (r *Ring) readDesc(d *desc, gpa uint64) bool {
	var b [descSize]byte
	if !r.mem.read(b[:], gpa, &r.cache) {
		return false
	}
	*d = splitDesc(b[:], 0)
	return true
}
