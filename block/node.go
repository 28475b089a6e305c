package block

import "github.com/platter-storage/platter/internal/rawio"

// Node is what a driver implements: storage of some kind. Its methods are only
// ever called through a Child, which guarantees before each call: range inside
// the size; offset and length multiples of the alignment, except that a
// request may end at the size; elements and length within the limits; only
// flags that Info declares; permission held; counted for drain.
//
// The methods guarantee: all or an error, no short transfers. A completed
// write is seen by every later read through any edge. Durability comes from a
// Flush that started after the write completed and returned nil, or from FUA.
// After a failed read the content of v is undefined, but nothing of ours leaks
// into it. A vector belongs to the node until the method returns; guest memory
// may change under it: each byte is read once. Waiting is through rq only, and
// no lock is held while waiting except a node's own range locks. Methods are
// called from many goroutines at once.
type Node interface {
	Info() *Info
	Preadv(rq *Req, off int64, v Vec, fl Flags) error
	Pwritev(rq *Req, off int64, v Vec, fl Flags) error
	// WriteZeroes makes [off, off+n) read as zeroes, or returns an error
	// for which IsNotSupported holds, having changed nothing: the edge
	// then writes zeroes itself, unless NoFallback was asked.
	WriteZeroes(rq *Req, off, n int64, fl Flags) error
	// Discard is a hint. IsNotSupported errors are swallowed by the edge.
	Discard(rq *Req, off, n int64) error
	Flush(rq *Req) error
	// BlockStatus describes a run that starts at off: at most n bytes, at
	// least 1 (a multiple of the read alignment unless it ends at the
	// size). It may under-report Zero and over-report Data, never the
	// reverse, and allocates nothing in the image.
	BlockStatus(rq *Req, off, n int64) (Extent, error)
	// Truncate sets the size; no other request is in flight.
	Truncate(rq *Req, size int64, pre Prealloc) error
	// Close releases everything. The edge has drained before.
	Close() error
}

// Extent describes a run of a node's content.
type Extent struct {
	Len int64
	// Data: reading it moves bytes from storage. Zero: it reads as zeroes.
	Data, Zero bool
	// Allocated: this layer decides the content, not a backing file.
	Allocated, Compressed bool
	// EOF: the run reaches the end of the node.
	EOF bool
	// Depth of the layer that decides, 0 for the node asked.
	Depth int
	// Host is the offset in HostFile where the bytes lie as they are, or
	// -1.
	Host     int64
	HostFile string
}

// IO is one asynchronous request to a file below the fast lane.
type IO = rawio.IO

// Leaf is the file at the bottom of a fast-lane mapping.
type Leaf interface {
	// Submit starts all of ios with one system call where it can and does
	// not wait. Each IO's Done is called exactly once. Ranges have passed
	// Child.Map. A result other than success in full length goes to
	// Child.Finish.
	Submit(ios []*IO)
}

// MapKind says where a mapping's bytes are.
type MapKind uint8

// The kinds of mapping.
const (
	MapFile MapKind = iota + 1 // at Off of Leaf
	MapZero                    // nowhere: it reads as zeroes, writes vanish
	// MapMemory: in Mem, for the request's whole length. Until Finish the
	// request is in flight, and drain waits for it: whoever asks copies at
	// once, and never waits for a peer (to send more, or to take what there
	// is) in between.
	MapMemory
)

// Mapping answers a request in the fast lane, whole.
type Mapping struct {
	Kind MapKind
	Leaf Leaf
	Off  int64
	Mem  []byte
	// Cookie is the node's own, handed back to Done.
	Cookie uint64
}

// Mapper is the fast lane of a node: where does a request's data lie? Map does
// not wait, allocate, do I/O or take a contended lock. It covers the whole
// request or declines. Only reads and writes are asked. For each Map that
// answered true, Done is called exactly once, after the I/O, innermost node
// first, under the same restrictions; a node that asked its child and was
// declined declines too, having released what it held.
type Mapper interface {
	Map(rq *Req, op Op, off int64, v Vec, fl Flags) (Mapping, bool)
	Done(op Op, cookie uint64, err error)
}
