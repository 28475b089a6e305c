package qcow2

import (
	"github.com/platter-storage/platter/block"
)

// WriteZeroes marks whole subclusters as zeroes. With MayUnmap their place is
// given up, unless the option discard-no-unref keeps it. What is less than a
// subcluster becomes a whole one where the rest reads as zeroes too, and is
// written where it does not.
func (n *node) WriteZeroes(rq *block.Req, off, length int64, fl block.Flags) error {
	if n.version < 3 && (n.backing != nil || fl&block.MayUnmap == 0) {
		return block.ErrNotSupported // version 2 has no zero clusters
	}
	if err := n.writable(); err != nil {
		return err
	}
	if k := min(length, n.data.Size()-off); n.rawData() && k > 0 {
		// Whoever reads the data file by itself finds zeroes too.
		if err := n.data.WriteZeroes(rq, off, k, fl&block.MayUnmap); err != nil {
			return err
		}
	}
	unit := int64(1) << n.subBits
	first, last := (off+unit-1)&^(unit-1), (off+length)&^(unit-1)
	if off+length == int64(n.size) {
		last = off + length
	}
	if first >= last {
		return n.zeroPart(rq, off, length, fl)
	}
	if err := n.zeroPart(rq, off, first-off, fl); err != nil {
		return err
	}
	unmap := fl&block.MayUnmap != 0 && !n.opts.keepUnmapped
	whole := func(x entry, from, to int64) (entry, bool) { return n.zeroed(x, from, to, unmap) }
	if err := n.unmapRange(rq, first, last-first, whole, fl); err != nil {
		return err
	}
	return n.zeroPart(rq, last, off+length-last, fl)
}

// zeroPart does so for a range that fills no subcluster; it may touch two.
func (n *node) zeroPart(rq *block.Req, off, length int64, fl block.Flags) error {
	unit := int64(1) << n.subBits
	for end := off + length; off < end; {
		k := min(unit-off&(unit-1), end-off)
		inUse := false
		part := func(x entry, from, to int64) (entry, bool) {
			from, to = from&^(unit-1), (to+unit-1)&^(unit-1)
			kind, _ := n.kindOf(x, uint32(from>>n.subBits))
			if inUse = kind == stored || kind == packed || kind == absent && n.backing != nil; inUse {
				return x, false
			}
			return n.zeroed(x, from, to, false)
		}
		err := n.unmapRange(rq, off, k, part, fl)
		if err == nil && inUse {
			err = n.zeroBytes(rq, off, k, fl)
		}
		if err != nil {
			return err
		}
		off += k
	}
	return nil
}

// zeroBytes writes zeroes over a part of a subcluster that has other data.
func (n *node) zeroBytes(rq *block.Req, off, length int64, fl block.Flags) error {
	if fl&block.NoFallback != 0 {
		return block.ErrNotSupported
	}
	if err := n.writeZeroBytes(rq, off, length); err != nil {
		return err
	}
	if fl&block.FUA != 0 {
		return n.flush(rq)
	}
	return n.relieve(rq)
}

// Discard gives clusters up. What was the disk's own reads as zeroes then; a
// cluster of the backing file does not come back to light.
func (n *node) Discard(rq *block.Req, off, length int64) error {
	if n.rawData() {
		return n.WriteZeroes(rq, off, length, block.MayUnmap)
	}
	return n.unmapRange(rq, off, length, n.discarded, 0)
}

// rawData reports whether the external data file is the disk as it is.
func (n *node) rawData() bool { return n.external() && n.autoclear&featRawData != 0 }

// unmapRange changes the entries of a range by f, which is given the part of
// each cluster in bytes, and says whether the old place goes.
func (n *node) unmapRange(rq *block.Req, off, length int64, f func(x entry, from, to int64) (entry, bool), fl block.Flags) error {
	if err := n.writable(); err != nil {
		return err
	}
	defer n.changed(off, length)
	for end := off + length; off < end; {
		k, err := n.unmapSome(rq, off, end-off, f)
		if err != nil {
			return err
		}
		off += k
		if err := n.relieve(rq); err != nil {
			return err
		}
	}
	if fl&block.FUA != 0 {
		return n.flush(rq)
	}
	return nil
}

