package qcow2

import (
	"encoding/binary"
	"syscall"

	"github.com/platter-storage/platter/block"
)

// Truncate sets the disk's size. On growth the L1 table is made long enough and
// the new part made to read as zeroes before the header has the new size; when the
// disk shrinks, what lies behind goes first.
func (n *node) Truncate(rq *block.Req, size int64, pre block.Prealloc) error {
	if err := n.writable(); err != nil {
		return err
	}
	if err := n.resizable(size, pre); err != nil || size == int64(n.size) {
		return err
	}
	return n.resizeBitmaps(rq, size, func() error { return n.resize(rq, size, pre) })
}

// resize is Truncate for all but the bitmaps.
func (n *node) resize(rq *block.Req, size int64, pre block.Prealloc) error {
	old := int64(n.size)
	var err error
	if size > old {
		err = n.lengthen(rq, old, size, pre)
	} else {
		err = n.shorten(rq, size)
	}
	if err == nil {
		err = n.settle(rq)
	}
	if err == nil {
		n.mu.Lock()
		err = n.writeHeader(rq, atSize, binary.BigEndian.AppendUint64(nil, uint64(size)))
		n.mu.Unlock()
	}
	if err == nil {
		err = n.file.Flush(rq)
	}
	if err != nil {
		n.size = uint64(old)
		return err
	}
	n.size = uint64(size)
	n.info.SetSize(size)
	return nil
}

func (n *node) resizable(size int64, pre block.Prealloc) error {
	entries := (size + n.l2Span() - 1) / n.l2Span()
	switch {
	case n.version < 3 && n.snapshots > 0:
		return block.Errorf(syscall.ENOTSUP, "the image is of version 2 and has snapshots, which would lose their size: amend it to compat=1.1, or delete them")
	case size < int64(n.size) && pre != block.PreallocOff:
		return block.Errorf(syscall.EINVAL, "preallocation is for a disk that grows")
	case pre != block.PreallocOff && n.backing != nil && !n.extended():
		return block.Errorf(syscall.ENOTSUP, "preallocated clusters would hide the backing file: this needs an image with extended_l2=on")
	case size > block.MaxSize-n.l2Span() || entries*8 > maxL1Bytes:
		return block.Errorf(syscall.EFBIG, "the L1 table would have %d bytes; at most %d are allowed, which limits the disk to %s: use larger clusters",
			entries*8, maxL1Bytes, block.FormatSize(min(maxL1Bytes/8, block.MaxSize/n.l2Span())*n.l2Span()))
	}
	return nil
}

// lengthen prepares all that a longer disk needs but the header's size.
func (n *node) lengthen(rq *block.Req, old, size int64, pre block.Prealloc) error {
	if err := n.growL1(rq, size); err != nil {
		return err
	}
	n.size = uint64(size)
	if err := n.zeroTail(rq, old, size); err != nil {
		return err
	}
	if n.external() && size > n.data.Size() {
		if err := n.data.Truncate(rq, size, pre); err != nil {
			return err
		}
	}
	if pre == block.PreallocOff {
		return nil
	}
	return n.preallocate(rq, old, size, pre)
}

// zeroTail makes [old, size) read as zeroes: the rest of the cluster in which the
// disk ended may have anything, and so may a backing file that is longer.
func (n *node) zeroTail(rq *block.Req, old, size int64) error {
	end := min(n.clusters(old)<<n.clusterBits, size)
	for at := old; at < end; {
		r, err := n.locate(rq, at, end-at)
		if err != nil {
			return err
		}
		if r.kind == stored || r.kind == packed || r.kind == absent && n.backing != nil && at < n.backing.Size() {
			if err := n.writeZeroBytes(rq, at, r.n); err != nil {
				return err
			}
		}
		at += r.n
	}
	if n.backing == nil || n.backing.Size() <= end || end >= size {
		return nil
	}
	to := min(n.clusters(n.backing.Size())<<n.clusterBits, size)
	if n.version < 3 {
		return n.writeZeroBytes(rq, end, to-end)
	}
	return n.WriteZeroes(rq, end, to-end, 0)
}

func (n *node) writeZeroBytes(rq *block.Req, off, length int64) error {
	b := alignedBytes(min(length, 1<<20))
	for length > 0 {
		k := min(length, int64(len(b)))
		if err := n.writeAll(rq, off, block.Vec{b[:k]}, 0); err != nil {
			return err
		}
		off, length = off+k, length-k
	}
	return nil
}

// shorten lets go of the clusters behind size.
func (n *node) shorten(rq *block.Req, size int64) error {
	end := int64(n.l1Entries) * n.l2Span()
	drop := func(x entry, _, _ int64) (entry, bool) { return entry{}, x.e&^entryZero != 0 }
	for at := n.clusters(size) << n.clusterBits; at < end; {
		table := at / n.l2Span()
		if n.l1[table]&entryOffset == 0 {
			at = (table + 1) * n.l2Span()
			continue
		}
		k, err := n.unmapSome(rq, at, min(end, (table+1)*n.l2Span())-at, drop)
		if err != nil {
			return err
		}
		at += k
		if err := n.relieve(rq); err != nil {
			return err
		}
	}
	return nil
}

// growL1 makes the L1 table long enough for a disk of size bytes. The new one is
// durable before the header points at it, and the old one is freed after.
func (n *node) growL1(rq *block.Req, size int64) error {
	entries := (size + n.l2Span() - 1) / n.l2Span()
	if entries <= int64(n.l1Entries) {
		return nil
	}
	if err := n.settle(rq); err != nil {
		return err
	}
	off, err := n.copyL1(rq, entries)
	if err != nil {
		return err
	}
	if err := n.settle(rq); err != nil {
		return err
	}
	return n.switchL1(rq, off, entries)
}

