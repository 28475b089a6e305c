// Package rawio has the one object that travels between an export's queue and
// the engine below a file: a request for bytes at an offset of an open file.
// It stands apart so that the waist (package block) and the engines share the
// type without knowing each other.
package rawio

// Kind says what an IO asks of the file.
type Kind uint8

// The kinds of request that an engine carries.
const (
	Read Kind = iota
	Write
	Fsync // fdatasync semantics: data, and what is needed to read it back
)

// String is the kind's name in messages and statistics.
func (k Kind) String() string {
	switch k {
	case Read:
		return "read"
	case Write:
		return "write"
	case Fsync:
		return "fsync"
	}
	return "unknown"
}

// IO is one asynchronous request to a file. The submitter owns it, fills the
// upper half, and must leave it and every byte of Vec alone from submission
// until Done has been called. An IO is meant to be kept and used again: the
// engine reads only the fields named here and clears nothing.
type IO struct {
	Kind Kind
	// Sync asks that a write be durable when it completes (RWF_DSYNC).
	Sync bool
	// Off is the position in the file, in bytes.
	Off int64
	// Vec holds the elements, in file order. Engines take at most 1024.
	Vec [][]byte

	// N is the number of bytes moved, set before Done. A short count is
	// not an error here: the file's slow path finishes the rest.
	N int
	// Err is nil or a syscall.Errno, set before Done.
	Err error

	// Done is called exactly once, on a goroutine of the engine's or, for
	// files that never block, on the submitter's before Submit returns. It
	// must not block.
	Done func(*IO)
	// Owner is the submitter's own, untouched by the engine: typically an
	// index into its table of slots.
	Owner uint64
	// Engine is the engine's own while the IO is in flight.
	Engine uint64
}
