package nbd

import (
	"fmt"
	"math/bits"
)

// Exports is what a server offers to one connection. Its methods may be called
// several times in one handshake and may answer differently each time, after
// STARTTLS above all.
type Exports interface {
	// Find is the export of that name; "" asks for the default export.
	Find(name string) (ExportInfo, bool)
	// List has every export, in the order in which clients see them.
	List() []ExportInfo
}

// ExportInfo describes an export to a client.
type ExportInfo struct {
	Name        string // canonical: what List shows
	Description string // for people; may be empty
	Size        uint64 // in bytes, at most MaxSize

	// Flags are the transmission flags. A server sets what it can do; the
	// handshake takes back what this client did not negotiate.
	Flags TransmissionFlags

	// Size constraints, in bytes; zero is the document's default: 1, 4096,
	// MaxPayload. ("Size constraints")
	MinBlock  uint32 // power of two up to MaxMinBlock
	PrefBlock uint32 // power of two, at least 512 and MinBlock
	MaxBlock  uint32 // payload of one request, at least PrefBlock

	// Contexts are the metadata contexts offered, by full name. A
	// context's id is its place in this list.
	Contexts []string

	// Hidden keeps the export out of List; who knows its name may use it.
	Hidden bool

	// Handle is the server's own: Session.Export gives it back.
	Handle any
}

// withDefaults fills in the size constraints that are zero.
func (e ExportInfo) withDefaults() ExportInfo {
	if e.MinBlock == 0 {
		e.MinBlock = 1
	}
	if e.PrefBlock == 0 {
		e.PrefBlock = max(4096, e.MinBlock)
	}
	if e.MaxBlock == 0 {
		e.MaxBlock = MaxPayload
	}
	return e
}

// Check says what about the export no client may be told. A server calls it
// when an export is added; the handshake refuses to go on with one that fails.
func (e ExportInfo) Check() error {
	e = e.withDefaults()
	if err := checkString("name of the export", e.Name); err != nil {
		return err
	}
	if err := checkString("description of the export", e.Description); err != nil {
		return err
	}
	if len(e.Contexts) > MaxContexts {
		return fmt.Errorf("export %s has %d metadata contexts: the limit is %d", quote(e.Name), len(e.Contexts), MaxContexts)
	}
	for _, c := range e.Contexts {
		if err := checkString("metadata context", c); err != nil {
			return err
		}
	}
	if err := e.checkSizes(); err != nil {
		return fmt.Errorf("export %s: %w", quote(e.Name), err)
	}
	return nil
}

// checkSizes holds Size and the size constraints against the document. Both
// sides use it: a server on itself, a client on the server.
func (e *ExportInfo) checkSizes() error {
	switch {
	case e.Size > MaxSize:
		return fmt.Errorf("size %d: more than %d bytes cannot be addressed", e.Size, int64(MaxSize))
	case !powerOfTwo(e.MinBlock) || e.MinBlock > MaxMinBlock:
		return fmt.Errorf("minimum block size %d: must be a power of two up to %d", e.MinBlock, MaxMinBlock)
	case !powerOfTwo(e.PrefBlock) || e.PrefBlock < max(512, e.MinBlock):
		return fmt.Errorf("preferred block size %d: must be a power of two of at least %d", e.PrefBlock, max(512, e.MinBlock))
	case e.MaxBlock < e.PrefBlock:
		return fmt.Errorf("maximum payload %d: must not be below the preferred block size %d", e.MaxBlock, e.PrefBlock)
	}
	return nil
}

func powerOfTwo(n uint32) bool { return bits.OnesCount32(n) == 1 }
