package file

import (
	"github.com/platter-storage/platter/block"
)

// descriptor is one way to an open file's bytes. Counts may be short without
// an error; errors are errnos.
type descriptor interface {
	readv(off int64, v block.Vec) (int, error)
	// writev writes; durable means that it is on stable storage on return.
	writev(off int64, v block.Vec, durable bool) (int, error)
}

// system is what a node asks of the operating system about its open file. The
// real one is a few thin calls; tests put one in its place that fails as they
// say.
type system interface {
	source
	isDevice() bool
	place() placed
	// main is the way that requests take, direct or through the page cache
	// as opened. cached goes through the page cache in any case.
	main() descriptor
	cached() descriptor
	size() (int64, error)
	// elsewhere reports whether the path leads to another file by now.
	elsewhere() bool
	// sync makes all completed writes durable: fdatasync.
	sync() error
	// zeroRange makes a range read as zeroes and keeps its space; punch
	// gives the space up. ENOTSUP where the file system has no such thing.
	zeroRange(off, n int64) error
	punch(off, n int64) error
	// discard is punch on a file and BLKDISCARD on a device, after which
	// the content is undefined.
	discard(off, n int64) error
	// seek is lseek with SEEK_DATA or, for hole, SEEK_HOLE; ENXIO: none.
	seek(off int64, hole bool) (int64, error)
	setSize(n int64) error
	// allocate reserves space for a range, which may lie past the end.
	allocate(off, n int64) error
	// startEngine chooses how requests to main reach the kernel: want is
	// the option aio; memory says that the content is there.
	startEngine(want string, memory bool) (reason string, err error)
	// newLeaf is the fast lane's way to main, nil where there is none.
	newLeaf(c *config) block.Leaf
	// durableFlag: the kernel has a flag for writes that are durable when
	// they complete.
	durableFlag() bool
	// lockFile takes the locks that c wants. locked is false, with the reason
	// in words, where there are none.
	lockFile(c *config) (locked bool, reason string, err error)
	close() error
}

// maxInterrupts bounds the immediate repetition of a call that signals
// interrupt: at a signal a millisecond this many in a row never happen.
const maxInterrupts = 100
