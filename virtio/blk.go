package virtio

import (
	"encoding/binary"
	"fmt"
)

// SectorSize is the unit of the block device's protocol in bytes, whatever its
// logical blocks are (section 5.2.5).
const SectorSize = 512

// Feature bits of a block device as masks (section 5.2.3).
const (
	BlkFeatureSizeMax     uint64 = 1 << 1  // VIRTIO_BLK_F_SIZE_MAX
	BlkFeatureSegMax      uint64 = 1 << 2  // VIRTIO_BLK_F_SEG_MAX
	BlkFeatureGeometry    uint64 = 1 << 4  // VIRTIO_BLK_F_GEOMETRY
	BlkFeatureRO          uint64 = 1 << 5  // VIRTIO_BLK_F_RO
	BlkFeatureBlkSize     uint64 = 1 << 6  // VIRTIO_BLK_F_BLK_SIZE
	BlkFeatureFlush       uint64 = 1 << 9  // VIRTIO_BLK_F_FLUSH
	BlkFeatureTopology    uint64 = 1 << 10 // VIRTIO_BLK_F_TOPOLOGY
	BlkFeatureConfigWCE   uint64 = 1 << 11 // VIRTIO_BLK_F_CONFIG_WCE
	BlkFeatureMQ          uint64 = 1 << 12 // VIRTIO_BLK_F_MQ
	BlkFeatureDiscard     uint64 = 1 << 13 // VIRTIO_BLK_F_DISCARD
	BlkFeatureWriteZeroes uint64 = 1 << 14 // VIRTIO_BLK_F_WRITE_ZEROES
	BlkFeatureLifetime    uint64 = 1 << 15 // VIRTIO_BLK_F_LIFETIME
	BlkFeatureSecureErase uint64 = 1 << 16 // VIRTIO_BLK_F_SECURE_ERASE
)

// Status bytes (section 5.2.6).
const (
	BlkOK          byte = 0 // VIRTIO_BLK_S_OK
	BlkIOErr       byte = 1 // VIRTIO_BLK_S_IOERR
	BlkUnsupported byte = 2 // VIRTIO_BLK_S_UNSUPP
)

// A BlkOp is the type of a block request (section 5.2.6), with the numbers that
// it has there.
type BlkOp uint32

// The types that are known: VIRTIO_BLK_T_IN and so on.
const (
	BlkIn          BlkOp = 0
	BlkOut         BlkOp = 1
	BlkFlush       BlkOp = 4
	BlkGetID       BlkOp = 8
	BlkGetLifetime BlkOp = 10
	BlkDiscard     BlkOp = 11
	BlkWriteZeroes BlkOp = 13
	BlkSecureErase BlkOp = 14
)

func (op BlkOp) String() string {
	switch op {
	case BlkIn:
		return "read"
	case BlkOut:
		return "write"
	case BlkFlush:
		return "flush"
	case BlkGetID:
		return "get id"
	case BlkGetLifetime:
		return "get lifetime"
	case BlkDiscard:
		return "discard"
	case BlkWriteZeroes:
		return "write zeroes"
	case BlkSecureErase:
		return "secure erase"
	}
	return fmt.Sprintf("request of type %d", uint32(op))
}

const (
	blkHeaderSize = 16
	blkRangeSize  = 16 // struct virtio_blk_discard_write_zeroes
	blkUnmap      = 1  // its flag

	// BlkIDSize is how long the answer to a BlkGetID is, at most.
	BlkIDSize = 20

	// BlkMaxRanges is how many ranges a request has at most, whatever the
	// configuration promises.
	BlkMaxRanges = 256
)

// A BlkDisk is what requests are checked against. It is plain data; whoever
// changes it while a queue runs gives the queue another one.
type BlkDisk struct {
	Capacity int64  // bytes; what is beyond the last whole sector is not reachable
	Features uint64 // as negotiated, but BlkFeatureRO as offered

	// The limits of the configuration space, in sectors and in ranges of a
	// request; 0 ranges is none at all.
	MaxDiscardSectors, MaxDiscardSeg         uint32
	MaxWriteZeroesSectors, MaxWriteZeroesSeg uint32
	MaxSecureEraseSectors, MaxSecureEraseSeg uint32
}

// A BlkRange is one range of a discard, write zeroes or secure erase.
type BlkRange struct {
	Off, Len int64 // bytes
	Unmap    bool  // write zeroes may give the space back
}

