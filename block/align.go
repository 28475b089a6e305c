package block

// span is a request's range, and the aligned range that covers it: the same
// where the request is aligned. The aligned range never passes size, which is
// the node's as the request found it: it may change, and one request must not
// see two.
type span struct{ off, end, aOff, aEnd, size int64 }

// spanOf aligns [off, end) outwards to align, within size.
func spanOf(off, end, size int64, align uint32) span {
	mask := int64(align) - 1
	return span{off, end, off &^ mask, min((end+mask)&^mask, size), size}
}

func (s span) aligned() bool { return s.aOff == s.off && s.aEnd == s.end }

// misfit says why the memory of v cannot be handed to a node with limits l as
// it stands: PathBounceMem, PathBounceLen, or 0 where it can. end and size tell
// whether the request ends at an unaligned size, where the last element may
// have any length.
func (l *Limits) misfit(v Vec, end, size int64) Path {
	var addrs uintptr
	var lens int
	for _, e := range v {
		addrs |= addrOf(e)
		lens |= len(e)
	}
	if addrs&uintptr(l.MinMem-1) == 0 && lens&int(l.SegmentAlign-1) == 0 {
		return 0
	}
	return l.misfitExactly(v, end == size && size&int64(l.SegmentAlign-1) != 0)
}

// misfitExactly leaves out empty elements and, where anyTail, the length of the
// last.
func (l *Limits) misfitExactly(v Vec, anyTail bool) Path {
	var addrs uintptr
	var lens, last int
	for _, e := range v {
		if len(e) == 0 {
			continue
		}
		addrs |= addrOf(e)
		lens |= last
		last = len(e)
	}
	if !anyTail {
		lens |= last
	}
	if addrs&uintptr(l.MinMem-1) != 0 {
		return PathBounceMem
	}
	if lens&int(l.SegmentAlign-1) != 0 {
		return PathBounceLen
	}
	return 0
}

// fitsOnce reports whether a node takes v, n bytes, in one call.
func (l *Limits) fitsOnce(v Vec, n int64) bool {
	return len(v) <= int(l.MaxSegments) && (l.MaxTransfer == 0 || n <= int64(l.MaxTransfer)) && !l.straddles(v, n)
}

// straddles reports whether v would pass MaxSegments only because its elements
// do not start on pages: storage then cuts the request in the middle of a
// block (1023+8 sectors), at twice the device requests.
func (l *Limits) straddles(v Vec, n int64) bool {
	page := int64(pageSize)
	if l.MaxSegments == MaxElements || n <= int64(l.MaxSegments-1)*page {
		return false
	}
	return l.fragments(v) > int64(l.MaxSegments)
}

// fragments counts the pages that v touches, or 0 where all its memory starts
// on pages. Elements that follow each other in memory count as one.
func (l *Limits) fragments(v Vec) int64 {
	page := uintptr(pageSize)
	var frags int64
	var starts, end uintptr
	for _, e := range v {
		if len(e) == 0 {
			continue
		}
		at := addrOf(e)
		first := at / page
		if at == end {
			first = (at-1)/page + 1 // the page of the byte before counts already
		} else {
			starts |= at
		}
		end = at + uintptr(len(e))
		frags += int64((end-1)/page+1) - int64(first)
	}
	if starts&(page-1) == 0 {
		return 0
	}
	return frags
}

// pieceLen is the length of the next piece of a request that is n bytes of v
// from position 0: as much as a node takes at once, a multiple of align or all
// of it. It is 0 where not even one block fits the number of segments.
func (l *Limits) pieceLen(v Vec, n int64, align uint32) int64 {
	room := n
	if l.MaxTransfer != 0 {
		room = min(room, int64(l.MaxTransfer))
	}
	if l.straddles(v, n) {
		// In even parts: none is left with a sector or two.
		per := max(int64(l.MaxSegments)-1, 1)
		parts := (l.fragments(v) + per - 1) / per
		room = min(room, (n/parts+int64(align)-1)&^int64(align-1))
	}
	var got int64
	for i := 0; i < len(v) && i < int(l.MaxSegments) && got < room; i++ {
		got += int64(len(v[i]))
	}
	if got = min(got, room); got == n {
		return n
	}
	return got &^ int64(align-1)
}
