package qcow2

import (
	"encoding/binary"
	"slices"

	"github.com/platter-storage/platter/block"
)

// Writing metadata back. What changed in memory since the last time goes to the
// file in stages, each durable before the next begins, so that whatever a power
// cut leaves is an image that refers to nothing that is not there:
//
//	1. refcount blocks, with the data that requests have written
//	2. refcount table entries that point at new blocks
//	3. L2 tables, which point at data
//	4. L1 entries, which point at L2 tables
//
// Only then are clusters free that the old tables pointed at. A cut between two
// stages leaves clusters counted that nothing uses: leaks, no more.

// batch is what one settling writes: copies, so that requests go on meanwhile.
type batch struct {
	counts []piece
	table  []piece
	l2     []piece
	l1     []piece
	slices []*l2Slice
	blocks []*countBlock
	rows   []int64 // L1 entries
	ents   []int64 // refcount table entries
	freed  []extent
	// version of the metadata that it makes durable.
	version uint64
}

// piece is metadata on its way to the file.
type piece struct {
	off   int64
	b     []byte
	owner owner
	index int64 // which of its kind
}

// flush settles, or where nothing is dirty makes the data durable.
func (n *node) flush(rq *block.Req) error {
	if n.isDirty() {
		return n.settleOnce(rq)
	}
	return n.syncFiles(rq)
}

func (n *node) syncFiles(rq *block.Req) error {
	if n.data != n.file {
		if err := n.data.Flush(rq); err != nil {
			return err
		}
	}
	return n.file.Flush(rq)
}

// settle writes until nothing is left in memory that the file does not have.
// Requests may be in flight, but none that changes anything.
func (n *node) settle(rq *block.Req) error {
	if n.info.ReadOnly {
		return nil
	}
	for {
		if err := n.settleOnce(rq); err != nil {
			return err
		}
		n.mu.Lock()
		more := len(n.limbo) > 0
		n.mu.Unlock()
		if !n.isDirty() && !more {
			return nil
		}
	}
}

// settleOnce writes what was dirty when it began, and frees what that unmapped.
func (n *node) settleOnce(rq *block.Req) error {
	if err := n.writable(); err != nil {
		return err
	}
	n.settling.Lock()
	defer n.settling.Unlock()
	n.mu.Lock()
	b := n.collect()
	err := n.guardBatch(rq, b)
	n.mu.Unlock()
	if err == nil {
		err = n.writeBatch(rq, b)
	}
	n.mu.Lock()
	n.finish(b, err)
	n.mu.Unlock()
	if err != nil {
		return err
	}
	return n.reap(rq)
}

// collect takes what is dirty, and marks it as being written.
func (n *node) collect() *batch {
	b := &batch{freed: n.freed}
	n.freed = nil
	for _, c := range n.refs.blocks {
		if c.dirty {
			c.dirty, c.busy = false, true
			b.blocks = append(b.blocks, c)
			copied := alignedBytes(c.hi - c.lo)
			copy(copied, c.b[c.lo:])
			b.counts = append(b.counts, piece{c.off + c.lo, copied, metaCounts, c.index})
		}
	}
	for i := range n.refs.tableDirty {
		b.ents = append(b.ents, i)
		b.table = append(b.table, piece{int64(n.tableOff) + 8*i, binary.BigEndian.AppendUint64(nil, n.refs.table[i]), metaCountTable, i})
	}
	for _, s := range n.cache.clock {
		if s.dirty {
			s.dirty, s.busy = false, true
			b.slices = append(b.slices, s)
			b.l2 = append(b.l2, piece{n.sliceOff(s.index), n.sliceBytes(s), metaL2, s.index / n.cache.perTable})
		}
	}
	for i := range n.l1Dirty {
		b.rows = append(b.rows, i)
		b.l1 = append(b.l1, piece{int64(n.l1Off) + 8*i, binary.BigEndian.AppendUint64(nil, n.l1[i]), metaL1, i})
	}
	clear(n.refs.tableDirty)
	clear(n.l1Dirty)
	n.refs.dirty, n.cache.dirty = 0, 0
	b.version = n.changes.Load()
	return b
}

// guardBatch asks the guard about all of a batch. mu is held.
func (n *node) guardBatch(rq *block.Req, b *batch) error {
	for _, stage := range [][]piece{b.counts, b.table, b.l2, b.l1} {
		for _, p := range stage {
			if err := n.guardWrite(rq, p); err != nil {
				return err
			}
		}
	}
	return nil
}

// sliceBytes is a slice as it lies in the file.
func (n *node) sliceBytes(s *l2Slice) []byte {
	b := alignedBytes(n.cache.sliceBytes)
	for i := range s.ents {
		binary.BigEndian.PutUint64(b[8*i:], s.ents[i].Load())
	}
	return b
}

