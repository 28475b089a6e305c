package engine

import "sync/atomic"

// FileFlags say what an engine may do with a file.
type FileFlags uint8

// The flags.
const (
	// Direct: opened for direct I/O.
	Direct FileFlags = 1 << iota
	// Registrable: the file may go into a ring's table of registered files.
	// Whoever sets it promises to call Forget on every queue that used the
	// file, or to close the queue, before the descriptor is closed: until then
	// the ring holds the open file, and with it its locks.
	Registrable
)

// File is an open file as engines see it. The descriptor stays the opener's,
// who keeps it open until nothing is in flight.
type File struct {
	fd    int
	flags FileFlags
	// noNow: the file system does not know how to do reads, or writes, only
	// if that takes no waiting.
	noNow [2]atomic.Bool // by kind
}

// OpenFile wraps a descriptor (on Windows: a handle).
func OpenFile(fd int, flags FileFlags) *File { return &File{fd: fd, flags: flags} }

// Fd is the descriptor.
func (f *File) Fd() int { return f.fd }

// Flags are those of OpenFile.
func (f *File) Flags() FileFlags { return f.flags }