// A BlkRequest is a parsed request. It is the caller's, who uses it again and
// again: Ranges and the vectors keep their memory.
type BlkRequest struct {
	Op     BlkOp
	Off    int64      // bytes; BlkIn and BlkOut
	Len    int64      // bytes of Data
	Data   [][]byte   // a part of the chain's In (BlkIn, BlkGetID, BlkGetLifetime) or Out (BlkOut): its memory is the guest's
	Ranges []BlkRange // BlkDiscard, BlkWriteZeroes, BlkSecureErase; those of no bytes are left out

	// Status is BlkOK if the request may be executed. Otherwise it is what to
	// complete it with at once, and Why says in a few words why.
	Status byte
	Why    string

	// Room is how many writable bytes there are before the status, whether or
	// not the request has a use for them; Data is the first of them.
	Room int64
}

// StatusByte is where a block request has its status: the last writable byte of
// its chain. It is nil where there is none, and to be asked for before Parse,
// which cuts it off.
func (c *Chain) StatusByte() []byte {
	n := len(c.In)
	if n == 0 {
		return nil
	}
	last := c.In[n-1]
	return last[len(last)-1:]
}

// Parse reads the request that a chain is. Header, data and status may lie
// anywhere in it as far as their order goes (section 2.7.4); pieces of c's vectors
// that hold more than data are cut. It answers false if the chain has no byte for a status:
// nobody can be told what became of such a request, so the device stops and
// waits for its reset.
//
// All that the guest can change is read once.
func (d *BlkDisk) Parse(c *Chain, rq *BlkRequest) bool {
	rq.Off, rq.Len, rq.Data, rq.Ranges = 0, 0, nil, rq.Ranges[:0]
	rq.Status, rq.Why = BlkOK, ""
	if len(c.In) == 0 {
		return false
	}
	rq.leaveStatus(c)
	var h [blkHeaderSize]byte
	if c.OutBytes < blkHeaderSize {
		rq.Op = ^BlkOp(0)
		rq.fail(BlkIOErr, "a header cut short")
		return true
	}
	out, outBytes := take(c.Out, h[:]), c.OutBytes-blkHeaderSize
	rq.Op = BlkOp(binary.LittleEndian.Uint32(h[:]))
	sector := binary.LittleEndian.Uint64(h[8:])
	switch rq.Op {
	case BlkIn:
		rq.Data, rq.Len = c.In, int64(c.InBytes)
		d.checkTransfer(rq, sector)
	case BlkOut:
		rq.Data, rq.Len = out, int64(outBytes)
		if d.mayChange(rq) {
			d.checkTransfer(rq, sector)
		}
	case BlkFlush:
	case BlkGetID:
		rq.Data, rq.Len = c.In, int64(c.InBytes)
	case BlkGetLifetime:
		rq.Data, rq.Len = c.In, int64(c.InBytes)
		if d.Features&BlkFeatureLifetime == 0 {
			rq.fail(BlkUnsupported, "no lifetime is offered")
		}
	case BlkDiscard:
		d.parseRanges(out, outBytes, rq, BlkFeatureDiscard, d.MaxDiscardSectors, d.MaxDiscardSeg)
	case BlkWriteZeroes:
		d.parseRanges(out, outBytes, rq, BlkFeatureWriteZeroes, d.MaxWriteZeroesSectors, d.MaxWriteZeroesSeg)
	case BlkSecureErase:
		d.parseRanges(out, outBytes, rq, BlkFeatureSecureErase, d.MaxSecureEraseSectors, d.MaxSecureEraseSeg)
	default:
		rq.fail(BlkUnsupported, "an unknown type")
	}
	return true
}

func (rq *BlkRequest) fail(status byte, why string) {
	rq.Status, rq.Why = status, why
}

// leaveStatus cuts the last writable byte off.
func (rq *BlkRequest) leaveStatus(c *Chain) {
	n := len(c.In)
	if last := c.In[n-1]; len(last) == 1 {
		c.In = c.In[:n-1]
	} else {
		c.In[n-1] = last[:len(last)-1]
	}
	c.InBytes--
	rq.Room = int64(c.InBytes)
}

