package qcow2

import (
	"github.com/platter-storage/platter/block"
)

// Pwritev writes run by run: in place where the clusters are there and this
// image's alone, else into new ones.
func (n *node) Pwritev(rq *block.Req, off int64, v block.Vec, fl block.Flags) error {
	if err := n.writable(); err != nil {
		return err
	}
	length := v.Len()
	defer n.changed(off, length)
	if err := n.writeAll(rq, off, v, fl); err != nil {
		return err
	}
	if n.isDirty() {
		if fl&block.FUA != 0 {
			return n.flush(rq)
		}
		return n.relieve(rq)
	}
	return nil
}

// relieve settles where so much is dirty that caches outgrow their bounds.
func (n *node) relieve(rq *block.Req) error {
	n.mu.Lock()
	crowded := n.crowded()
	n.mu.Unlock()
	if !crowded {
		return nil
	}
	return n.settleOnce(rq)
}

func (n *node) writeAll(rq *block.Req, off int64, v block.Vec, fl block.Flags) error {
	length := v.Len()
	var part block.Vec
	for at := int64(0); at < length; {
		sub := v
		if at > 0 {
			part = v.AppendRange(part[:0], at, length-at)
			sub = part
		}
		k, err := n.writeSome(rq, off+at, sub, length-at, fl)
		if err != nil {
			return err
		}
		at += k
	}
	return nil
}

// writeSome writes as much from the beginning as goes in one piece, and says how
// much that was.
func (n *node) writeSome(rq *block.Req, off int64, v block.Vec, length int64, fl block.Flags) (int64, error) {
	pin := n.pins.pin(off >> n.clusterBits)
	defer n.pins.unpin(pin)
	r, err := n.locate(rq, off, length)
	if err != nil {
		return 0, err
	}
	if r.kind == stored && r.copied {
		if r.n < length {
			v = v.AppendRange(nil, 0, r.n)
		}
		return r.n, n.writeStored(rq, r.host, v, fl)
	}
	return n.writeNew(rq, off, v, length)
}

// writeStored writes to the data file, which is made longer where it ends too
// early.
func (n *node) writeStored(rq *block.Req, host int64, v block.Vec, fl block.Flags) error {
	if end := host + v.Len(); end > n.data.Size() {
		if err := n.growData(rq, end); err != nil {
			return err
		}
	}
	return n.data.Pwritev(rq, host, v, fl&block.FUA)
}

// growData makes the data file at least end bytes long.
func (n *node) growData(rq *block.Req, end int64) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.data == n.file {
		return n.grow(rq, end)
	}
	if end <= n.data.Size() {
		return nil
	}
	if end > n.clusters(int64(n.size))<<n.clusterBits {
		return n.corrupt(rq, "an L2 entry points at the data file beyond %d, and the disk has %d bytes", end, n.size)
	}
	end = min(n.clusters(end)<<n.clusterBits, max(n.info.Size(), end))
	if err := n.data.Truncate(rq, end, block.PreallocOff); err != nil {
		return n.noSpace(err, end)
	}
	return nil
}

// fresh is a write into clusters that have no place yet, or one whose content is
// not in use.
type fresh struct {
	claim    *claim
	first    int64 // guest offset of the first cluster
	clusters int64
	host     int64
	placed   bool // the old entry's own place is used
	blank    bool // the place reads as zeroes
	old      entry
	off, end int64 // guest range that is written
	from, to int64 // widened by what is copied: whole subclusters
}

// writeNew writes into clusters that are allocated, or given their subclusters,
// first. What surrounds the data in them is written with it, in one request.
func (n *node) writeNew(rq *block.Req, off int64, v block.Vec, length int64) (int64, error) {
	f, err := n.prepare(rq, off, length)
	if f == nil {
		return 0, err
	}
	k := f.end - f.off
	if k < length {
		v = v.AppendRange(nil, 0, k)
	}
	err = n.writeAround(rq, f, v)
	n.mu.Lock()
	defer n.mu.Unlock()
	if err == nil {
		err = n.link(rq, f)
	} else {
		n.abandon(rq, f)
	}
	n.unclaim(f.claim)
	if err != nil {
		return 0, err
	}
	return k, nil
}

// prepare claims the clusters and finds a place for them. nil without an error
// means: look again.
func (n *node) prepare(rq *block.Req, off, length int64) (*fresh, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	first := n.clusterStart(off)
	c, err := n.claim(rq, first, n.clusters(off+length)<<n.clusterBits-first)
	if c == nil {
		return nil, err
	}
	f, err := n.placeFor(rq, c, off, min(length, c.end-off))
	if f == nil {
		n.unclaim(c)
	}
	return f, err
}

