package qcow2

import (
	"bytes"
	"encoding/binary"
	"syscall"

	"github.com/platter-storage/platter/block"
)

// layout is where an image's metadata lies, as the header says. What reads it
// from the file has checked each field against the limits of the format; what
// offsets point at may still be anything.
type layout struct {
	version     uint32
	clusterBits uint32
	size        uint64 // of the disk in bytes
	crypt       uint32
	l1Entries   uint32
	l1Off       uint64
	tableOff    uint64 // of the refcount table
	tableLen    uint32 // of the refcount table in clusters
	snapshots   uint32
	snapOff     uint64
	incompat    uint64
	compat      uint64
	autoclear   uint64
	order       uint32 // a refcount has 1<<order bits
	headerLen   uint32
	backingOff  uint64
	backingLen  uint32
	extensions  []headerExtension
}

// headerExtension is one as it stands in the header.
type headerExtension struct {
	kind uint32
	data []byte
}

// Offsets of header fields that are changed in place (section "Header").
const (
	atVersion   = 4
	atBacking   = 8
	atSize      = 24
	atL1Size    = 36
	atL1Offset  = 40
	atTable     = 48
	atSnapshots = 60
	atFeatures  = 72
	atAutoclear = 88
	atOrder     = 96
	headerV2    = 72
	headerV3    = 104
)

// Limits of what an image may claim, each as in the reference.
const (
	maxHeaderLen     = 4096
	maxL1Bytes       = 32 << 20
	maxTableBytes    = 8 << 20
	maxSnapshots     = 65536
	maxSnapshotTable = 64 << 20
	maxExtensions    = 64
	maxCryptHeader   = 64 << 20
)

// Feature bits.
const (
	featDirty, featCorrupt, featDataFile        = 1 << 0, 1 << 1, 1 << 2
	featCompression, featExtendedL2             = 1 << 3, 1 << 4
	featLazy                                    = 1 << 0
	featBitmaps, featRawData                    = 1 << 0, 1 << 1
	extBackingFormat, extFeatures        uint32 = 0xe2792aca, 0x6803f857
	extBitmaps, extCrypt                 uint32 = 0x23852875, 0x0537be77
	extDataFile                          uint32 = 0x44415441
)

// clusterSize is in bytes.
func (l *layout) clusterSize() int64 { return 1 << l.clusterBits }

// clusters is how many clusters n bytes fill.
func (l *layout) clusters(n int64) int64 { return (n + l.clusterSize() - 1) >> l.clusterBits }

// aligned reports whether off begins a cluster.
func (l *layout) aligned(off uint64) bool { return off&uint64(l.clusterSize()-1) == 0 }

// entryLen is the length of an L2 entry in bytes.
func (l *layout) entryLen() int64 {
	if l.incompat&featExtendedL2 != 0 {
		return 16
	}
	return 8
}

// l2Span is how many bytes of disk one L2 table maps.
func (l *layout) l2Span() int64 { return (l.clusterSize() / l.entryLen()) << l.clusterBits }

// perBlock is how many refcounts a refcount block has.
func (l *layout) perBlock() int64 { return l.clusterSize() * 8 >> l.order }

// maxRefcount is the largest that the width can say.
func (l *layout) maxRefcount() uint64 {
	if l.order == 6 {
		return 1<<64 - 1
	}
	return 1<<(1<<l.order) - 1
}

// extension finds the data of one kind, or nil.
func (l *layout) extension(kind uint32) []byte {
	for _, x := range l.extensions {
		if x.kind == kind {
			return x.data
		}
	}
	return nil
}

// parseLayout reads the header, of which head is the first cluster or as much
// of it as there is.
func parseLayout(head []byte) (layout, error) {
	var l layout
	if len(head) < headerV2 || !bytes.Equal(head[:4], []byte("QFI\xfb")) {
		return l, block.Errorf(syscall.EINVAL, "it does not begin with a qcow2 header")
	}
	u32 := func(at int) uint32 { return binary.BigEndian.Uint32(head[at:]) }
	u64 := func(at int) uint64 { return binary.BigEndian.Uint64(head[at:]) }
	l = layout{version: u32(atVersion), backingOff: u64(8), backingLen: u32(16), clusterBits: u32(20), size: u64(24), crypt: u32(32),
		l1Entries: u32(36), l1Off: u64(40), tableOff: u64(48), tableLen: u32(56), snapshots: u32(60), snapOff: u64(64), order: 4, headerLen: headerV2}
	if l.version == 3 && len(head) >= headerV3 {
		l.incompat, l.compat, l.autoclear, l.order, l.headerLen = u64(72), u64(80), u64(88), u32(96), u32(100)
	}
	if err := l.bounded(int64(len(head))); err != nil {
		return l, err
	}
	return l, l.parseExtensions(head)
}

// bounded holds each field up against its limit.
func (l *layout) bounded(have int64) error {
	for _, f := range []struct {
		bad  bool
		name string
		at   int
		n    uint64
	}{
		{l.version != 2 && (l.version != 3 || have < headerV3), "version", 4, uint64(l.version)},
		{l.clusterBits < 9 || l.clusterBits > 21, "cluster_bits", 20, uint64(l.clusterBits)},
		{l.size > block.MaxSize, "size", 24, l.size},
		{l.order > 6, "refcount_order", 96, uint64(l.order)},
		{l.version == 3 && (l.headerLen < headerV3 || l.headerLen > maxHeaderLen || l.headerLen%8 != 0 || int64(l.headerLen) > have), "header_length", 100, uint64(l.headerLen)},
		{int64(l.l1Entries)*8 > maxL1Bytes, "l1_size", 36, uint64(l.l1Entries)},
		{uint64(l.tableLen)<<(l.clusterBits&31) > maxTableBytes, "refcount_table_clusters", 56, uint64(l.tableLen)},
		{l.snapshots > maxSnapshots, "nb_snapshots", 60, uint64(l.snapshots)},
		{l.incompat>>5 != 0, "incompatible_features", 72, l.incompat},
		{l.incompat&featExtendedL2 != 0 && l.clusterBits < 14, "cluster_bits (extended L2 entries)", 20, uint64(l.clusterBits)},
	} {
		if f.bad {
			return block.Errorf(syscall.EINVAL, "the header's %s at byte %d is %d, which no image may have", f.name, f.at, f.n)
		}
	}
	return nil
}

// parseExtensions reads what follows the header. They end before the backing
// file's name, which ends them in version 2 where no end is written.
func (l *layout) parseExtensions(head []byte) error {
	end := int64(min(uint64(l.clusterSize()), uint64(len(head))))
	if l.backingOff != 0 && l.backingOff < uint64(end) {
		end = int64(l.backingOff)
	}
	for at := int64(l.headerLen); at+8 <= end; {
		kind, n := binary.BigEndian.Uint32(head[at:]), int64(binary.BigEndian.Uint32(head[at+4:]))
		if kind == 0 {
			return nil
		}
		if n > end-at-8 || len(l.extensions) == maxExtensions {
			return block.Errorf(syscall.EINVAL, "the header extension %#x at byte %d has %d bytes, more than there is room for", kind, at, n)
		}
		l.extensions = append(l.extensions, headerExtension{kind, bytes.Clone(head[at+8 : at+8+n])})
		at += 8 + (n+7)&^7
	}
	return nil
}
