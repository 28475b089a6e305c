package qcow2

import (
	"encoding/binary"
	"syscall"

	"github.com/platter-storage/platter/block"
)

// bitmapEntry is an entry of the bitmap directory (section "Bitmaps").
type bitmapEntry struct {
	tableOff  uint64
	entries   uint32
	flags     uint32
	kind      byte
	granBits  byte
	name      string
	extra     []byte
	extraSize uint32
}

// Flags, limits and types of bitmaps.
const (
	bitmapInUse, bitmapAuto, bitmapExtraOK = 1 << 0, 1 << 1, 1 << 2
	bitmapDirtyKind                        = 1
	bitmapFixed                            = 24
	maxBitmaps                             = 65535
	maxBitmapName                          = 1023
	minGranBits, maxGranBits               = 9, 31
	// maxBitmapBytes is how long one bitmap may be, and maxBitmapExtra the
	// extra data of one.
	maxBitmapBytes = 512 << 20
	maxBitmapExtra = 1024
	maxDirectory   = maxBitmaps * (bitmapFixed + maxBitmapName + maxBitmapExtra + 7)
)

// bitmapExtension is the header extension.
type bitmapExtension struct {
	count  uint32
	size   uint64 // of the directory in bytes
	offset uint64
}

const bitmapExtensionLen = 24

// bitmapHeader reads the extension; ok is false where there is none, or where
// the feature bit says that what it describes is out of date.
func (l *layout) bitmapHeader() (x bitmapExtension, ok bool, err error) {
	b := l.extension(extBitmaps)
	if b == nil || l.version < 3 {
		return x, false, nil
	}
	if len(b) != bitmapExtensionLen {
		return x, false, block.Errorf(syscall.EINVAL, "the bitmaps extension has %d bytes instead of %d", len(b), bitmapExtensionLen)
	}
	x = bitmapExtension{binary.BigEndian.Uint32(b), binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint64(b[16:])}
	switch {
	case l.autoclear&featBitmaps == 0:
		return x, false, nil
	case x.count == 0 || x.count > maxBitmaps:
		err = block.Errorf(syscall.EINVAL, "the bitmaps extension claims %d bitmaps; 1 to %d are allowed", x.count, maxBitmaps)
	case x.size < uint64(x.count)*bitmapFixed || x.size > maxDirectory:
		err = block.Errorf(syscall.EINVAL, "the bitmap directory has %d bytes, which %d bitmaps do not have", x.size, x.count)
	case !l.aligned(x.offset) || x.offset == 0 || x.offset > block.MaxSize-maxDirectory:
		err = block.Errorf(syscall.EINVAL, "the bitmap directory is at offset %d, which begins no cluster", x.offset)
	}
	return x, err == nil, err
}

// readBitmaps reads the bitmap directory; nil where there is none.
func (e *editor) readBitmaps() ([]bitmapEntry, error) {
	x, ok, err := e.bitmapHeader()
	if !ok {
		return nil, err
	}
	var all []bitmapEntry
	names := map[string]bool{}
	r := tableReader{e: e, off: int64(x.offset), max: int64(x.size)}
	for i := range x.count {
		b, err := r.bitmap()
		if err == nil && names[b.name] {
			err = block.Errorf(syscall.EINVAL, "its name %q is another's", b.name)
		}
		if err != nil {
			return all, block.Errorf(syscall.EINVAL, "entry %d of the bitmap directory at offset %d: %v", i, x.offset, err)
		}
		names[b.name] = true
		all = append(all, b)
	}
	if r.at != int64(x.size) {
		return all, block.Errorf(syscall.EINVAL, "the bitmap directory at offset %d has %d bytes, its %d entries fill %d", x.offset, x.size, x.count, r.at)
	}
	return all, nil
}

func (r *tableReader) bitmap() (m bitmapEntry, err error) {
	b, err := r.next(bitmapFixed)
	if err != nil {
		return m, err
	}
	m = bitmapEntry{tableOff: binary.BigEndian.Uint64(b), entries: binary.BigEndian.Uint32(b[8:]), flags: binary.BigEndian.Uint32(b[12:]), kind: b[16], granBits: b[17]}
	nameLen := int64(binary.BigEndian.Uint16(b[18:]))
	m.extraSize = binary.BigEndian.Uint32(b[20:])
	if nameLen == 0 || nameLen > maxBitmapName || m.extraSize > maxBitmapExtra {
		return m, block.Errorf(syscall.EINVAL, "its name has %d bytes and its extra data %d; at most %d and %d are allowed", nameLen, m.extraSize, maxBitmapName, maxBitmapExtra)
	}
	if b, err = r.next(int64(m.extraSize) + nameLen); err != nil {
		return m, err
	}
	m.extra, m.name = append([]byte(nil), b[:m.extraSize]...), string(b[m.extraSize:])
	r.pad()
	return m, r.e.checkBitmap(&m)
}

// checkBitmap holds an entry up against what bitmaps may be.
func (e *editor) checkBitmap(m *bitmapEntry) error {
	switch {
	case m.kind != bitmapDirtyKind:
		return block.Errorf(syscall.EINVAL, "bitmap %q is of the reserved type %d", m.name, m.kind)
	case m.flags>>3 != 0:
		return block.Errorf(syscall.EINVAL, "bitmap %q has reserved flags %#x", m.name, m.flags)
	case m.granBits < minGranBits || m.granBits > maxGranBits:
		return block.Errorf(syscall.EINVAL, "bitmap %q has a granularity of 2^%d bytes; 2^%d to 2^%d are allowed", m.name, m.granBits, minGranBits, maxGranBits)
	case m.tableOff == 0 || !e.aligned(m.tableOff) || m.tableOff > block.MaxSize-maxBitmapBytes:
		return block.Errorf(syscall.EINVAL, "the table of bitmap %q is at offset %d, which begins no cluster", m.name, m.tableOff)
	case m.entries == 0 || int64(m.entries)*8 > maxL1Bytes || int64(m.entries) > maxBitmapBytes>>e.clusterBits+1:
		return block.Errorf(syscall.EINVAL, "the table of bitmap %q has %d entries", m.name, m.entries)
	case m.flags&bitmapInUse == 0 && int64(m.entries) != e.bitmapClusters(m.granBits):
		return block.Errorf(syscall.EINVAL, "the table of bitmap %q has %d entries; the disk needs %d", m.name, m.entries, e.bitmapClusters(m.granBits))
	}
	return nil
}

// bitmapClusters is how many clusters of bits a bitmap of the disk has.
func (l *layout) bitmapClusters(granBits byte) int64 {
	bits := (int64(l.size) + 1<<granBits - 1) >> granBits
	return l.clusters((bits + 7) / 8)
}

// append adds the entry as it lies in the directory.
func (m *bitmapEntry) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, m.tableOff)
	b = binary.BigEndian.AppendUint32(b, m.entries)
	b = binary.BigEndian.AppendUint32(b, m.flags)
	b = append(b, m.kind, m.granBits)
	b = binary.BigEndian.AppendUint16(b, uint16(len(m.name)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(m.extra)))
	b = append(append(b, m.extra...), m.name...)
	for len(b)%8 != 0 {
		b = append(b, 0)
	}
	return b
}