// placeFor decides what is written where. mu is held, the range claimed.
func (n *node) placeFor(rq *block.Req, c *claim, off, length int64) (*fresh, error) {
	r, _, err := n.lookup(rq, off, length)
	if err != nil || r.kind == stored && r.copied {
		return nil, err // another request has been here
	}
	s, err := n.ownTable(rq, off)
	if err != nil {
		return nil, err
	}
	f := &fresh{claim: c, first: c.off, off: off, old: r.entry, clusters: 1}
	_, placed := n.kindOf(r.entry, 0)
	if placed && (r.copied || n.external()) {
		f.placed, f.host = true, int64(r.entry.e&entryOffset)
	} else if n.external() {
		f.host = f.first
	} else if err := n.placeNew(rq, f, s, off+length); err != nil {
		return nil, err
	}
	f.end = min(off+length, f.first+f.clusters<<n.clusterBits)
	n.widen(f)
	return f, nil
}

// placeNew allocates clusters in a row, as many as the request has that are
// without a place like the first.
func (n *node) placeNew(rq *block.Req, f *fresh, s *l2Slice, end int64) error {
	i := f.first >> n.clusterBits & (n.cache.perSlice - 1)
	most := min(n.clusters(end)-f.first>>n.clusterBits, n.cache.perSlice-i)
	want := int64(1)
	for ; want < most; want++ {
		x := n.load(s, i+want)
		if x != f.old || x.e&^entryZero != 0 {
			break // each old place is another
		}
	}
	p, err := n.allocate(rq, want)
	if err != nil {
		return err
	}
	f.host, f.clusters, f.blank = p.off, p.clusters, p.fresh
	for c := range p.clusters {
		n.guard.data.set(p.off>>n.clusterBits + c)
	}
	return nil
}

// widen sets what is written beside the data: the rest of the subclusters at the
// ends, or of the cluster where its old content must move.
func (n *node) widen(f *fresh) {
	unit := int64(1) << n.subBits
	if n.moves(f) {
		unit = n.clusterSize()
	}
	f.from, f.to = f.off&^(unit-1), (f.end+unit-1)&^(unit-1)
	if n.external() {
		f.to = max(f.end, min(f.to, int64(n.size))) // the file has nothing behind the disk's end
	}
	if !f.placed || !n.extended() {
		return
	}
	// Subclusters that are there already need no copy.
	if n.has(f.old, f.off) {
		f.from = f.off
	}
	if n.has(f.old, f.end-1) {
		f.to = f.end
	}
}

// has reports whether the subcluster of a guest offset is stored.
func (n *node) has(x entry, off int64) bool {
	k, _ := n.kindOf(x, uint32(n.inCluster(off)>>n.subBits))
	return k == stored
}

// moves reports whether the cluster has content elsewhere that is to be copied
// whole: it is compressed, or a snapshot has it too.
func (n *node) moves(f *fresh) bool {
	if f.placed {
		return false
	}
	return f.old.e&entryCompressed != 0 || f.old.e&entryOffset != 0 && (!n.extended() || uint32(f.old.bitmap) != 0)
}

// writeAround writes v, and before and behind it what the clusters show there.
func (n *node) writeAround(rq *block.Req, f *fresh, v block.Vec) error {
	head, tail := f.off-f.from, f.to-f.end
	if f.blank && head+tail > 0 && n.showsZeroes(f) {
		head, tail = 0, 0
	}
	host := f.host + f.off - f.first
	if head+tail == 0 {
		return n.writeStored(rq, host, v, 0)
	}
	buf, err := n.copies.take(rq)
	if err != nil {
		return err
	}
	defer n.copies.put(buf)
	all := make(block.Vec, 0, len(v)+2)
	if head > 0 {
		if err := n.read(rq, f.from, block.Vec{buf[:head]}); err != nil {
			return err
		}
		all = append(all, buf[:head])
	}
	all = append(all, v...)
	if tail > 0 {
		// Behind the head, at an address as good as the buffer's.
		b := buf[(head+511)&^511:][:tail]
		if err := n.readTail(rq, f.end, b); err != nil {
			return err
		}
		all = append(all, b)
	}
	return n.writeStored(rq, host-head, all, 0)
}

