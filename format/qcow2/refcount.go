package qcow2

import (
	"encoding/binary"
	"syscall"

	"github.com/platter-storage/platter/block"
)

// refcounts says how many users each host cluster has (section "Host cluster
// management"). Blocks in memory may be newer than the file's; increments are
// written before what they are for, decrements after.
type refcounts struct {
	table      []uint64
	tableDirty map[int64]bool
	blocks     map[int64]*countBlock
	max        int // blocks to keep
	dirty      int
	uses       uint64
	hint       int64 // no cluster below is free
}

// countBlock is a refcount block in memory.
type countBlock struct {
	b           []byte
	index, off  int64
	dirty, busy bool
	used        uint64
	lo, hi      int64 // the bytes that are dirty
}

// countsOf is the refcount block of a cluster; nil where there is none, and its
// clusters all are free. mu is held, here and below.
func (n *node) countsOf(rq *block.Req, cluster int64) (*countBlock, error) {
	i := cluster / n.perBlock()
	if i >= int64(len(n.refs.table)) || n.refs.table[i] == 0 {
		return nil, nil
	}
	n.refs.uses++
	if b := n.refs.blocks[i]; b != nil {
		b.used = n.refs.uses
		return b, nil
	}
	off := n.refs.table[i]
	if !n.aligned(off) || off > block.MaxSize || int64(off) >= n.file.Size() {
		return nil, n.corrupt(rq, "refcount table entry %d is %#x: it points at no cluster of the file, which has %d bytes", i, off, n.file.Size())
	}
	b := &countBlock{b: n.spareCounts(), index: i, off: int64(off), used: n.refs.uses}
	if err := n.readFile(rq, b.off, b.b); err != nil {
		return nil, err
	}
	n.refs.blocks[i] = b
	return b, nil
}

// spareCounts is memory for a block: that of the clean one used longest ago where
// there are enough.
func (n *node) spareCounts() []byte {
	if len(n.refs.blocks) >= n.refs.max {
		var oldest *countBlock
		for _, b := range n.refs.blocks {
			if !b.dirty && !b.busy && (oldest == nil || b.used < oldest.used) {
				oldest = b
			}
		}
		if oldest != nil {
			delete(n.refs.blocks, oldest.index)
			return oldest.b
		}
	}
	return alignedBytes(n.clusterSize())
}

// countPart is how many bytes of a refcount block are written for one change.
const countPart = 4096

// dirtyCounts marks all of a block.
func (n *node) dirtyCounts(b *countBlock) { n.dirtyPart(b, 0, int64(len(b.b))) }

func (n *node) dirtyPart(b *countBlock, lo, hi int64) {
	if !b.dirty {
		b.dirty, b.lo, b.hi = true, lo, hi
		n.refs.dirty++
	}
	b.lo, b.hi = min(b.lo, lo), max(b.hi, hi)
	n.changes.Add(1)
}

// count is the refcount of a cluster.
func (n *node) count(rq *block.Req, cluster int64) (uint64, error) {
	b, err := n.countsOf(rq, cluster)
	if b == nil {
		return 0, err
	}
	return refAt(b.b, n.order, cluster%n.perBlock()), nil
}

// setCount changes a refcount whose block is there.
func (n *node) setCount(rq *block.Req, cluster int64, to uint64) error {
	b, err := n.countsOf(rq, cluster)
	if err != nil {
		return err
	}
	if b == nil {
		return n.corrupt(rq, "the cluster at %d is in use, and no refcount block counts it", cluster<<n.clusterBits)
	}
	i := cluster % n.perBlock()
	setRefAt(b.b, n.order, i, to)
	lo := i << n.order / 8 &^ (countPart - 1)
	n.dirtyPart(b, lo, min(lo+countPart, int64(len(b.b))))
	return nil
}

// release takes one user from each cluster of x, which nothing in the file
// points at any more. Clusters without users left are free from now on.
func (n *node) release(rq *block.Req, x extent) error {
	for c := x.off >> n.clusterBits; c < n.clusters(x.off+x.n); c++ {
		have, err := n.count(rq, c)
		if err != nil {
			return err
		}
		if have == 0 {
			return n.corrupt(rq, "the cluster at %d is unmapped, and its refcount is 0 already", c<<n.clusterBits)
		}
		if err := n.setCount(rq, c, have-1); err != nil {
			return err
		}
		if have == 1 {
			n.guard.gone(c)
			n.packed.forget() // readers who had looked it up are done
			n.refs.hint = min(n.refs.hint, c)
			if c == n.packedAt>>n.clusterBits {
				n.packedAt = 0
			}
		}
	}
	return nil
}