// take copies the first bytes of v to dst, and answers with the rest of v. There
// are enough.
func take(v [][]byte, dst []byte) [][]byte {
	for {
		n := copy(dst, v[0])
		if n < len(v[0]) {
			v[0] = v[0][n:]
			return v
		}
		v, dst = v[1:], dst[n:]
		if len(dst) == 0 {
			return v
		}
	}
}

func (d *BlkDisk) sectors() uint64 { return uint64(max(d.Capacity, 0)) / SectorSize }

// checkTransfer checks where a read or write goes (section 5.2.6.1).
func (d *BlkDisk) checkTransfer(rq *BlkRequest, sector uint64) {
	switch {
	case rq.Len%SectorSize != 0:
		rq.fail(BlkIOErr, "a length that is no multiple of 512")
	case !d.inside(sector, uint64(rq.Len)/SectorSize):
		rq.fail(BlkIOErr, "beyond the end of the disk")
	default:
		rq.Off = int64(sector) * SectorSize
	}
}

func (d *BlkDisk) inside(sector, n uint64) bool {
	all := d.sectors()
	return sector <= all && n <= all-sector
}

// mayChange fails what would change a read-only disk (section 5.2.6.2).
func (d *BlkDisk) mayChange(rq *BlkRequest) bool {
	if d.Features&BlkFeatureRO != 0 {
		rq.fail(BlkIOErr, "the disk is read-only")
	}
	return d.Features&BlkFeatureRO == 0
}

// parseRanges reads the ranges of a discard, write zeroes or secure erase, and
// checks them (sections 5.2.6.1 and 5.2.6.2).
func (d *BlkDisk) parseRanges(v [][]byte, bytes uint64, rq *BlkRequest, feature uint64, maxSectors, maxSeg uint32) {
	n := bytes / blkRangeSize
	switch {
	case d.Features&feature == 0:
		rq.fail(BlkUnsupported, "not offered")
	case !d.mayChange(rq):
	case n == 0 || bytes%blkRangeSize != 0:
		rq.fail(BlkIOErr, "ranges cut short")
	case n > uint64(maxSeg) || n > BlkMaxRanges:
		rq.fail(BlkIOErr, "too many ranges")
	}
	if rq.Status != BlkOK {
		return
	}
	// A flag that is not known is answered before a range that is wrong, in
	// whatever order they are found.
	for range n {
		var b [blkRangeSize]byte
		v = take(v, b[:])
		d.addRange(rq, b[:], maxSectors)
		if rq.Status == BlkUnsupported {
			break
		}
	}
	if rq.Status != BlkOK {
		rq.Ranges, rq.Len = rq.Ranges[:0], 0
	}
}

func (d *BlkDisk) addRange(rq *BlkRequest, b []byte, maxSectors uint32) {
	sector, n, flags := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint32(b[12:])
	switch {
	case flags&^blkUnmap != 0 || flags != 0 && rq.Op != BlkWriteZeroes:
		rq.fail(BlkUnsupported, "a flag of a range that is not known")
	case n > maxSectors:
		rq.fail(BlkIOErr, "a range that is too long")
	case !d.inside(sector, uint64(n)):
		rq.fail(BlkIOErr, "a range beyond the end of the disk")
	case n > 0:
		r := BlkRange{Off: int64(sector) * SectorSize, Len: int64(n) * SectorSize, Unmap: flags != 0}
		rq.Ranges = append(rq.Ranges, r)
	}
}

// BlkWritten is what to give to Push for a request that ended with status: how
// many bytes were written for certain, from the first on (section 2.7.8.2). The
// request had room for so many bytes before its status and wrote the first n of
// them, if it succeeded.
func BlkWritten(status byte, n, room int64) uint32 {
	switch {
	case room == 0:
		return 1
	case status != BlkOK:
		return 0 // the status is the last byte, and those before it are anything
	case n < room:
		return uint32(min(n, 1<<32-1)) // a gap before the status
	}
	return uint32(min(n+1, 1<<32-1))
}

// CopyID answers a BlkGetID: id, cut to 20 bytes and filled up with zeroes, as
// far as there is room (section 5.2.6). Len becomes what was written.
func (rq *BlkRequest) CopyID(id string) {
	var b [BlkIDSize]byte
	copy(b[:], id)
	rq.Len = 0
	rest := b[:]
	for _, v := range rq.Data {
		n := copy(v, rest)
		rest = rest[n:]
		rq.Len += int64(n)
	}
}
