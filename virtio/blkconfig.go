package virtio

import "encoding/binary"

// BlkConfigSize is the length of a block device's configuration space in bytes,
// with the fields of a zoned device, which are zero here.
const BlkConfigSize = 96

// Offsets of the fields that are written or looked at apart.
const (
	BlkConfigCapacity  = 0  // 8 bytes
	BlkConfigWriteback = 32 // 1 byte: the only one that a driver writes
)

// A BlkConfig is the configuration space of a block device (struct
// virtio_blk_config, section 5.2.4). Which fields mean something is decided by
// the features.
type BlkConfig struct {
	Capacity uint64 // sectors
	SizeMax  uint32 // bytes of a segment
	SegMax   uint32 // segments of a request; at most MaxSegs-2

	Cylinders uint16 // geometry
	Heads     uint8
	Sectors   uint8

	BlkSize uint32 // bytes of a logical block

	PhysicalBlockExp uint8  // log2 of logical blocks in a physical one
	AlignmentOffset  uint8  // logical blocks to the first that is aligned
	MinIOSize        uint16 // logical blocks
	OptIOSize        uint32 // logical blocks

	Writeback uint8 // 1: there is a cache to be flushed
	NumQueues uint16

	MaxDiscardSectors      uint32
	MaxDiscardSeg          uint32
	DiscardSectorAlignment uint32 // sectors

	MaxWriteZeroesSectors uint32
	MaxWriteZeroesSeg     uint32
	WriteZeroesMayUnmap   uint8

	MaxSecureEraseSectors      uint32
	MaxSecureEraseSeg          uint32
	SecureEraseSectorAlignment uint32 // sectors
}

// Encode writes the configuration space to b.
func (c *BlkConfig) Encode(b *[BlkConfigSize]byte) {
	le := binary.LittleEndian
	*b = [BlkConfigSize]byte{}
	le.PutUint64(b[0:], c.Capacity)
	le.PutUint32(b[8:], c.SizeMax)
	le.PutUint32(b[12:], c.SegMax)
	le.PutUint16(b[16:], c.Cylinders)
	b[18], b[19] = c.Heads, c.Sectors
	le.PutUint32(b[20:], c.BlkSize)
	b[24], b[25] = c.PhysicalBlockExp, c.AlignmentOffset
	le.PutUint16(b[26:], c.MinIOSize)
	le.PutUint32(b[28:], c.OptIOSize)
	b[32] = c.Writeback
	le.PutUint16(b[34:], c.NumQueues)
	le.PutUint32(b[36:], c.MaxDiscardSectors)
	le.PutUint32(b[40:], c.MaxDiscardSeg)
	le.PutUint32(b[44:], c.DiscardSectorAlignment)
	le.PutUint32(b[48:], c.MaxWriteZeroesSectors)
	le.PutUint32(b[52:], c.MaxWriteZeroesSeg)
	b[56] = c.WriteZeroesMayUnmap
	le.PutUint32(b[60:], c.MaxSecureEraseSectors)
	le.PutUint32(b[64:], c.MaxSecureEraseSeg)
	le.PutUint32(b[68:], c.SecureEraseSectorAlignment)
}

// Decode reads a configuration space, or as much of one as b has: the fields
// that are not whole in it become zero.
func (c *BlkConfig) Decode(b []byte) {
	var all [BlkConfigSize]byte
	n := copy(all[:], b)
	for _, f := range blkConfigFields {
		if f.off+f.size > n {
			clear(all[min(f.off, n):])
			break
		}
	}
	le := binary.LittleEndian
	*c = BlkConfig{
		Capacity: le.Uint64(all[0:]), SizeMax: le.Uint32(all[8:]), SegMax: le.Uint32(all[12:]),
		Cylinders: le.Uint16(all[16:]), Heads: all[18], Sectors: all[19],
		BlkSize:          le.Uint32(all[20:]),
		PhysicalBlockExp: all[24], AlignmentOffset: all[25], MinIOSize: le.Uint16(all[26:]), OptIOSize: le.Uint32(all[28:]),
		Writeback: all[32], NumQueues: le.Uint16(all[34:]),
		MaxDiscardSectors: le.Uint32(all[36:]), MaxDiscardSeg: le.Uint32(all[40:]), DiscardSectorAlignment: le.Uint32(all[44:]),
		MaxWriteZeroesSectors: le.Uint32(all[48:]), MaxWriteZeroesSeg: le.Uint32(all[52:]), WriteZeroesMayUnmap: all[56],
		MaxSecureEraseSectors: le.Uint32(all[60:]), MaxSecureEraseSeg: le.Uint32(all[64:]), SecureEraseSectorAlignment: le.Uint32(all[68:]),
	}
}

// blkConfigFields are offset and size of the fields, in order.
var blkConfigFields = [...]struct{ off, size int }{
	{0, 8}, {8, 4}, {12, 4}, {16, 2}, {18, 1}, {19, 1}, {20, 4}, {24, 1}, {25, 1}, {26, 2}, {28, 4}, {32, 1}, {34, 2},
	{36, 4}, {40, 4}, {44, 4}, {48, 4}, {52, 4}, {56, 1}, {60, 4}, {64, 4}, {68, 4},
}

// Read copies the configuration space from off on to dst, as a front end asks
// for it: what it asks beyond the end is zero. It answers false, and writes
// nothing, if off is beyond the end.
func (c *BlkConfig) Read(dst []byte, off uint32) bool {
	if off > BlkConfigSize {
		return false
	}
	var b [BlkConfigSize]byte
	c.Encode(&b)
	n := copy(dst, b[off:])
	clear(dst[n:])
	return true
}

// BlkGeometry is the geometry that disks of so many sectors have always said
// they have: 16 heads of 63 sectors, and at most 16383 cylinders.
func BlkGeometry(sectors uint64) (cylinders uint16, heads, perTrack uint8) {
	const heads16, sectors63 = 16, 63
	return uint16(min(max(sectors/(heads16*sectors63), 2), 16383)), heads16, sectors63
}
