package block

// split passes a request on in pieces that the node takes, one after the
// other. What fits no number of segments goes through a bounce buffer.
func (c *Child) split(f *frame, op Op, s span, v Vec, fl Flags, l *Limits) error {
	f.rq.Took(PathSplit)
	align := l.ReadAlign
	if op == OpWrite {
		align = l.WriteAlign
	}
	n := s.end - s.off
	for pos := int64(0); pos < n; {
		f.vec = v.AppendRange(f.vec[:0], pos, n-pos)
		k := l.pieceLen(f.vec, n-pos, align)
		rest := span{s.off + pos, s.end, s.off + pos, s.end, s.size}
		if k == 0 {
			return c.linearRest(f, op, rest, v, pos, fl, l, PathBounceSegs)
		}
		f.vec = v.AppendRange(f.vec[:0], pos, k)
		if why := l.misfit(f.vec, s.off+pos+k, s.size); why != 0 {
			return c.linearRest(f, op, rest, v, pos, fl, l, why)
		}
		var err error
		if op == OpRead {
			err = c.nodeRead(f.rq, s.off+pos, f.vec)
		} else {
			err = c.nodeWrite(f.rq, s.off+pos, f.vec, fl)
		}
		if err != nil {
			return err
		}
		pos += k
	}
	return nil
}

// linearRest serves what is left of a split request, from byte pos of v.
func (c *Child) linearRest(f *frame, op Op, rest span, v Vec, pos int64, fl Flags, l *Limits, why Path) error {
	f.rq.Took(why)
	if op == OpRead {
		return c.readLinear(f, rest, v, pos, l)
	}
	return c.writeLinear(f, rest, v, pos, fl, l)
}