// place is a run of host clusters that was allocated. fresh ones have never been
// written: the file reads as zeroes there.
type place struct {
	off, clusters int64
	fresh         bool
}

// allocate finds up to want free clusters in a row, counts one user for each, and
// sees to it that the file is long enough.
func (n *node) allocate(rq *block.Req, want int64) (place, error) {
	first, got, err := n.findFree(rq, want)
	if err != nil {
		return place{}, err
	}
	p := place{first << n.clusterBits, got, first<<n.clusterBits >= n.fileEnd}
	for c := first; c < first+got; c++ {
		if err := n.guardFree(rq, c); err != nil {
			return place{}, err
		}
	}
	if err := n.grow(rq, (first+got)<<n.clusterBits); err != nil {
		return place{}, err
	}
	for c := first; c < first+got; c++ {
		if err := n.setCount(rq, c, 1); err != nil {
			return place{}, err
		}
	}
	n.refs.hint = first + got
	return p, nil
}

// findFree looks for free clusters from the hint on, within one refcount block,
// which is made where it is missing.
func (n *node) findFree(rq *block.Req, want int64) (first, got int64, err error) {
	for c := n.refs.hint; ; {
		if c >= maxHost>>n.clusterBits {
			return 0, 0, block.Errorf(syscall.EFBIG, "the image has no free cluster below %d, the format's last", int64(maxHost))
		}
		b, err := n.countsOf(rq, c)
		if err != nil {
			return 0, 0, err
		}
		if b == nil {
			if b, err = n.newCounts(rq, c); err != nil {
				return 0, 0, err
			}
		}
		per := n.perBlock()
		i := c % per
		for i < per && refAt(b.b, n.order, i) != 0 {
			i++
		}
		c += i - c%per
		n.refs.hint = c
		if i < per {
			for i+got < per && got < want && refAt(b.b, n.order, i+got) == 0 {
				got++
			}
			return c, got, nil
		}
	}
}

// maxHost is the end of the host offsets that entries can have.
const maxHost = 1 << 56

// newCounts makes the refcount block of a range that had none: it lies in the
// first cluster of that range and counts itself.
func (n *node) newCounts(rq *block.Req, cluster int64) (*countBlock, error) {
	i := cluster / n.perBlock()
	if i >= int64(len(n.refs.table)) {
		if err := n.growTable(rq, i); err != nil {
			return nil, err
		}
		if n.refs.table[i] != 0 {
			return n.countsOf(rq, cluster)
		}
	}
	first := i * n.perBlock()
	if err := n.guardFree(rq, first); err != nil {
		return nil, err
	}
	if err := n.grow(rq, (first+1)<<n.clusterBits); err != nil {
		return nil, err
	}
	b := n.addCounts(i, first)
	setRefAt(b.b, n.order, 0, 1)
	return b, nil
}

// grow makes the file at least end bytes long, and remembers what has been handed
// out. It grows in steps: each waits for the requests in flight at the file.
func (n *node) grow(rq *block.Req, end int64) error {
	if end > n.file.Size() {
		step := min(max(end/8, min(16*n.clusterSize(), 1<<20), n.clusterSize()), growStep)
		to := n.clusters((end+step-1)/step*step) << n.clusterBits
		err := n.file.Truncate(rq, to, block.PreallocOff)
		if err != nil {
			err = n.file.Truncate(rq, n.clusters(end)<<n.clusterBits, block.PreallocOff)
		}
		if err != nil {
			return n.noSpace(err, end)
		}
	}
	n.fileEnd = max(n.fileEnd, end)
	return nil
}

// growStep is how much the file grows by at most, in bytes; what is left over is
// cut off when the image is closed.
const growStep = 256 << 20

func (n *node) noSpace(err error, end int64) error {
	if block.IsNotSupported(err) || block.Errno(err) == syscall.EINVAL {
		return block.Errorf(syscall.ENOSPC, "%s has %d bytes and cannot grow to the %d that the image needs: make it larger, or discard in the guest",
			n.file.Info().Filename, n.file.Size(), end)
	}
	return err
}

