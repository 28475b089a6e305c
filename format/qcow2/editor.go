package qcow2

import (
	"encoding/binary"
	"slices"
	"syscall"

	"github.com/platter-storage/platter/block"
)

// editor reads and changes an image's metadata in the file itself, while the
// node is drained and has nothing cached that the file does not have: check,
// repair, snapshots, bitmaps and amend are long orders of steps that must each
// be durable before the next, and need no speed.
//
// Refcounts that changed wait in blocks until sync, or until their block makes
// room for another: within one step their order does not matter, because all go
// up or all go down.
type editor struct {
	rq   *block.Req
	file *block.Child
	layout
	table  []uint64 // the refcount table
	blocks map[int64]*refBlock
	uses   uint64
	free   int64 // no cluster below is free
}

// refBlock is a refcount block in memory.
type refBlock struct {
	b     []byte
	off   int64
	dirty bool
	used  uint64
}

// maxRefBlocks is how many refcount blocks an editor keeps, of at most 2 MiB
// each.
const maxRefBlocks = 8

// edit opens the metadata of file.
func edit(rq *block.Req, file *block.Child) (*editor, error) {
	e := &editor{rq: rq, file: file}
	return e, e.load()
}

// load reads header and refcount table.
func (e *editor) load() error {
	head := make([]byte, min(1<<21, e.file.Size()))
	if err := e.read(0, head); err != nil {
		return err
	}
	l, err := parseLayout(head)
	if err != nil {
		return block.Errorf(syscall.EINVAL, "%s: %v", e.file.Info().Filename, err)
	}
	e.layout, e.blocks, e.free = l, map[int64]*refBlock{}, 0
	e.table, err = e.readTable(l.tableOff, int64(l.tableLen)<<l.clusterBits/8)
	return err
}

// read fills b from off; what lies beyond the end of the file is zeroes.
func (e *editor) read(off int64, b []byte) error {
	have := min(max(e.file.Size()-off, 0), int64(len(b)))
	clear(b[have:])
	if have == 0 {
		return nil
	}
	if err := e.rq.Context().Err(); err != nil {
		return err
	}
	return e.file.Preadv(e.rq, off, block.Vec{b[:have]}, 0)
}

// write writes b at off, for which the file grows.
func (e *editor) write(off int64, b []byte) error {
	if end := off + int64(len(b)); end > e.file.Size() {
		if err := e.file.Truncate(e.rq, e.clusters(end)<<e.clusterBits, block.PreallocOff); err != nil {
			return err
		}
	}
	return e.file.Pwritev(e.rq, off, block.Vec{b}, 0)
}

// hole reports whether a range of the file is known to be zeroes, so that
// reading it can be spared: sparse files may be larger than any time suffices.
func (e *editor) hole(off, n int64) bool {
	size := e.file.Size()
	if off >= size {
		return true
	}
	n = min(n, size-off)
	x, err := e.file.BlockStatus(e.rq, off, n)
	return err == nil && x.Zero && x.Len >= n
}

// readTable reads n entries of 8 bytes, which the caller has bounded.
func (e *editor) readTable(off uint64, n int64) ([]uint64, error) {
	t := make([]uint64, n)
	if off > block.MaxSize-maxL1Bytes || e.hole(int64(off), n*8) {
		return t, nil
	}
	b := make([]byte, min(n*8, 1<<20))
	for at := int64(0); at < n; {
		part := b[:min(int64(len(b)), (n-at)*8)]
		if err := e.read(int64(off)+at*8, part); err != nil {
			return nil, err
		}
		for ; len(part) > 0; part, at = part[8:], at+1 {
			t[at] = binary.BigEndian.Uint64(part)
		}
	}
	return t, nil
}

// tableBytes are entries as they lie in the file.
func tableBytes(t []uint64) []byte {
	b := make([]byte, 0, len(t)*8)
	for _, x := range t {
		b = binary.BigEndian.AppendUint64(b, x)
	}
	return b
}

// blockAt gives the refcount block of a cluster, or nil where there is none
// that could be one.
func (e *editor) blockAt(cluster int64) (*refBlock, error) {
	i := cluster / e.perBlock()
	if i >= int64(len(e.table)) || !e.usableBlock(e.table[i]) {
		return nil, nil
	}
	if r := e.blocks[i]; r != nil {
		e.uses++
		r.used = e.uses
		return r, nil
	}
	r, err := e.spareBlock()
	if err != nil {
		return nil, err
	}
	r.off = int64(e.table[i])
	if e.hole(r.off, int64(len(r.b))) {
		clear(r.b)
	} else if err := e.read(r.off, r.b); err != nil {
		return nil, err
	}
	e.uses++
	r.used, e.blocks[i] = e.uses, r
	return r, nil
}