// writeBatch writes the stages. Data comes first and has a flush with the first
// of them.
func (n *node) writeBatch(rq *block.Req, b *batch) error {
	if n.data != n.file {
		if err := n.data.Flush(rq); err != nil {
			return err
		}
	}
	synced := false
	for _, stage := range [][]piece{b.counts, b.table, b.l2, b.l1} {
		if len(stage) == 0 {
			continue
		}
		if !synced && &stage[0] != firstOf(b.counts) {
			if err := n.file.Flush(rq); err != nil {
				return err
			}
		}
		if err := n.writePieces(rq, stage); err != nil {
			return err
		}
		if err := n.file.Flush(rq); err != nil {
			return err
		}
		synced = true
	}
	if synced {
		return nil
	}
	return n.file.Flush(rq)
}

func firstOf(p []piece) *piece {
	if len(p) == 0 {
		return nil
	}
	return &p[0]
}

// writePieces writes one stage in the order of the file, neighbours with one
// request.
func (n *node) writePieces(rq *block.Req, all []piece) error {
	slices.SortFunc(all, func(a, b piece) int { return int(min(max(a.off-b.off, -1), 1)) })
	var v block.Vec
	for len(all) > 0 {
		first, end := all[0], all[0].off
		v = v[:0]
		for len(all) > 0 && all[0].off == end && len(v) < maxPieces {
			v, end, all = append(v, all[0].b), end+int64(len(all[0].b)), all[1:]
		}
		if err := n.file.Pwritev(rq, first.off, v, 0); err != nil {
			return err
		}
	}
	return nil
}

// maxPieces bounds the vector of one write.
const maxPieces = 256

// finish marks what was written, or, after an error, as dirty again.
func (n *node) finish(b *batch, err error) {
	for _, s := range b.slices {
		s.busy = false
		if err != nil {
			n.dirtySlice(s)
		}
	}
	for _, c := range b.blocks {
		c.busy = false
		if err != nil {
			n.dirtyCounts(c)
		}
	}
	if err != nil {
		for _, i := range b.rows {
			n.l1Dirty[i] = true
		}
		for _, i := range b.ents {
			n.refs.tableDirty[i] = true
		}
		n.freed = append(b.freed, n.freed...)
		n.changes.Add(1)
		return
	}
	n.limbo = append(n.limbo, b.freed...)
	n.durable.Store(b.version)
}

// isDirty reports whether metadata in memory is newer than what is durable.
func (n *node) isDirty() bool { return n.changes.Load() != n.durable.Load() }

// reap frees the extents that nothing in the file points at and no request in
// flight may have looked up: they are discarded in the file, where that is wanted,
// and then given to the allocator.
func (n *node) reap(rq *block.Req) error {
	n.mu.Lock()
	if len(n.limbo) > 0 && n.pins.advance() {
		n.pins.advance()
	}
	gen := n.pins.gen.Load()
	var ready, later []extent
	for _, x := range n.limbo {
		if x.gen+2 <= gen {
			ready = append(ready, x)
		} else {
			later = append(later, x)
		}
	}
	n.limbo = later
	n.mu.Unlock()
	for i, x := range ready {
		if err := n.reapOne(rq, x); err != nil {
			n.mu.Lock()
			n.limbo = append(n.limbo, ready[i:]...)
			n.mu.Unlock()
			return err
		}
	}
	return nil
}

func (n *node) reapOne(rq *block.Req, x extent) error {
	n.mu.Lock()
	whole, err := n.lastUser(rq, x)
	n.mu.Unlock()
	if err != nil {
		return err
	}
	if x.disc && whole {
		if err := n.file.Discard(rq, x.off, x.n); err != nil && !block.IsNotSupported(err) {
			n.env.Log.Debug("a discard below a qcow2 image failed", "file", n.info.Filename, "error", err)
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.release(rq, x)
}

// lastUser reports whether every cluster of x will be free.
func (n *node) lastUser(rq *block.Req, x extent) (bool, error) {
	for c := x.off >> n.clusterBits; c < n.clusters(x.off+x.n); c++ {
		if have, err := n.count(rq, c); err != nil || have != 1 {
			return false, err
		}
	}
	return true, nil
}

// unmapped notes that the tables in memory point at x no more. mu is held.
func (n *node) unmapped(x extent) {
	x.gen = n.pins.gen.Load()
	n.changes.Add(1)
	if k := len(n.freed); k > 0 {
		last := &n.freed[k-1]
		if last.off+last.n == x.off && last.disc == x.disc && (x.off|x.n|last.off)&(n.clusterSize()-1) == 0 {
			last.n += x.n
			last.gen = x.gen
			return
		}
	}
	n.freed = append(n.freed, x)
}

// write writes metadata at once, after a look at whose clusters it hits. mu is
// held.
func (n *node) write(rq *block.Req, off int64, b []byte, o owner, index int64) error {
	if err := n.guardWrite(rq, piece{off, b, o, index}); err != nil {
		return err
	}
	return n.file.Pwritev(rq, off, block.Vec{b}, 0)
}

// writeHeader changes a part of the header that lies in one sector.
func (n *node) writeHeader(rq *block.Req, at int64, b []byte) error {
	return n.write(rq, at, b, metaHeader, 0)
}
