package qcow2

import (
	"encoding/binary"
	"fmt"
	"syscall"

	"github.com/platter-storage/platter/block"
)

// The guard knows whose each host cluster is, and is asked before each metadata
// write and each allocation. What it finds wrong is a mistake of ours or damage
// that came from outside; either way the next write could destroy more. Writes
// stop, the image is marked corrupt, and the error says which structure and
// where.
type guard struct {
	meta  clusterSet // header, tables, refcount blocks, snapshots, bitmaps
	data  clusterSet // what the L2 entries that have been in memory point at
	fixed []fixedRange
}

// owner is a kind of metadata.
type owner uint8

const (
	metaHeader owner = iota
	metaL1
	metaL2
	metaCountTable
	metaCounts
	metaSnapshots
	metaInactiveL1
	metaBitmaps
)

var ownerNames = [...]string{"header", "active L1 table", "L2 table", "refcount table", "refcount block", "snapshot table", "L1 table of a snapshot", "bitmap directory"}

func (o owner) String() string { return ownerNames[o] }

// fixedRange is a structure that does not move while the image is open, in
// bytes.
type fixedRange struct {
	off, n int64
	owner  owner
}

// clusterSet is a set of host clusters, in pages that are made when they are
// needed.
type clusterSet struct{ pages map[int64]*setPage }

// setPage has the bits of 32768 clusters.
type setPage [512]uint64

const (
	pageClusters = 512 * 64
	// maxSetPages bounds a set's memory to 32 MiB: 16 TiB of image with
	// clusters of 64 KiB. What lies beyond is not guarded.
	maxSetPages = 8192
)

func (s *clusterSet) set(c int64) {
	p := s.pages[c/pageClusters]
	if p == nil {
		if len(s.pages) >= maxSetPages {
			return
		}
		if s.pages == nil {
			s.pages = map[int64]*setPage{}
		}
		p = new(setPage)
		s.pages[c/pageClusters] = p
	}
	p[c%pageClusters/64] |= 1 << (c % 64)
}

func (s *clusterSet) clear(c int64) {
	if p := s.pages[c/pageClusters]; p != nil {
		p[c%pageClusters/64] &^= 1 << (c % 64)
	}
}

func (s *clusterSet) has(c int64) bool {
	p := s.pages[c/pageClusters]
	return p != nil && p[c%pageClusters/64]>>(c%64)&1 != 0
}

// gone forgets a cluster that is free.
func (g *guard) gone(c int64) {
	g.meta.clear(c)
	g.data.clear(c)
}

// own enters a fixed structure.
func (n *node) own(off, length int64, o owner) {
	if length <= 0 || off < 0 || off > block.MaxSize-length {
		return
	}
	n.guard.fixed = append(n.guard.fixed, fixedRange{off, length, o})
	for c := off >> n.clusterBits; c < n.clusters(off+length); c++ {
		n.guard.meta.set(c)
	}
}

// corrupt stops writes for good and says why, in the error and in the log. mu is
// held. Images that are read only stay as they are.
func (n *node) corrupt(rq *block.Req, format string, args ...any) error {
	err := block.Errorf(syscall.EIO, "%s: %s; nothing more is written to it: copy what it still shows, then repair it (check -r all)",
		n.info.Filename, fmt.Sprintf(format, args...))
	if n.info.ReadOnly || n.broken.Load() != nil {
		return err
	}
	n.broken.Store(&damage{err})
	n.env.Log.Error("a qcow2 image is damaged", "error", err)
	if n.version >= 3 {
		n.incompat |= featCorrupt
		b := binary.BigEndian.AppendUint64(nil, n.incompat)
		if werr := n.file.Pwritev(rq, atFeatures, block.Vec{b}, 0); werr != nil {
			n.env.Log.Error("the image could not be marked corrupt", "file", n.info.Filename, "error", werr)
		}
	}
	return err
}

// guardFree refuses to hand out a cluster that is somebody's though its refcount
// is 0. mu is held, here and below.
func (n *node) guardFree(rq *block.Req, c int64) error {
	if n.opts.noGuard {
		return nil
	}
	if c == 0 || n.guard.meta.has(c) {
		return n.corrupt(rq, "the cluster at %d is free by its refcount and belongs to the %s", c<<n.clusterBits, n.ownerOf(c))
	}
	if n.guard.data.has(c) {
		return n.corrupt(rq, "the cluster at %d is free by its refcount and an L2 entry points at it", c<<n.clusterBits)
	}
	return nil
}

// ownerOf names whose a metadata cluster is.
func (n *node) ownerOf(c int64) string {
	off := c << n.clusterBits
	for _, f := range n.guard.fixed {
		if off < f.off+f.n && off+n.clusterSize() > f.off {
			return f.owner.String()
		}
	}
	for i, x := range n.l1 {
		if int64(x&entryOffset) == off {
			return fmt.Sprintf("L2 table of L1 entry %d", i)
		}
	}
	for i, x := range n.refs.table {
		if int64(x) == off {
			return fmt.Sprintf("refcount block %d", i)
		}
	}
	return "metadata"
}

