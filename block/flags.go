package block

import "strings"

// Op is what a request does.
type Op uint8

// The operations of a node.
const (
	OpRead Op = iota
	OpWrite
	OpZero
	OpDiscard
	OpFlush
	OpStatus
	OpTruncate
	NumOps
)

var opNames = [NumOps]string{"read", "write", "write zeroes", "discard", "flush", "block status", "truncate"}

// String is the operation's name in messages and statistics.
func (o Op) String() string {
	if o < NumOps {
		return opNames[o]
	}
	return "unknown"
}

// Flags alter one request. A driver declares in Info which it serves natively;
// the edge emulates FUA, and passes the rest only where declared.
type Flags uint32

const (
	// FUA: the write is durable when it completes.
	FUA Flags = 1 << iota
	// MayUnmap: write zeroes may leave a hole.
	MayUnmap
	// NoFallback: write zeroes fails with ENOTSUP, quickly, rather than
	// write zeroes the slow way.
	NoFallback
	// Serialising: no overlapping request runs at the same time.
	Serialising
)

// String lists the flags for messages.
func (f Flags) String() string {
	var s []string
	for i, n := range []string{"fua", "may-unmap", "no-fallback", "serialising"} {
		if f&(1<<i) != 0 {
			s = append(s, n)
		}
	}
	return strings.Join(s, ",")
}

// Perm is what a user of a node may do with it, or lets other users do.
type Perm uint8

// The permissions, with the reference's meaning.
const (
	PermRead           Perm = 1 << iota // reads see one consistent content
	PermWrite                           // changes content
	PermWriteUnchanged                  // writes what is there already
	PermResize                          // changes the size
	PermAll            = PermRead | PermWrite | PermWriteUnchanged | PermResize
)

// String lists the permissions for messages.
func (p Perm) String() string {
	var s []string
	for i, n := range []string{"read", "write", "write-unchanged", "resize"} {
		if p&(1<<i) != 0 {
			s = append(s, n)
		}
	}
	return strings.Join(s, ",")
}

// Role says what a child is to its parent.
type Role uint8

// The roles of a child.
const (
	RoleRoot     Role = iota // the parent is an export, a job or a tool
	RoleData                 // the parent's content lies in it
	RoleMetadata             // only the parent's metadata lies in it
	RoleFiltered             // the parent shows its content unchanged
	RoleBacking              // read where the parent has nothing
)

var roleNames = [...]string{"root", "data", "metadata", "filtered", "backing"}

// String is the role's name.
func (r Role) String() string { return roleNames[r] }

// Prealloc says what Truncate does about the space that it adds.
type Prealloc uint8

// The preallocation modes, by their common names.
const (
	PreallocOff Prealloc = iota
	PreallocMetadata
	PreallocFalloc
	PreallocFull
)

var preallocNames = [...]string{"off", "metadata", "falloc", "full"}

// String is the mode's name in options and messages.
func (p Prealloc) String() string { return preallocNames[p] }

// ParsePrealloc reads a mode's name.
func ParsePrealloc(s string) (Prealloc, bool) {
	for i, n := range preallocNames {
		if n == s {
			return Prealloc(i), true
		}
	}
	return 0, false
}