// copyL1 allocates and writes a longer L1 table.
func (n *node) copyL1(rq *block.Req, entries int64) (int64, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	off, err := n.allocateRun(rq, n.clusters(entries*8))
	if err != nil {
		return 0, err
	}
	body := alignedBytes(n.clusters(entries*8) << n.clusterBits)
	copy(body, tableBytes(n.l1))
	for c := off >> n.clusterBits; c < n.clusters(off+entries*8); c++ {
		n.guard.meta.set(c)
	}
	return off, n.file.Pwritev(rq, off, block.Vec{body}, 0)
}

func (n *node) switchL1(rq *block.Req, off, entries int64) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.file.Flush(rq); err != nil {
		return err
	}
	head := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(nil, uint32(entries)), uint64(off))
	if err := n.writeHeader(rq, atL1Size, head); err != nil {
		return err
	}
	if err := n.file.Flush(rq); err != nil {
		return err
	}
	if n.l1Entries > 0 {
		n.unmapped(extent{off: int64(n.l1Off), n: int64(n.l1Entries) * 8, disc: n.opts.passOther})
	}
	n.moved(off, entries*8, metaL1)
	l1 := make([]uint64, entries)
	copy(l1, n.l1)
	rows := newRows(entries)
	for i := range n.rows {
		rows[i].Store(n.rows[i].Load())
	}
	n.l1, n.rows, n.l1Off, n.l1Entries = l1, rows, uint64(off), uint32(entries)
	return nil
}

// allocateRun allocates count clusters in a row, behind all that is in use.
// Refcount blocks that are missing follow them.
func (n *node) allocateRun(rq *block.Req, count int64) (int64, error) {
	start := n.clusters(n.fileEnd)
	for {
		total := count + (count/n.perBlock()+2)*2
		last := (start + total) / n.perBlock()
		if last < int64(len(n.refs.table)) {
			break
		}
		if err := n.growTable(rq, last); err != nil {
			return 0, err
		}
		start = n.clusters(n.fileEnd)
	}
	next := start + count
	for i := start / n.perBlock(); i <= (next-1)/n.perBlock(); i++ {
		if n.refs.table[i] != 0 {
			continue
		}
		if err := n.grow(rq, (next+1)<<n.clusterBits); err != nil {
			return 0, err
		}
		n.addCounts(i, next)
		next++
	}
	if err := n.grow(rq, next<<n.clusterBits); err != nil {
		return 0, err
	}
	for c := start; c < next; c++ {
		if c < start+count {
			if err := n.guardFree(rq, c); err != nil {
				return 0, err
			}
		}
		if err := n.setCount(rq, c, 1); err != nil {
			return 0, err
		}
	}
	return start << n.clusterBits, nil
}

// addCounts makes the empty refcount block i at a host cluster.
func (n *node) addCounts(i, at int64) *countBlock {
	b := &countBlock{b: n.spareCounts(), index: i, off: at << n.clusterBits, used: n.refs.uses}
	clear(b.b)
	n.refs.blocks[i] = b
	n.refs.table[i] = uint64(b.off)
	n.refs.tableDirty[i] = true
	n.guard.meta.set(at)
	n.dirtyCounts(b)
	return b
}

// preallocate gives every cluster of [from, to) a place.
func (n *node) preallocate(rq *block.Req, from, to int64, pre block.Prealloc) error {
	for at := from; at < to; {
		k, err := n.preallocateSome(rq, at, to-at, pre)
		if err != nil {
			return err
		}
		at += k
		if err := n.relieve(rq); err != nil {
			return err
		}
	}
	return nil
}

func (n *node) preallocateSome(rq *block.Req, off, length int64, pre block.Prealloc) (int64, error) {
	f, r, err := n.preparePlace(rq, off, length)
	if f == nil {
		return r.n, err
	}
	if !n.external() {
		err = n.fillPlace(rq, f, pre)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err == nil {
		f.from, f.to = f.first, f.first // no subcluster is written
		err = n.link(rq, f)
	} else {
		n.abandon(rq, f)
	}
	n.unclaim(f.claim)
	return min(f.first+f.clusters<<n.clusterBits-off, length), err
}

// preparePlace finds places for the clusters at off that have none; nil where the
// first has one, for r.n bytes.
func (n *node) preparePlace(rq *block.Req, off, length int64) (*fresh, run, error) {
	n.mu.Lock()
	r, _, err := n.lookup(rq, off, length)
	if err == nil {
		if _, placed := n.kindOf(r.entry, 0); placed || r.kind == packed {
			n.mu.Unlock()
			return nil, run{n: min(n.clusterStart(off)+n.clusterSize()-off, length)}, nil
		}
	}
	n.mu.Unlock()
	if err != nil {
		return nil, r, err
	}
	f, err := n.prepare(rq, off, length)
	return f, run{}, err
}

// fillPlace makes new clusters read as zeroes, and have space where that is
// wanted.
func (n *node) fillPlace(rq *block.Req, f *fresh, pre block.Prealloc) error {
	length := f.clusters << n.clusterBits
	switch pre {
	case block.PreallocFull:
		b := alignedBytes(min(length, 1<<20))
		for at := int64(0); at < length; at += int64(len(b)) {
			if err := n.file.Pwritev(rq, f.host+at, block.Vec{b[:min(int64(len(b)), length-at)]}, 0); err != nil {
				return err
			}
		}
		return nil
	case block.PreallocFalloc:
		return n.file.WriteZeroes(rq, f.host, length, 0)
	}
	if f.blank {
		return nil
	}
	return n.file.WriteZeroes(rq, f.host, length, block.MayUnmap)
}