// readTail reads what follows the data; the last cluster goes on behind the
// disk's end, where nothing but zeroes belongs.
func (n *node) readTail(rq *block.Req, off int64, b []byte) error {
	have := min(max(int64(n.size)-off, 0), int64(len(b)))
	clear(b[have:])
	if have == 0 {
		return nil
	}
	return n.read(rq, off, block.Vec{b[:have]})
}

// showsZeroes reports whether all that is to be copied is zeroes.
func (n *node) showsZeroes(f *fresh) bool {
	if f.old.e&entryCompressed != 0 || n.moves(f) {
		return false
	}
	for _, off := range [2]int64{f.from, f.end - 1} {
		switch k, _ := n.kindOf(f.old, uint32(n.inCluster(off)>>n.subBits)); k {
		case zeroes:
		case absent:
			if n.backing != nil && off < n.backing.Size() {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// link makes the table point at what was written, and lets go of what it pointed
// at. mu is held.
func (n *node) link(rq *block.Req, f *fresh) error {
	s, err := n.ownTable(rq, f.first)
	if err != nil {
		return err
	}
	i := f.first >> n.clusterBits & (n.cache.perSlice - 1)
	for c := range f.clusters {
		at := f.first + c<<n.clusterBits
		x := entry{e: uint64(f.host+c<<n.clusterBits) | entryCopied}
		if n.extended() {
			x.bitmap = n.marked(f, at)
		}
		old := n.load(s, i+c)
		n.store(s, i+c, x)
		if !f.placed {
			n.dropOld(old, n.opts.passSnapshot)
		}
	}
	return nil
}

// marked is the bitmap of the cluster at a guest offset: what was written is
// there, the rest is as it was.
func (n *node) marked(f *fresh, at int64) uint64 {
	if n.moves(f) {
		return 1<<32 - 1
	}
	first := max(f.from-at, 0) >> n.subBits
	if f.to == f.from {
		return f.old.bitmap
	}
	last := (min(f.to, at+n.clusterSize()) - at - 1) >> n.subBits
	m := uint64(1)<<(last+1) - uint64(1)<<first
	return (f.old.bitmap | m) &^ (m << 32)
}

// dropOld lets go of the place of an entry that is no longer in the table.
func (n *node) dropOld(old entry, pass bool) {
	switch {
	case old.e&entryCompressed != 0:
		off, length := n.packedPlace(old.e)
		n.unmapped(extent{off: off, n: length})
	case n.external():
	case old.e&entryOffset != 0:
		n.unmapped(extent{off: int64(old.e & entryOffset), n: n.clusterSize(), disc: pass})
	}
}

// abandon gives clusters back whose data could not be written.
func (n *node) abandon(rq *block.Req, f *fresh) {
	if f.placed || n.external() {
		return
	}
	n.unmapped(extent{off: f.host, n: f.clusters << n.clusterBits})
}

// ownTable gives the slice of a guest offset in an L2 table that the image may
// write: one that is its alone, allocated where there is none. mu is held.
func (n *node) ownTable(rq *block.Req, off int64) (*l2Slice, error) {
	table := off >> n.cache.shift / n.cache.perTable
	if n.l1[table]&entryCopied == 0 || n.l1[table]&entryOffset == 0 {
		if err := n.newTable(rq, table); err != nil {
			return nil, err
		}
	}
	return n.slice(rq, off)
}

// newTable allocates an L2 table: empty, or a copy of one that a snapshot has
// too.
func (n *node) newTable(rq *block.Req, table int64) error {
	old := int64(n.l1[table] & entryOffset)
	p, err := n.allocate(rq, 1)
	if err != nil {
		return err
	}
	n.guard.meta.set(p.off >> n.clusterBits)
	switch {
	case old != 0:
		b := alignedBytes(n.clusterSize())
		if err = n.readFile(rq, old, b); err == nil {
			err = n.write(rq, p.off, b, metaL2, table)
		}
	case !p.fresh:
		err = n.file.WriteZeroes(rq, p.off, n.clusterSize(), 0)
	}
	if err != nil {
		n.unmapped(extent{off: p.off, n: n.clusterSize()})
		return err
	}
	n.l1[table] = uint64(p.off) | entryCopied
	n.l1Dirty[table] = true
	n.changes.Add(1)
	if old != 0 {
		n.unmapped(extent{off: old, n: n.clusterSize()})
		return nil
	}
	n.rows[table].Store(nil) // slices of a table that was not there
	return nil
}
