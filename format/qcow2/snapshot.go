package qcow2

import (
	"encoding/binary"
	"slices"
	"strconv"
	"syscall"

	"github.com/platter-storage/platter/block"
)

// Snapshots are made, applied and deleted so that a power cut at any write
// leaves the image as it was before or as it is after, and lost space at worst:
// refcounts go up before anything new refers to what they count, one write to
// the header decides, and refcounts go down when nothing durable refers any
// more. Where the version of the image knows the dirty bit it is set meanwhile,
// so that the lost space is found again with the next open.

// Limits of what the tools keep of an ID and a name.
const (
	maxSnapshotID   = 127
	maxSnapshotName = 255
)

// listSnapshots is List of the ability.
func (e *editor) listSnapshots() ([]block.Snapshot, error) {
	all, _, err := e.readSnapshots()
	var list []block.Snapshot
	for i := range all {
		list = append(list, all[i].public())
	}
	return list, err
}

// findSnapshot looks for an ID, then for a name.
func findSnapshot(all []snapshot, find string) (int, error) {
	if i := slices.IndexFunc(all, func(s snapshot) bool { return s.id == find }); i >= 0 {
		return i, nil
	}
	if i := slices.IndexFunc(all, func(s snapshot) bool { return s.name == find }); i >= 0 {
		return i, nil
	}
	return 0, block.Errorf(syscall.ENOENT, "there is no snapshot with the ID or name %q", find)
}

// snapshotsPossible tells whether there can be any.
func (e *editor) snapshotsPossible() error {
	if e.incompat&featDataFile != 0 {
		return block.Errorf(syscall.ENOTSUP, "an image whose data is in a file of its own has no internal snapshots")
	}
	return nil
}

// newSnapshot completes what is asked for, held up against what there is.
func (e *editor) newSnapshot(all []snapshot, want block.Snapshot) (snapshot, error) {
	s := snapshot{id: want.ID, name: want.Name, l1Entries: e.l1Entries, sec: want.DateSec, nsec: want.DateNsec, clockNs: want.VMClockNsec,
		vmState: uint64(max(want.VMStateSize, 0)), diskSize: e.size, hasSize: true, hasCount: true, count: noICount}
	if want.ICount > 0 {
		s.count = uint64(want.ICount)
	}
	if s.id == "" {
		last := uint64(0)
		for _, x := range all {
			if n, err := strconv.ParseUint(x.id, 10, 63); err == nil {
				last = max(last, n)
			}
		}
		s.id = strconv.FormatUint(last+1, 10)
	}
	switch {
	case len(all) >= maxSnapshots:
		return s, block.Errorf(syscall.EFBIG, "the image has %d snapshots, the most that are possible", len(all))
	case len(s.id) > maxSnapshotID || len(s.name) > maxSnapshotName:
		return s, block.Errorf(syscall.ENAMETOOLONG, "a snapshot's ID has at most %d bytes, its name %d", maxSnapshotID, maxSnapshotName)
	case slices.ContainsFunc(all, func(x snapshot) bool { return x.id == s.id }):
		return s, block.Errorf(syscall.EEXIST, "there is a snapshot with the ID %q", s.id)
	}
	return s, nil
}

// createSnapshot is Create of the ability.
func (e *editor) createSnapshot(want block.Snapshot) (made block.Snapshot, err error) {
	if err := e.snapshotsPossible(); err != nil {
		return made, err
	}
	all, oldLen, err := e.readSnapshots()
	if err != nil {
		return made, err
	}
	s, err := e.newSnapshot(all, want)
	if err != nil {
		return made, err
	}
	l1, err := e.readTable(e.l1Off, int64(e.l1Entries))
	if err != nil {
		return made, err
	}
	err = e.within(func() error {
		if err := e.share(l1); err != nil {
			return e.failed(err)
		}
		if s.l1Off, err = e.place(sharedL1(l1)); err != nil {
			return err
		}
		return e.storeSnapshots(append(all, s), oldLen, func() error { return e.setCopied(e.l1Off, e.l1Entries) })
	})
	return s.public(), err
}

// failed ends what could not be begun: nothing is changed.
func (e *editor) failed(err error) error {
	if end := e.end(); end != nil {
		return end
	}
	return err
}

// sharedL1 is an L1 table as it lies in the file of one who shares what it
// refers to: without flags.
func sharedL1(l1 []uint64) []byte {
	t := slices.Clone(l1)
	for i := range t {
		t[i] &^= entryCopied
	}
	return tableBytes(t)
}

// storeSnapshots writes the table anew and makes it the image's. before runs
// when the new table is durable and not in force yet.
func (e *editor) storeSnapshots(all []snapshot, oldLen int64, before func() error) error {
	var b []byte
	for i := range all {
		b = all[i].append(b)
	}
	if len(b) > maxSnapshotTable {
		return block.Errorf(syscall.EFBIG, "the snapshot table would have %d bytes; at most %d are possible", len(b), maxSnapshotTable)
	}
	off, err := e.place(b)
	if err != nil {
		return err
	}
	if err := e.sync(); err != nil {
		return err
	}
	if err := before(); err != nil {
		return err
	}
	if err := e.sync(); err != nil {
		return err
	}
	head := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(nil, uint32(len(all))), off)
	if err := e.write(atSnapshots, head); err != nil {
		return err
	}
	if err := e.file.Flush(e.rq); err != nil {
		return err
	}
	old := e.snapOff
	e.snapshots, e.snapOff = uint32(len(all)), off
	return e.give(old, oldLen)
}

