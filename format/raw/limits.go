package raw

import "github.com/platter-storage/platter/block"

// followLimits publishes limits made from those of the child that the caller has
// seen, unless later ones have been published meanwhile: nobody would look again.
// Requests that a change overtakes are mended at the child's edge.
func (n *node) followLimits(below *block.Limits) {
	n.following.Lock()
	defer n.following.Unlock()
	if seen := n.seen.Load(); seen != nil && (below == seen || below.Generation < seen.Generation) {
		return
	}
	n.info.SetLimits(windowLimits(below, n.off))
	n.seen.Store(below)
}

// windowLimits are those of a window at off of a node with limits below. Where
// off is a multiple of the alignments they hold here too, and our edge fits
// requests to them. Where it is not, a request that is aligned here is not
// aligned there: then we take anything, and the child's edge, which must pad,
// does all of it, so that no request is padded or copied twice.
func windowLimits(below *block.Limits, off int64) *block.Limits {
	l := *below
	if unaligned(off, below) {
		l.ReadAlign, l.WriteAlign, l.SegmentAlign, l.MinMem = 1, 1, 1, 1
		l.MaxSegments, l.MaxTransfer = block.MaxElements, 0
		o := &l.Origins
		o.ReadAlign, o.WriteAlign, o.SegmentAlign, o.MinMem = block.OriginMerged, block.OriginMerged, block.OriginMerged, block.OriginMerged
		o.MaxSegments, o.MaxTransfer = block.OriginMerged, block.OriginMerged
	}
	// Likewise for zeroing and discard, whose granularity may be coarser.
	if off&int64(l.ZeroAlign-1) != 0 {
		l.ZeroAlign, l.MaxZero = 1, 0
		l.Origins.ZeroAlign, l.Origins.MaxZero = block.OriginMerged, block.OriginMerged
	}
	if off&int64(l.DiscardAlign-1) != 0 {
		l.DiscardAlign, l.MaxDiscard = 1, 0
		l.Origins.DiscardAlign, l.Origins.MaxDiscard = block.OriginMerged, block.OriginMerged
	}
	return &l
}

// unaligned reports whether off is no multiple of the request alignments of l.
func unaligned(off int64, l *block.Limits) bool {
	return off&int64(max(l.ReadAlign, l.WriteAlign)-1) != 0
}
