// Package qcow2 is the qcow2 format, versions 2 and 3: an image file maps the
// clusters of a disk to clusters of the file, shows a backing file where it has
// nothing, and counts the users of each of its clusters.
//
// The facts are those of the format's specification, whose sections are cited
// by name. How requests, caches, locks and the order of writes work together is
// in docs/design/2026-11-qcow2.md.
package qcow2

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/sys"
)

// node is an opened image.
//
// Locks: settling before mu; nobody waits for a request to a backing file, or for
// the data of one, while holding mu. Fields below mu are guarded by it. layout
// and l1 change under it too, and with the node drained where lookups depend on
// them.
type node struct {
	info    block.Info
	env     *block.Env
	file    *block.Child // the image
	data    *block.Child // where clusters of the disk are: file, or an external file
	backing *block.Child // nil without one
	opts    nodeOptions
	layout
	subBits uint32 // a subcluster has 1<<subBits bytes; a cluster where entries have no subclusters

	pins   pins
	rows   []atomic.Pointer[row] // one for each L1 entry
	broken atomic.Pointer[damage]
	// track, where set, hears of each range that changes before the change is
	// acknowledged.
	track atomic.Pointer[func(off, n int64)]
	// tracking are the bitmaps that do.
	tracking tracking
	// changes counts those of metadata in memory, durable how many of them
	// the file is sure to have.
	changes, durable atomic.Uint64
	packed           packedCache
	copies           copyBuffers
	zstd             bool // the compression type

	settling sync.Mutex // held by who writes metadata back

	mu       sync.Mutex
	l1       []uint64
	l1Dirty  map[int64]bool
	cache    l2Cache
	refs     refcounts
	busy     []*claim
	freed    []extent // no longer mapped in memory, still in the file
	limbo    []extent // no longer mapped in the file either
	guard    guard
	packedAt int64 // where the next compressed cluster goes; 0 for a new cluster
	scratch  []byte
	fileEnd  int64 // end of the last cluster that was ever handed out
}

// nodeOptions are those of opening.
type nodeOptions struct {
	l2Bytes, refBytes, sliceBytes        int64
	passRequest, passSnapshot, passOther bool
	keepUnmapped, noGuard                bool
	readOnly                             bool
	snapshot                             string // what is shown instead of the disk
}

// extent is a run of host clusters, in bytes.
type extent struct {
	off, n int64
	gen    uint64
	disc   bool // discard it in the file
}

// damage is why writes have stopped.
type damage struct{ err error }

func (n *node) Info() *block.Info { return &n.info }

// extended reports whether L2 entries have subclusters.
func (n *node) extended() bool { return n.incompat&featExtendedL2 != 0 }

// external reports whether the disk's clusters are in a file of their own.
func (n *node) external() bool { return n.incompat&featDataFile != 0 }

// inCluster is the offset of off in its cluster.
func (l *layout) inCluster(off int64) int64 { return off & (l.clusterSize() - 1) }

// clusterStart is where the cluster of off begins.
func (l *layout) clusterStart(off int64) int64 { return off &^ (l.clusterSize() - 1) }

// aligned memory of n bytes for metadata: no edge needs to copy it.
func alignedBytes(n int64) []byte {
	b := make([]byte, n+block.MaxAlign)
	pad := int64(-sys.Addr(b) & (block.MaxAlign - 1))
	return b[pad : pad+n : pad+n]
}

// readFile fills b from off of the image; beyond the end are zeroes.
func (n *node) readFile(rq *block.Req, off int64, b []byte) error {
	have := min(max(n.file.Size()-off, 0), int64(len(b)))
	clear(b[have:])
	if have == 0 {
		return nil
	}
	return n.file.Preadv(rq, off, block.Vec{b[:have]}, 0)
}

// writable is nil where changes are possible.
func (n *node) writable() error {
	if d := n.broken.Load(); d != nil {
		return d.err
	}
	if n.info.ReadOnly {
		return syscall.EROFS
	}
	return nil
}

// changed tells the bitmaps of a change.
func (n *node) changed(off, length int64) {
	if f := n.track.Load(); f != nil {
		(*f)(off, length)
	}
}

// setGeometry derives what follows from the header.
func (n *node) setGeometry() {
	n.subBits = n.clusterBits
	if n.extended() {
		n.subBits -= 5
	}
	slice := min(n.opts.sliceBytes, n.clusterSize())
	n.cache.perSlice = slice / n.entryLen()
	n.cache.shift = n.clusterBits + uint32(bits.Len64(uint64(n.cache.perSlice))) - 1
	n.cache.perTable = n.clusterSize() / slice
	n.cache.sliceBytes = slice
	n.rows = newRows(int64(n.l1Entries))
	words := n.cache.perSlice
	if n.extended() {
		words *= 2
	}
	n.cache.empty = &l2Slice{ents: make([]atomic.Uint64, words), index: -1}
	n.cache.all = map[int64]*l2Slice{}
	n.scratch = alignedBytes(max(slice, n.clusterSize()))
}

// Close makes all durable and lets go of the file.
func (n *node) Close() error {
	if n.info.ReadOnly || n.broken.Load() != nil {
		return nil
	}
	q := block.NewQueue(n.env, block.NewQueueGroup())
	rq := q.Begin()
	err := n.shut(rq)
	q.End(rq, block.OpFlush, 0, err)
	return err
}

// shut writes back everything and cuts the file behind the last cluster.
func (n *node) shut(rq *block.Req) error {
	if err := n.settle(rq); err != nil {
		return err
	}
	if err := n.trimFile(rq); err != nil {
		return err
	}
	return n.closeBitmaps(rq)
}

// Flush makes all that completed before it durable, metadata included.
func (n *node) Flush(rq *block.Req) error {
	if n.info.ReadOnly {
		return nil
	}
	return n.flush(rq)
}
