package nbd

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"github.com/platter-storage/platter/block"
	wire "github.com/platter-storage/platter/wire/nbd"
)

// Export is a disk that the server offers.
type Export struct {
	// Name is what clients ask for. One that asks for no name gets the export
	// whose name is empty, if there is one.
	Name        string
	Description string // for people; may be empty
	// Child is the edge to the node. It stays the caller's, who closes it
	// after RemoveExport or Shutdown has returned nil, not before.
	Child *block.Child
	// ReadOnly refuses changes. It is implied where the edge may not write.
	ReadOnly bool
	// Hidden keeps the export out of the list; who knows its name may use it.
	Hidden bool
	// AllocationDepth offers the metadata context qemu:allocation-depth.
	AllocationDepth bool
	// Group is where the statistics of the export's connections are added
	// up; nil means a group of its own.
	Group *block.QueueGroup
	// Limiter holds requests back; nil lets all pass.
	Limiter Limiter
}

// export is one that has been added.
type export struct {
	Export
	info     wire.ExportInfo // but for Size, which may change
	contexts []contextKind   // by context id
}

// contextKind says what a metadata context tells of an extent.
type contextKind uint8

const (
	contextAllocation contextKind = iota
	contextDepth
)

func newExport(e Export) (*export, error) {
	if e.Child == nil {
		return nil, errors.New("nbd server: an export needs a Child")
	}
	if e.Child.Perm()&block.PermRead == 0 {
		return nil, fmt.Errorf("nbd server: export %q: the edge to %s may not read", e.Name, e.Child.Name())
	}
	if e.Group == nil {
		e.Group = block.NewQueueGroup()
	}
	info := e.Child.Info()
	e.ReadOnly = e.ReadOnly || info.ReadOnly || e.Child.Perm()&block.PermWrite == 0
	x := &export{Export: e, contexts: []contextKind{contextAllocation}}
	x.info = wire.ExportInfo{
		Name: e.Name, Description: e.Description, Hidden: e.Hidden,
		Flags: transmissionFlags(info, e.ReadOnly), Contexts: []string{wire.ContextAllocation},
		// Any offset and length is served, but the preferred size is what
		// clients go by: requests that keep to it need no padding here.
		MinBlock: 1, PrefBlock: preferredBlock(e.Child.Limits()), MaxBlock: wire.MaxPayload,
		Handle: x,
	}
	if e.AllocationDepth {
		x.contexts = append(x.contexts, contextDepth)
		x.info.Contexts = append(x.info.Contexts, wire.ContextDepth)
	}
	return x, x.current().Check()
}

// transmissionFlags says what the disk can do. FUA is there on every disk: the
// edge makes it of a flush where the node has none. ("Transmission flags")
func transmissionFlags(info *block.Info, readOnly bool) wire.TransmissionFlags {
	fl := wire.FlagHasFlags | wire.FlagSendFlush | wire.FlagSendFUA | wire.FlagSendDF | wire.FlagSendCache |
		wire.FlagBlockStatusPayload
	if readOnly {
		return fl | wire.FlagReadOnly | wire.FlagCanMultiConn
	}
	fl |= wire.FlagSendTrim | wire.FlagSendWriteZeroes | wire.FlagSendFastZero
	if info.MultiConn {
		fl |= wire.FlagCanMultiConn
	}
	return fl
}

// preferredBlock is what a request should be a multiple of to reach the
// storage as it stands, in bytes: a power of two.
func preferredBlock(l *block.Limits) uint32 {
	pref := max(4096, l.ReadAlign, l.WriteAlign, l.PhysicalBlock)
	return 1 << (bits.Len32(pref) - 1)
}

// current describes the export as of now.
func (x *export) current() wire.ExportInfo {
	info := x.info
	info.Size = uint64(max(x.Child.Size(), 0))
	return info
}

// AddExport offers a disk from now on.
func (s *Server) AddExport(e Export) error {
	x, err := newExport(e)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return ErrServerClosed
	}
	if slices.ContainsFunc(s.exports, func(o *export) bool { return o.Name == x.Name }) {
		return fmt.Errorf("nbd server: an export named %q exists already: choose another name", x.Name)
	}
	s.exports = append(s.exports, x)
	return nil
}

// offered is what the handshake sees of the server's exports.
type offered struct{ s *Server }

// Find implements wire.Exports.
func (o offered) Find(name string) (wire.ExportInfo, bool) {
	o.s.mu.Lock()
	defer o.s.mu.Unlock()
	for _, x := range o.s.exports {
		if x.Name == name {
			return x.current(), true
		}
	}
	return wire.ExportInfo{}, false
}

// List implements wire.Exports.
func (o offered) List() []wire.ExportInfo {
	o.s.mu.Lock()
	defer o.s.mu.Unlock()
	list := make([]wire.ExportInfo, 0, len(o.s.exports))
	for _, x := range o.s.exports {
		list = append(list, x.current())
	}
	return list
}
