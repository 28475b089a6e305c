package qcow2

import (
	"bytes"
	"encoding/binary"
	"slices"
	"syscall"

	"github.com/platter-storage/platter/block"
)

// setExtension replaces, adds or, where data is nil, removes a header extension
// in l.
func (l *layout) setExtension(kind uint32, data []byte) {
	l.extensions = slices.Clone(l.extensions)
	i := slices.IndexFunc(l.extensions, func(x headerExtension) bool { return x.kind == kind })
	switch {
	case data == nil && i >= 0:
		l.extensions = slices.Delete(l.extensions, i, i+1)
	case data == nil:
	case i >= 0:
		l.extensions[i].data = data
	default:
		l.extensions = append(l.extensions, headerExtension{kind, data})
	}
}

// backingName is the name of the backing file as the header has it.
func (e *editor) backingName() (string, error) {
	if e.backingOff == 0 {
		return "", nil
	}
	if e.backingLen > maxBackingName || e.backingOff > uint64(e.clusterSize()) {
		return "", block.Errorf(syscall.EINVAL, "the name of the backing file is at byte %d with %d bytes: at most %d, in the first cluster, are allowed", e.backingOff, e.backingLen, maxBackingName)
	}
	b := make([]byte, e.backingLen)
	err := e.read(int64(e.backingOff), b)
	return string(b), err
}

const maxBackingName = 1023

// writeHead writes what stands in the first cluster anew: the fields of l, its
// extensions, the name of the backing file. Fields that are not known stay. All
// that it refers to is durable before, and it is on return. The first sector,
// which has all fields, is whole or not there after a power cut; where the rest
// of the header is longer the bits that vouch for it are cleared meanwhile.
func (e *editor) writeHead(l layout, backing string) error {
	old := make([]byte, min(e.clusterSize(), max(e.file.Size(), 512)))
	if err := e.read(0, old); err != nil {
		return err
	}
	b, err := l.head(old, backing)
	if err != nil {
		return err
	}
	if err := e.sync(); err != nil {
		return err
	}
	if len(b) > 512 && !bytes.Equal(b[512:], old[512:len(b)]) && l.version == 3 && e.version == 3 && (e.autoclear|l.autoclear)&featBitmaps != 0 {
		if err := e.write(atAutoclear, tableBytes([]uint64{e.autoclear &^ featBitmaps})); err != nil {
			return err
		}
		if err := e.file.Flush(e.rq); err != nil {
			return err
		}
		if err := e.write(512, b[512:]); err != nil {
			return err
		}
		if err := e.file.Flush(e.rq); err != nil {
			return err
		}
		b = b[:512]
	}
	if err := e.write(0, b); err != nil {
		return err
	}
	e.layout = l
	return e.file.Flush(e.rq)
}

// head composes the header: whole sectors, long enough to replace all of the
// old one.
func (l *layout) head(old []byte, backing string) ([]byte, error) {
	b := make([]byte, l.headerLen)
	known := l.headerLen
	if binary.BigEndian.Uint32(old[atVersion:]) < 3 {
		known = headerV2 // extensions follow
	}
	copy(b, old[:min(known, l.headerLen)])
	copy(b, "QFI\xfb")
	binary.BigEndian.PutUint32(b[atVersion:], l.version)
	l.fields(b)
	for _, x := range l.extensions {
		b = binary.BigEndian.AppendUint32(b, x.kind)
		b = binary.BigEndian.AppendUint32(b, uint32(len(x.data)))
		b = append(b, x.data...)
		b = append(b, make([]byte, -len(x.data)&7)...)
	}
	b = append(b, make([]byte, 8)...)
	l.backingOff, l.backingLen = 0, 0
	if backing != "" {
		l.backingOff, l.backingLen = uint64(len(b)), uint32(len(backing))
		b = append(b, backing...)
	}
	binary.BigEndian.PutUint64(b[atBacking:], l.backingOff)
	binary.BigEndian.PutUint32(b[atBacking+8:], l.backingLen)
	if int64(len(b)) > l.clusterSize() && l.extension(extFeatures) != nil {
		l.setExtension(extFeatures, nil) // it only helps readers to explain themselves
		return l.head(old, backing)
	}
	if int64(len(b)) > l.clusterSize() {
		return nil, block.Errorf(syscall.ENOSPC, "the header would have %d bytes, more than the cluster of %d that it lies in: use larger clusters, or shorter names", len(b), l.clusterSize())
	}
	end := len(b)
	for k := len(old); k > end; k-- {
		if old[k-1] != 0 {
			end = k
		}
		if end > len(b) {
			break
		}
	}
	n := (max(end, len(b)) + 511) &^ 511
	return append(b, make([]byte, n-len(b))...), nil
}

// fields puts l's fields into b. Those of version 3 only where b has room for
// them.
func (l *layout) fields(b []byte) {
	be := binary.BigEndian
	be.PutUint32(b[20:], l.clusterBits)
	be.PutUint64(b[atSize:], l.size)
	be.PutUint32(b[32:], l.crypt)
	be.PutUint32(b[atL1Size:], l.l1Entries)
	be.PutUint64(b[atL1Offset:], l.l1Off)
	be.PutUint64(b[atTable:], l.tableOff)
	be.PutUint32(b[atTable+8:], l.tableLen)
	be.PutUint32(b[atSnapshots:], l.snapshots)
	be.PutUint64(b[atSnapshots+4:], l.snapOff)
	if l.version < 3 {
		return
	}
	be.PutUint64(b[atFeatures:], l.incompat)
	be.PutUint64(b[atFeatures+8:], l.compat)
	be.PutUint64(b[atAutoclear:], l.autoclear)
	be.PutUint32(b[atOrder:], l.order)
	be.PutUint32(b[atOrder+4:], l.headerLen)
}