// snapshotL1 reads a snapshot's L1 table.
func (e *editor) snapshotL1(s *snapshot) ([]uint64, error) {
	n := int64(s.l1Entries) * 8
	if n > maxL1Bytes || n > 0 && (!e.aligned(s.l1Off) || s.l1Off > block.MaxSize-maxL1Bytes || int64(s.l1Off)+n > e.clusters(e.file.Size())<<e.clusterBits) {
		return nil, block.Errorf(syscall.EIO, "the L1 table of snapshot %q is at offset %d with %d entries, where no table can be: check the image", s.id, s.l1Off, s.l1Entries)
	}
	return e.readTable(s.l1Off, int64(s.l1Entries))
}

// deleteSnapshot is Delete of the ability.
func (e *editor) deleteSnapshot(find string) error {
	if err := e.snapshotsPossible(); err != nil {
		return err
	}
	all, oldLen, err := e.readSnapshots()
	if err != nil {
		return err
	}
	i, err := findSnapshot(all, find)
	if err != nil {
		return err
	}
	s := all[i]
	l1, err := e.snapshotL1(&s)
	if err != nil {
		return err
	}
	return e.within(func() error {
		if err := e.storeSnapshots(slices.Delete(all, i, i+1), oldLen, func() error { return nil }); err != nil {
			return err
		}
		if err := e.unshare(l1); err != nil {
			return err
		}
		if err := e.give(s.l1Off, int64(len(l1))*8); err != nil {
			return err
		}
		if err := e.sync(); err != nil {
			return err
		}
		return e.setCopied(e.l1Off, e.l1Entries)
	})
}

// applySnapshot is Apply of the ability. Enabled bitmaps then have all of the
// disk marked.
func (e *editor) applySnapshot(find string) error {
	if err := e.snapshotsPossible(); err != nil {
		return err
	}
	all, _, err := e.readSnapshots()
	if err != nil {
		return err
	}
	i, err := findSnapshot(all, find)
	if err != nil {
		return err
	}
	s := &all[i]
	l1, err := e.snapshotL1(s)
	if err != nil {
		return err
	}
	if err := e.fitSize(s, &l1); err != nil {
		return err
	}
	old, err := e.readTable(e.l1Off, int64(e.l1Entries))
	if err != nil {
		return err
	}
	return e.within(func() error {
		if err := e.markAllBitmaps(); err != nil {
			return err
		}
		if err := e.share(l1); err != nil {
			return e.failed(err)
		}
		return e.switchL1(l1, old, s.diskSize)
	})
}

// fitSize makes the table long enough for the snapshot's disk, and refuses a
// size that cannot be.
func (e *editor) fitSize(s *snapshot, l1 *[]uint64) error {
	need := int64(0)
	if s.diskSize <= block.MaxSize {
		need = (int64(s.diskSize) + e.l2Span() - 1) / e.l2Span()
	}
	if s.diskSize > block.MaxSize || need*8 > maxL1Bytes {
		return block.Errorf(syscall.EIO, "snapshot %q claims a disk of %d bytes", s.id, s.diskSize)
	}
	if n := need - int64(len(*l1)); n > 0 {
		*l1 = append(*l1, make([]uint64, n)...)
	}
	if s.diskSize == e.size {
		return nil
	}
	if x, ok, err := e.bitmapHeader(); err != nil || ok {
		return block.Errorf(syscall.EBUSY, "snapshot %q is of a disk of %d bytes, this one has %d, and %d bitmaps of that size: remove them first", s.id, s.diskSize, e.size, x.count)
	}
	return nil
}

// switchL1 makes l1, whose references are counted, the disk's table in place of
// old.
func (e *editor) switchL1(l1, old []uint64, size uint64) error {
	off, err := e.place(sharedL1(l1))
	if err != nil {
		return err
	}
	if err := e.sync(); err != nil {
		return err
	}
	if err := e.setCopied(off, uint32(len(l1))); err != nil {
		return err
	}
	if err := e.sync(); err != nil {
		return err
	}
	head := binary.BigEndian.AppendUint64(nil, size)
	head = binary.BigEndian.AppendUint32(head, e.crypt)
	head = binary.BigEndian.AppendUint32(head, uint32(len(l1)))
	head = binary.BigEndian.AppendUint64(head, off)
	if err := e.write(atSize, head); err != nil {
		return err
	}
	if err := e.file.Flush(e.rq); err != nil {
		return err
	}
	oldOff := e.l1Off
	e.size, e.l1Entries, e.l1Off = size, uint32(len(l1)), off
	if err := e.unshare(old); err != nil {
		return err
	}
	return e.give(oldOff, int64(len(old))*8)
}

// viewSnapshot makes the layout that of a snapshot, for reading: its L1 table
// and its size in place of the disk's.
func (e *editor) viewSnapshot(find string) (layout, error) {
	all, _, err := e.readSnapshots()
	if err != nil {
		return e.layout, err
	}
	i, err := findSnapshot(all, find)
	if err != nil {
		return e.layout, err
	}
	l1, err := e.snapshotL1(&all[i])
	if err != nil {
		return e.layout, err
	}
	l := e.layout
	l.l1Off, l.l1Entries, l.size = all[i].l1Off, uint32(len(l1)), all[i].diskSize
	if l.size > block.MaxSize {
		return l, block.Errorf(syscall.EIO, "snapshot %q claims a disk of %d bytes", all[i].id, all[i].diskSize)
	}
	return l, nil
}