// unmapSome does so within one slice.
func (n *node) unmapSome(rq *block.Req, off, length int64, f func(x entry, from, to int64) (entry, bool)) (int64, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	span := int64(1) << n.cache.shift
	length = min(length, span-off&(span-1))
	first := n.clusterStart(off)
	c, err := n.claim(rq, first, n.clusters(off+length)<<n.clusterBits-first)
	if c == nil {
		return 0, err
	}
	defer n.unclaim(c)
	length = min(length, c.end-off)
	s, err := n.slice(rq, off)
	if err != nil {
		return 0, err
	}
	for at := off; at < off+length; at = n.clusterStart(at) + n.clusterSize() {
		from := n.inCluster(at)
		to := min(n.clusterSize(), off+length-n.clusterStart(at))
		if n.clusterStart(at)+to >= int64(n.size) {
			to = n.clusterSize() // nothing of the disk lies behind
		}
		if s, err = n.unmapOne(rq, s, at, from, to, f); err != nil {
			return 0, err
		}
	}
	return length, nil
}

// unmapOne changes one entry, if f does.
func (n *node) unmapOne(rq *block.Req, s *l2Slice, at, from, to int64, f func(x entry, from, to int64) (entry, bool)) (*l2Slice, error) {
	i := at >> n.clusterBits & (n.cache.perSlice - 1)
	old := n.load(s, i)
	if k, _ := n.kindOf(old, 0); k == invalid {
		return s, n.corrupt(rq, "the L2 entry of guest offset %d is %#x (bitmap %#x), which no entry may be", at, old.e, old.bitmap)
	}
	if n.extended() && old.e&entryCompressed != 0 && to-from < n.clusterSize() {
		return s, block.ErrNotSupported // compressed clusters have no subclusters
	}
	x, drop := f(old, from, to)
	if x == old {
		return s, nil
	}
	s, err := n.ownTable(rq, at)
	if err != nil {
		return s, err
	}
	n.store(s, i, x)
	if drop {
		n.dropOld(old, n.opts.passRequest)
	}
	return s, nil
}

// zeroed is an entry of which [from, to) reads as zeroes.
func (n *node) zeroed(x entry, from, to int64, unmap bool) (entry, bool) {
	_, placed := n.kindOf(x, 0)
	own := placed && (x.e&entryCopied != 0 || n.external())
	if !n.extended() {
		switch {
		case x.e&entryZero != 0 && (own && !unmap || !placed) && x.e&entryCompressed == 0 && n.version >= 3:
			return x, false
		case n.version < 3:
			return entry{}, true // MayUnmap, without a backing file
		case own && !unmap:
			return entry{e: x.e | entryZero}, false
		case n.external() && own:
			return entry{e: x.e | entryZero}, false
		}
		return entry{e: entryZero}, x.e&^entryZero != 0
	}
	m := uint64(1)<<(to>>n.subBits) - uint64(1)<<(from>>n.subBits)
	whole := m == 1<<32-1
	if x.e&entryCompressed != 0 || !own || unmap && !n.external() {
		if whole {
			return entry{bitmap: m << 32}, x.e != 0
		}
	}
	x.bitmap = x.bitmap&^m | m<<32
	return x, false
}

// discarded is an entry after a discard of [from, to).
func (n *node) discarded(x entry, from, to int64) (entry, bool) {
	if from != 0 || to != n.clusterSize() {
		return x, false // the edge asks for whole clusters; the tail of the disk is one
	}
	_, placed := n.kindOf(x, 0)
	zero := entry{e: entryZero}
	if n.extended() {
		zero = entry{bitmap: (1<<32 - 1) << 32}
	}
	switch {
	case x == entry{} && n.backing == nil || x == zero:
		return x, false
	case placed && n.external():
		// Its place in the external file stays its own.
		if n.extended() {
			return entry{x.e, zero.bitmap}, false
		}
		return entry{e: x.e | entryZero}, false
	case n.opts.keepUnmapped && placed && x.e&entryCopied != 0:
		return n.zeroed(x, from, to, false)
	case n.version < 3 && n.backing != nil:
		return x, false // unmapped it would show the backing file
	case n.version < 3:
		return entry{}, true
	case n.backing == nil && !placed && x.e&entryCompressed == 0:
		return x, false
	}
	return zero, x.e&^entryZero != 0
}
