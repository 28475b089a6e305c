package qcow2

import (
	"encoding/binary"
	"syscall"

	"github.com/platter-storage/platter/block"
)

// snapshot is an entry of the snapshot table (section "Snapshots").
type snapshot struct {
	l1Off     uint64
	l1Entries uint32
	id, name  string
	sec, nsec uint32
	clockNs   uint64
	vmState   uint64
	// extra data beyond what is understood is kept as it is. hasSize and
	// hasCount say how much was there: images of version 2 may have less.
	diskSize, count   uint64
	hasSize, hasCount bool
	extra             []byte
}

// The fixed part of an entry, and what is understood of its extra data.
const (
	snapshotFixed    = 40
	maxSnapshotExtra = 1024
	extraVMState     = 8
	extraDiskSize    = 16
	extraICount      = 24
	noICount         = 1<<64 - 1
)

// readSnapshots reads the snapshot table. Its length in bytes is the second
// result.
func (e *editor) readSnapshots() ([]snapshot, int64, error) {
	var all []snapshot
	r := tableReader{e: e, off: int64(min(e.snapOff, block.MaxSize)), max: maxSnapshotTable}
	for i := range e.snapshots {
		s, err := r.snapshot()
		if err != nil {
			return all, r.at, block.Errorf(syscall.EINVAL, "entry %d of the snapshot table at offset %d: %v", i, e.snapOff, err)
		}
		all = append(all, s)
	}
	return all, r.at, nil
}

// tableReader reads a table of entries of different lengths, in parts: no more
// memory is used than entries have been read for.
type tableReader struct {
	e       *editor
	off, at int64
	max     int64
	buf     []byte // what has been read ahead, from bufAt on
	bufAt   int64
}

// next gives the next n bytes, valid until the call after.
func (r *tableReader) next(n int64) ([]byte, error) {
	if n > r.max-r.at || r.off+r.at+n > r.e.clusters(r.e.file.Size())<<r.e.clusterBits {
		return nil, block.Errorf(syscall.EINVAL, "it runs beyond %d bytes, or the end of the file", r.max)
	}
	if r.at < r.bufAt || r.at+n > r.bufAt+int64(len(r.buf)) {
		r.buf, r.bufAt = make([]byte, max(n, min(1<<16, r.max-r.at))), r.at
		if err := r.e.read(r.off+r.at, r.buf); err != nil {
			return nil, err
		}
	}
	b := r.buf[r.at-r.bufAt:][:n]
	r.at += n
	return b, nil
}

// pad skips to the next multiple of 8.
func (r *tableReader) pad() { r.at = (r.at + 7) &^ 7 }

func (r *tableReader) snapshot() (s snapshot, err error) {
	b, err := r.next(snapshotFixed)
	if err != nil {
		return s, err
	}
	idLen, nameLen := int64(binary.BigEndian.Uint16(b[12:])), int64(binary.BigEndian.Uint16(b[14:]))
	s = snapshot{l1Off: binary.BigEndian.Uint64(b), l1Entries: binary.BigEndian.Uint32(b[8:]), sec: binary.BigEndian.Uint32(b[16:]),
		nsec: binary.BigEndian.Uint32(b[20:]), clockNs: binary.BigEndian.Uint64(b[24:]), vmState: uint64(binary.BigEndian.Uint32(b[32:]))}
	extraLen := int64(binary.BigEndian.Uint32(b[36:]))
	if extraLen > maxSnapshotExtra {
		return s, block.Errorf(syscall.EINVAL, "it has %d bytes of extra data; at most %d are allowed", extraLen, maxSnapshotExtra)
	}
	x, err := r.next(extraLen)
	if err != nil {
		return s, err
	}
	s.takeExtra(x)
	if !s.hasSize {
		s.diskSize = r.e.size
	}
	if b, err = r.next(idLen + nameLen); err != nil {
		return s, err
	}
	s.id, s.name = string(b[:idLen]), string(b[idLen:])
	r.pad()
	return s, nil
}

// takeExtra reads what is understood and keeps the rest.
func (s *snapshot) takeExtra(x []byte) {
	s.count = noICount
	if len(x) >= extraVMState {
		s.vmState = binary.BigEndian.Uint64(x)
	}
	if len(x) >= extraDiskSize {
		s.diskSize, s.hasSize = binary.BigEndian.Uint64(x[8:]), true
	}
	if len(x) >= extraICount {
		s.count, s.hasCount = binary.BigEndian.Uint64(x[16:]), true
		s.extra = append([]byte(nil), x[extraICount:]...)
	}
}

// append adds the entry as it lies in the table.
func (s *snapshot) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, s.l1Off)
	b = binary.BigEndian.AppendUint32(b, s.l1Entries)
	b = binary.BigEndian.AppendUint16(b, uint16(len(s.id)))
	b = binary.BigEndian.AppendUint16(b, uint16(len(s.name)))
	b = binary.BigEndian.AppendUint32(b, s.sec)
	b = binary.BigEndian.AppendUint32(b, s.nsec)
	b = binary.BigEndian.AppendUint64(b, s.clockNs)
	b = binary.BigEndian.AppendUint32(b, uint32(min(s.vmState, 1<<32-1)))
	extra := extraDiskSize
	if s.hasCount {
		extra = extraICount + len(s.extra)
	}
	b = binary.BigEndian.AppendUint32(b, uint32(extra))
	b = binary.BigEndian.AppendUint64(b, s.vmState)
	b = binary.BigEndian.AppendUint64(b, s.diskSize)
	if s.hasCount {
		b = binary.BigEndian.AppendUint64(b, s.count)
		b = append(b, s.extra...)
	}
	b = append(append(b, s.id...), s.name...)
	for len(b)%8 != 0 {
		b = append(b, 0)
	}
	return b
}

// public is the entry as tools see it.
func (s *snapshot) public() block.Snapshot {
	count := int64(-1)
	if s.hasCount && s.count <= 1<<63-1 {
		count = int64(s.count)
	}
	return block.Snapshot{ID: s.id, Name: s.name, VMStateSize: int64(min(s.vmState, 1<<63-1)), DateSec: s.sec, DateNsec: s.nsec,
		VMClockNsec: s.clockNs, ICount: count, DiskSize: int64(min(s.diskSize, 1<<63-1))}
}