// guardWrite checks that a metadata write hits its own structure and no other.
func (n *node) guardWrite(rq *block.Req, p piece) error {
	if n.opts.noGuard {
		return nil
	}
	for c := p.off >> n.clusterBits; c < n.clusters(p.off+int64(len(p.b))); c++ {
		if c == 0 != (p.owner == metaHeader) || n.guard.data.has(c) && !n.guard.meta.has(c) {
			return n.corrupt(rq, "a write of %d bytes of the %s (%d) at %d hits data of the disk, or the header", len(p.b), p.owner, p.index, p.off)
		}
	}
	for _, f := range n.guard.fixed {
		if p.off < f.off+f.n && p.off+int64(len(p.b)) > f.off && p.owner != f.owner {
			return n.corrupt(rq, "a write of %d bytes of the %s (%d) at %d hits the %s", len(p.b), p.owner, p.index, p.off, f.owner)
		}
	}
	return nil
}

// moved enters a fixed structure at its new place; the old one's clusters are
// forgotten when they are freed.
func (n *node) moved(off, length int64, o owner) {
	for i, f := range n.guard.fixed {
		if f.owner == o {
			n.guard.fixed = append(n.guard.fixed[:i], n.guard.fixed[i+1:]...)
			break
		}
	}
	n.own(off, length, o)
}

// guardSlice looks at what the entries of a slice that was read point at.
func (n *node) guardSlice(rq *block.Req, s *l2Slice) error {
	if n.opts.noGuard || n.external() {
		return nil
	}
	for i := range n.cache.perSlice {
		x := n.load(s, i)
		off, length := int64(x.e&entryOffset), n.clusterSize()
		if x.e&entryCompressed != 0 {
			off, length = n.packedPlace(x.e)
		}
		if off == 0 {
			continue
		}
		if off >= n.clusters(n.file.Size())<<n.clusterBits && !n.info.ReadOnly {
			guest := (s.index*n.cache.perSlice + i) << n.clusterBits
			return n.corrupt(rq, "the L2 entry of guest offset %d points at %d, beyond the end of the file, which has %d bytes", guest, off, n.file.Size())
		}
		for c := off >> n.clusterBits; c < n.clusters(off+length); c++ {
			if n.guard.meta.has(c) {
				guest := (s.index*n.cache.perSlice + i) << n.clusterBits
				return n.corrupt(rq, "the L2 entry of guest offset %d points at %d, which belongs to the %s", guest, off, n.ownerOf(c))
			}
			n.guard.data.set(c)
		}
	}
	return nil
}

// guardTables enters what the header and the tables say of where metadata is, and
// finds structures that lie over each other.
func (n *node) guardTables(rq *block.Req) error {
	n.own(0, n.clusterSize(), metaHeader)
	n.own(int64(n.tableOff), int64(n.tableLen)<<n.clusterBits, metaCountTable)
	n.own(int64(n.l1Off), int64(n.l1Entries)*8, metaL1)
	if err := n.guardLists(rq); err != nil {
		return err
	}
	for i, a := range n.guard.fixed {
		for _, b := range n.guard.fixed[:i] {
			if a.off < b.off+b.n && b.off < a.off+a.n {
				return n.corrupt(rq, "the %s at %d lies over the %s at %d", a.owner, a.off, b.owner, b.off)
			}
		}
	}
	for i, x := range n.refs.table {
		if err := n.guardTable(rq, x, metaCounts, i); err != nil {
			return err
		}
	}
	for i, x := range n.l1 {
		if err := n.guardTable(rq, x&entryOffset, metaL2, i); err != nil {
			return err
		}
	}
	return nil
}

// guardLists enters the tables of snapshots and of bitmaps.
func (n *node) guardLists(rq *block.Req) error {
	e := &editor{rq: rq, file: n.file, layout: n.layout}
	snaps, length, err := e.readSnapshots()
	if err != nil {
		return n.corrupt(rq, "%v", err)
	}
	n.own(int64(n.snapOff), length, metaSnapshots)
	for _, s := range snaps {
		if s.l1Off <= maxHost {
			n.own(int64(s.l1Off), min(int64(s.l1Entries)*8, maxL1Bytes), metaInactiveL1)
		}
	}
	x, ok, err := n.bitmapHeader()
	if err != nil {
		return n.corrupt(rq, "%v", err)
	}
	if ok {
		n.own(int64(x.offset), int64(x.size), metaBitmaps)
	}
	return nil
}

func (n *node) guardTable(rq *block.Req, off uint64, o owner, i int) error {
	if off == 0 || off > maxHost || int64(off) >= n.file.Size() {
		return nil // its use is refused
	}
	c := int64(off) >> n.clusterBits
	if n.guard.meta.has(c) {
		return n.corrupt(rq, "the %s %d at %d lies over the %s", o, i, off, n.ownerOf(c))
	}
	n.guard.meta.set(c)
	return nil
}
