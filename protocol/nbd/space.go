package nbd

import (
	"syscall"

	"github.com/platter-storage/platter/block"
	wire "github.com/platter-storage/platter/wire/nbd"
)

// Bounds of one request, whatever the server says.
const (
	// maxTransfer is what every server must take. ("Size constraints")
	maxTransfer = wire.MaxPayload
	// maxZero and maxDiscard hold where lengths have 32 bits. A server may
	// write zeroes, in which time it answers nothing.
	maxZero    = wire.MaxPayload
	maxDiscard = 1 << 30
	// maxLong bounds both where headers are extended, and the range of one
	// block status.
	maxLong = 1 << 40
)

// space is what the server says of the disk.
type space struct {
	size       int64
	flags      wire.TransmissionFlags
	align      uint32
	preferred  uint32
	longest    uint32
	extended   bool
	structured bool
	context    bool // it answers block status
	tls        bool
}

// spaceOf reads what the handshake found; nothing in it has wrong values, which
// the handshake has seen to.
func spaceOf(s *wire.ClientSession) space {
	return space{
		// A last part that no request can reach is not there.
		size:  min(int64(s.Export.Size), block.MaxSize) &^ (int64(s.MinBlock) - 1),
		flags: s.Flags, align: s.MinBlock, preferred: s.Export.PrefBlock, longest: max(min(s.MaxPayload, maxTransfer), s.MinBlock),
		extended: s.Extended, structured: s.Structured, context: len(s.Contexts) > 0, tls: s.TLS,
	}
}

// has reports whether the server offers all of what.
func (s *space) has(what wire.TransmissionFlags) bool { return s.flags&what == what }

// zeroFlags are those of block that write zeroes serves.
func (s *space) zeroFlags() block.Flags {
	fl := block.MayUnmap
	if s.has(wire.FlagSendFUA) {
		fl |= block.FUA
	}
	return fl
}

// limits are the size constraints in the words of block.
func (s *space) limits(generation uint64) *block.Limits {
	l := block.ByteLimits() // memory may be anywhere: the socket takes it
	l.ReadAlign, l.WriteAlign, l.ZeroAlign, l.DiscardAlign = s.align, s.align, s.align, s.align
	l.LogicalBlock = max(s.align, 512)
	l.PhysicalBlock = max(min(s.preferred, block.MaxAlign), l.LogicalBlock)
	l.MaxTransfer = s.longest
	l.MaxZero, l.MaxDiscard = maxZero, maxDiscard
	if s.extended {
		l.MaxZero, l.MaxDiscard = maxLong, maxLong
	}
	l.Generation = generation
	o := &l.Origins
	for _, x := range []*block.Origin{&o.ReadAlign, &o.WriteAlign, &o.MaxTransfer, &o.ZeroAlign, &o.DiscardAlign, &o.MaxZero, &o.MaxDiscard, &o.LogicalBlock, &o.PhysicalBlock} {
		*x = block.OriginProtocol
	}
	return l
}

// sameLimits reports whether requests for one suit the other.
func (s *space) sameLimits(o *space) bool {
	return s.align == o.align && s.preferred == o.preferred && s.longest == o.longest && s.extended == o.extended
}

// needed are the flags whose loss users of the disk would notice.
const needed = wire.FlagSendFlush | wire.FlagSendFUA | wire.FlagSendWriteZeroes | wire.FlagSendFastZero | wire.FlagSendTrim

// replaces says why a server that came back with s cannot stand in for one that
// had old; "" where it can. A disk may have grown.
func (s *space) replaces(old *space, readOnly bool) error {
	switch lost := old.flags & needed &^ s.flags; {
	case s.size < old.size:
		return block.Errorf(syscall.ENXIO, "the server came back with a disk of %d bytes, where it had %d: it may be another disk; reopen it if it is not", s.size, old.size)
	case lost != 0:
		return block.Errorf(syscall.ENXIO, "the server came back without %s: reopen the disk to use it so", flagNames(lost))
	case s.has(wire.FlagReadOnly) && !readOnly:
		return block.Errorf(syscall.ENXIO, "the server came back with the disk read-only: reopen it so")
	case old.has(wire.FlagCanMultiConn) && !s.has(wire.FlagCanMultiConn):
		return block.Errorf(syscall.ENXIO, "the server came back for one connection only: reopen the disk, or open it with connections=1")
	}
	return nil
}

// flagNames lists what a server offers, for people.
func flagNames(fl wire.TransmissionFlags) string {
	text := ""
	for _, x := range []struct {
		flag wire.TransmissionFlags
		name string
	}{
		{wire.FlagReadOnly, "read-only"}, {wire.FlagSendFlush, "flush"}, {wire.FlagSendFUA, "FUA"}, {wire.FlagSendTrim, "trim"},
		{wire.FlagSendWriteZeroes, "write zeroes"}, {wire.FlagSendFastZero, "fast zero"}, {wire.FlagSendDF, "don't fragment"},
		{wire.FlagCanMultiConn, "several connections"}, {wire.FlagSendCache, "cache"},
	} {
		if fl&x.flag != 0 {
			text += ", " + x.name
		}
	}
	if text == "" {
		return "nothing beside reads and writes"
	}
	return text[2:]
}