// trimFile cuts off what the file was grown by in advance.
func (n *node) trimFile(rq *block.Req) error {
	n.mu.Lock()
	end := n.clusters(n.fileEnd) << n.clusterBits
	n.mu.Unlock()
	if end >= n.file.Size() || n.file.Perm()&block.PermResize == 0 {
		return nil
	}
	err := n.file.Truncate(rq, end, block.PreallocOff)
	if block.IsNotSupported(err) || err != nil && block.Errno(err) == syscall.EINVAL {
		return nil // a device is as long as it is
	}
	return err
}

// growTable makes the refcount table long enough for entry i, where the file has
// room that no refcount covers: behind all that the old table covers. It is
// written and the header points at it before this returns; the old one is freed
// when that is durable.
func (n *node) growTable(rq *block.Req, i int64) error {
	old := int64(len(n.refs.table))
	start := old * n.perBlock()
	entries := max(i+1, old+old/2)
	blocks, table := int64(0), int64(0)
	for again := true; again; {
		table = n.clusters(entries * 8)
		entries = table << n.clusterBits / 8
		need := (blocks + table + n.perBlock() - 1) / n.perBlock()
		again = need != blocks || old+need > entries
		blocks, entries = need, max(entries, old+need)
	}
	if entries*8 > maxTableBytes {
		return block.Errorf(syscall.EFBIG, "the refcount table would have %d bytes; at most %d are allowed, which limits the image to %s: use larger clusters",
			entries*8, maxTableBytes, block.FormatSize(old*n.perBlock()<<n.clusterBits))
	}
	total := blocks + table
	for c := start; c < start+total; c++ {
		if err := n.guardFree(rq, c); err != nil {
			return err
		}
	}
	if err := n.grow(rq, (start+total)<<n.clusterBits); err != nil {
		return err
	}
	all := make([]uint64, entries)
	copy(all, n.refs.table)
	for k := range blocks {
		n.coverTable(all, old+k, start+k, start, total)
	}
	return n.switchTable(rq, all, (start+blocks)<<n.clusterBits, table)
}

// coverTable makes the block that counts the new table's clusters in its range.
func (n *node) coverTable(all []uint64, index, at, start, total int64) {
	b := &countBlock{b: alignedBytes(n.clusterSize()), index: index, off: at << n.clusterBits, used: n.refs.uses}
	first := index * n.perBlock()
	for c := max(first, start); c < min(first+n.perBlock(), start+total); c++ {
		setRefAt(b.b, n.order, c-first, 1)
		n.guard.meta.set(c)
	}
	all[index] = uint64(b.off)
	n.refs.blocks[index] = b
	n.dirtyCounts(b)
}

// switchTable writes the blocks that the new table points at, the table, and the
// header, each durable before the next. Blocks stay dirty: a settling that began
// before may be about to write an older state of one, which is as good for what
// the file refers to by then.
func (n *node) switchTable(rq *block.Req, all []uint64, off, clusters int64) error {
	for _, b := range n.refs.blocks {
		if !b.dirty {
			continue
		}
		if err := n.write(rq, b.off, b.b, metaCounts, b.index); err != nil {
			return err
		}
	}
	for c := off >> n.clusterBits; c < off>>n.clusterBits+clusters; c++ {
		n.guard.meta.set(c)
	}
	body := alignedBytes(clusters << n.clusterBits)
	copy(body, tableBytes(all))
	if err := n.write(rq, off, body, metaCountTable, 0); err != nil {
		return err
	}
	if err := n.file.Flush(rq); err != nil {
		return err
	}
	old := extent{off: int64(n.tableOff), n: int64(n.tableLen) << n.clusterBits}
	head := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(nil, uint64(off)), uint32(clusters))
	if err := n.writeHeader(rq, atTable, head); err != nil {
		return err
	}
	if err := n.file.Flush(rq); err != nil {
		return err
	}
	n.tableOff, n.tableLen, n.refs.table = uint64(off), uint32(clusters), all
	n.moved(off, clusters<<n.clusterBits, metaCountTable)
	clear(n.refs.tableDirty)
	if old.n > 0 {
		n.unmapped(old)
	}
	return nil
}