// usableBlock reports whether an entry of the refcount table points at a
// cluster of the file.
func (e *editor) usableBlock(entry uint64) bool {
	return entry != 0 && e.aligned(entry) && entry <= block.MaxSize && int64(entry) < e.file.Size()
}

// spareBlock is memory for one more block: new, or that of the one used longest
// ago.
func (e *editor) spareBlock() (*refBlock, error) {
	if len(e.blocks) < maxRefBlocks {
		return &refBlock{b: make([]byte, e.clusterSize())}, nil
	}
	var oldest int64
	for i, r := range e.blocks {
		if o := e.blocks[oldest]; o == nil || r.used < o.used {
			oldest = i
		}
	}
	r := e.blocks[oldest]
	if err := e.writeBlock(r); err != nil {
		return nil, err
	}
	delete(e.blocks, oldest)
	return r, nil
}

func (e *editor) writeBlock(r *refBlock) error {
	if !r.dirty {
		return nil
	}
	if err := e.write(r.off, r.b); err != nil {
		return err
	}
	r.dirty = false
	return nil
}

// sync makes all that was changed durable.
func (e *editor) sync() error {
	var order []int64
	for i := range e.blocks {
		order = append(order, i)
	}
	slices.Sort(order)
	for _, i := range order {
		if err := e.writeBlock(e.blocks[i]); err != nil {
			return err
		}
	}
	return e.file.Flush(e.rq)
}

// refcount of a host cluster; 0 where no block says.
func (e *editor) refcount(cluster int64) (uint64, error) {
	r, err := e.blockAt(cluster)
	if r == nil {
		return 0, err
	}
	return refAt(r.b, e.order, cluster%e.perBlock()), nil
}

// setRefcount changes one. The block must be there.
func (e *editor) setRefcount(cluster int64, n uint64) error {
	r, err := e.blockAt(cluster)
	if err != nil {
		return err
	}
	if r == nil {
		return block.Errorf(syscall.EIO, "cluster %d has no refcount block: repair the image (check -r all)", cluster)
	}
	if n == 0 {
		e.free = min(e.free, cluster)
	}
	setRefAt(r.b, e.order, cluster%e.perBlock(), n)
	r.dirty = true
	return nil
}

// addRefcounts changes those of the clusters that [off, off+n) touches by
// delta, each all or not at all.
func (e *editor) addRefcounts(off, n, delta int64) error {
	if off < 0 || n < 0 || off > block.MaxSize-n {
		return block.Errorf(syscall.EIO, "a structure of %d bytes is said to be at offset %#x: check the image", n, uint64(off))
	}
	for c := off >> e.clusterBits; c < e.clusters(off+n); c++ {
		have, err := e.refcount(c)
		if err != nil {
			return err
		}
		if delta < 0 && have < uint64(-delta) || delta > 0 && have > e.maxRefcount()-uint64(delta) {
			return block.Errorf(syscall.ERANGE, "the refcount of the cluster at %d is %d and cannot change by %d: refcounts have %d bits",
				c<<e.clusterBits, have, delta, 1<<e.order)
		}
		if err := e.setRefcount(c, have+uint64(delta)); err != nil {
			return err
		}
	}
	return nil
}

// refAt is entry i of a refcount block (section "Host cluster management").
func refAt(b []byte, order uint32, i int64) uint64 {
	switch order {
	case 4:
		return uint64(binary.BigEndian.Uint16(b[i*2:]))
	case 3:
		return uint64(b[i])
	case 5:
		return uint64(binary.BigEndian.Uint32(b[i*4:]))
	case 6:
		return binary.BigEndian.Uint64(b[i*8:])
	}
	bits := uint(1) << order
	shift := uint(i) * bits & 7
	return uint64(b[uint(i)*bits>>3]>>shift) & (1<<bits - 1)
}

// setRefAt changes entry i.
func setRefAt(b []byte, order uint32, i int64, n uint64) {
	switch order {
	case 4:
		binary.BigEndian.PutUint16(b[i*2:], uint16(n))
	case 3:
		b[i] = byte(n)
	case 5:
		binary.BigEndian.PutUint32(b[i*4:], uint32(n))
	case 6:
		binary.BigEndian.PutUint64(b[i*8:], n)
	default:
		bits := uint(1) << order
		shift := uint(i) * bits & 7
		at := &b[uint(i)*bits>>3]
		*at = *at&^(byte(1<<bits-1)<<shift) | byte(n)<<shift
	}
}
