package vhostuser

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/virtio"
	wire "github.com/platter-storage/platter/wire/vhostuser"
)

// Lengths of the configuration space to ask for, in bytes: with the limits of
// discard and write zeroes, and up to the number of queues, for servers that
// know no more and refuse. (5.2.4)
const (
	spaceLen    = 60
	oldSpaceLen = 36
)

// longest is the longest request in bytes: what is longer the edge splits.
const longest = 1 << 20

// maxDiscardAt bounds the alignment of discards in bytes: a server that wants
// more gets none.
const maxDiscardAt = 1 << 30

// shape is what a server says of a disk and what follows from it. That of a
// server which comes back must be the same but for the capacity.
type shape struct {
	align     uint32 // of offset and length in bytes
	physical  uint32
	optimal   uint32
	unit      int // bytes of a segment, one a chunk
	segs      int // segments of data
	readOnly  bool
	flush     bool
	discard   int64  // bytes of one; 0: none
	discardAt uint32 // its alignment in bytes
	zero      int64
	zeroUnmap bool
	features  uint64
	queues    int // that the device has
}

// readSpace asks for the configuration space.
func readSpace(fe *wire.Frontend) (c virtio.BlkConfig, err error) {
	for _, n := range []int{spaceLen, oldSpaceLen} {
		var b []byte
		if b, err = fe.GetConfig(0, n); err == nil {
			c.Decode(b)
			return c, nil
		}
		var nack *wire.NackError
		if !errors.As(err, &nack) {
			break
		}
	}
	return c, err
}

// capacity is the disk's size in bytes.
func capacity(c *virtio.BlkConfig) (int64, error) {
	if c.Capacity > block.MaxSize/virtio.SectorSize {
		return 0, block.Errorf(syscall.EPROTO, "the server claims a disk of %d sectors: more than there can be", c.Capacity)
	}
	return int64(c.Capacity) * virtio.SectorSize, nil
}

// shapeOf holds the configuration space against what can be, and finds the
// limits of requests. size is that of a ring.
func shapeOf(c *virtio.BlkConfig, features uint64, size int) (s shape, err error) {
	has := func(f uint64) bool { return features&f != 0 }
	s = shape{align: virtio.SectorSize, unit: chunkSize, features: features, queues: 1,
		readOnly: has(virtio.BlkFeatureRO), flush: has(virtio.BlkFeatureFlush)}
	if has(virtio.BlkFeatureBlkSize) {
		s.align = c.BlkSize
	}
	if s.align < virtio.SectorSize || s.align > block.MaxAlign || s.align&(s.align-1) != 0 {
		return s, block.Errorf(syscall.EPROTO, "the server claims logical blocks of %d bytes: they are a power of two from %d to %d", s.align, virtio.SectorSize, block.MaxAlign)
	}
	s.physical = s.align
	if has(virtio.BlkFeatureTopology) && c.PhysicalBlockExp < 16 {
		s.physical = min(s.align<<c.PhysicalBlockExp, block.MaxAlign)
		s.optimal = min(c.OptIOSize, longest/s.align) * s.align
	}
	if has(virtio.BlkFeatureMQ) {
		s.queues = max(int(c.NumQueues), 1)
	}
	if err := s.segments(c, size); err != nil {
		return s, err
	}
	// The power of two that divides the alignment which the server wants.
	if at := c.DiscardSectorAlignment & -c.DiscardSectorAlignment; has(virtio.BlkFeatureDiscard) && c.MaxDiscardSeg > 0 && at <= maxDiscardAt/virtio.SectorSize {
		s.discardAt = max(at*virtio.SectorSize, s.align)
		s.discard = sectors(c.MaxDiscardSectors, s.discardAt)
	}
	if has(virtio.BlkFeatureWriteZeroes) && c.MaxWriteZeroesSeg > 0 {
		s.zero = sectors(c.MaxWriteZeroesSectors, s.align)
		s.zeroUnmap = c.WriteZeroesMayUnmap == 1
	}
	return s, nil
}

// sectors is a limit in bytes, a multiple of align: 0 if that is nothing.
func sectors(n, align uint32) int64 {
	return int64(n) * virtio.SectorSize / int64(align) * int64(align)
}

// segments finds how many segments of which length a request may have: two of
// a chain are the header and the status.
func (s *shape) segments(c *virtio.BlkConfig, size int) error {
	if s.features&virtio.BlkFeatureSizeMax != 0 && c.SizeMax > 0 { // the reference's server offers it and has 0
		s.unit = int(min(c.SizeMax, chunkSize) &^ (s.align - 1))
	}
	if s.unit == 0 {
		return block.Errorf(syscall.EPROTO, "the server takes segments of %d bytes, but has blocks of %d: no request could be made", c.SizeMax, s.align)
	}
	s.segs = (longest + s.unit - 1) / s.unit
	if s.features&virtio.BlkFeatureSegMax != 0 {
		s.segs = min(s.segs, int(min(c.SegMax, virtio.MaxSegs)))
	}
	s.segs = max(min(s.segs, virtio.MaxSegs-2, size-2), 1) // no chain is longer than the ring (2.7.5.3.1)
	return nil
}

// longest is the longest read or write in bytes.
func (s *shape) longest() int { return min(s.unit*s.segs, longest) &^ int(s.align-1) }

// limits are those of the node.
func (s *shape) limits() *block.Limits {
	l := block.ByteLimits() // memory may be anywhere: it is copied
	l.ReadAlign, l.WriteAlign = s.align, s.align
	l.LogicalBlock, l.PhysicalBlock = s.align, s.physical
	l.MaxTransfer = uint32(s.longest())
	l.OptTransfer = s.optimal
	l.ZeroAlign, l.DiscardAlign = s.align, s.align
	if s.zero > 0 {
		l.MaxZero = s.zero
	}
	if s.discard > 0 {
		l.DiscardAlign, l.MaxDiscard = s.discardAt, s.discard
	}
	o := &l.Origins
	for _, x := range []*block.Origin{&o.ReadAlign, &o.WriteAlign, &o.OptTransfer, &o.MaxTransfer, &o.ZeroAlign, &o.DiscardAlign, &o.MaxZero, &o.MaxDiscard, &o.LogicalBlock, &o.PhysicalBlock} {
		*x = block.OriginProtocol
	}
	return l
}

// String is for people.
func (s *shape) String() string {
	text := fmt.Sprintf("blocks of %d bytes, requests of up to %s in %d segments", s.align, block.FormatSize(int64(s.longest())), s.segs)
	for _, x := range []struct {
		on   bool
		text string
	}{{s.readOnly, "read-only"}, {!s.flush, "each write is durable"}, {s.discard > 0, "discard"}, {s.zero > 0, "write zeroes"}} {
		if x.on {
			text += ", " + x.text
		}
	}
	return text
}
