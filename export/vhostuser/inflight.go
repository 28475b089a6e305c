package vhostuser

import (
	"encoding/binary"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/internal/sys"
	"github.com/platter-storage/platter/queue"
	"github.com/platter-storage/platter/virtio"
	wire "github.com/platter-storage/platter/wire/vhostuser"
)

// record is the memory in which requests in flight are kept track of. It
// belongs to the front end, who gives it to our successor when we die.
// ("Inflight I/O tracking")
type record struct {
	wire.Inflight
	size    uint16 // descriptors that each queue's part is for
	fd      int    // ours; -1: there is no record
	mapping []byte
	mem     []byte
}

// Behind the queues' parts the record has a trailer of ours: the cache mode
// that the guest has been told, which a front end that meets our successor does
// not say again, while a guest in writethrough does not flush; and for how many
// descriptors the parts are.
const (
	trailerSize  = 64
	trailerMagic = "platter1"
	trailerAt    = len(trailerMagic) // of the cache mode: 1 writethrough, 2 writeback, 0 in doubt
	trailerParts = trailerAt + 2     // of the number of descriptors, little-endian, 2 bytes
)

// maxRecord bounds the memory that a front end can make us create: the most
// queues of the largest size, and the trailer.
const maxRecord = MaxQueues*(MaxQueueSize*32+virtio.InflightAlign) + trailerSize

// partSize is how many bytes the record has for each queue. A front end that
// asks before the guest has chosen gets room for either kind of ring.
func (s *session) partSize(size uint16) int {
	packed := s.features&virtio.FeatureRingPacked != 0 || !s.chosen && !s.d.cfg.NoPacked
	return virtio.InflightSize(size, packed)
}

// getInflight makes the record. ("VHOST_USER_GET_INFLIGHT_FD")
func (s *session) getInflight(m *wire.Message) error {
	want, err := m.Inflight()
	if err != nil {
		return err
	}
	if err := s.checkInflight(want); err != nil {
		return err
	}
	page := os.Getpagesize()
	// QEMU asks for its own queue-size, and lets guests make larger rings.
	largest := max(want.QueueSize, uint16(s.d.cfg.QueueSize))
	size := int(want.Queues)*s.partSize(largest) + trailerSize
	if size > maxRecord {
		return fmt.Errorf("a record of %d bytes: at most %d", size, maxRecord)
	}
	want.MmapSize, want.MmapOffset = uint64((size+page-1)/page*page), 0
	fd, err := newRecord(int64(want.MmapSize))
	if err != nil {
		return err
	}
	r, err := openRecord(want, fd)
	if err != nil {
		sys.CloseFd(fd)
		return err
	}
	r.size = largest
	r.writeTrailer(0)
	s.asked = true
	if s.running() == 0 {
		s.record.close()
		s.record = r
		s.keepMode()
	} else { // those that run keep to the one they have
		defer r.close()
	}
	return s.conn.Reply(m, want.Append(nil, m.Payload), fd)
}

// newRecord makes a file in memory that nobody can make shorter or longer.
func newRecord(size int64) (fd int, err error) {
	fd, err = unix.MemfdCreate("platter-inflight", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, fmt.Errorf("memory for the record: %w", err)
	}
	if err = unix.Ftruncate(fd, size); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err != nil {
		sys.CloseFd(fd)
		return -1, fmt.Errorf("memory of %d bytes for the record: %w", size, err)
	}
	return fd, nil
}

// openRecord maps a record; it owns fd from then on, unless it fails.
func openRecord(in wire.Inflight, fd int) (record, error) {
	mapping, mem, err := mapFile(fd, in.MmapOffset, in.MmapSize)
	if err != nil {
		return record{fd: -1}, fmt.Errorf("the record of requests in flight: %w", err)
	}
	return record{in, in.QueueSize, fd, mapping, mem}, nil
}

// setInflight takes the record that the front end has kept: from a process of
// ours that died, or the new one. ("VHOST_USER_SET_INFLIGHT_FD")
func (s *session) setInflight(m *wire.Message) error {
	in, err := m.Inflight()
	if err != nil {
		return err
	}
	if err := s.checkInflight(in); err != nil {
		return err
	}
	if n := s.running(); n > 0 {
		return fmt.Errorf("%d queues run: stop them first with GET_VRING_BASE", n)
	}
	// The smaller kind, unless the guest has chosen: each queue that starts is
	// held against it again.
	packed := s.chosen && s.features&virtio.FeatureRingPacked != 0
	if need := uint64(in.Queues) * uint64(virtio.InflightSize(in.QueueSize, packed)); in.MmapSize < need {
		return fmt.Errorf("the record has %d bytes, but %d queues of %d descriptors need %d: it is not the one that GET_INFLIGHT_FD gave", in.MmapSize, in.Queues, in.QueueSize, need)
	}
	r, err := openRecord(in, m.Fds.Fd(0))
	if err != nil {
		return err
	}
	m.Fds.Take(0)
	s.record.close()
	s.record = r
	s.record.takeSize()
	// One that this process has just made says nothing of the time before.
	if on, ok := r.keptMode(); ok && !s.asked {
		s.wce, s.told, s.heir = on, true, true
	}
	s.keepMode()
	return s.applyWriteback()
}

func (s *session) checkInflight(in wire.Inflight) error {
	if in.Queues == 0 || int(in.Queues) > s.d.cfg.Queues || in.QueueSize == 0 || int(in.QueueSize) > s.d.cfg.QueueSize {
		return fmt.Errorf("a record for %d queues of %d descriptors: the device has up to %d of up to %d (--vhost-user …,queues=N,size=N)",
			in.Queues, in.QueueSize, s.d.cfg.Queues, s.d.cfg.QueueSize)
	}
	return nil
}

// recordOf is the part of the record that is of one queue, nil where there is
// none. A record that another program made may be too small for a ring: such a
// ring is served all the same.
// The record is not looked into here: its file may be gone, and the queue can
// bear that.
func (s *session) recordOf(v *vring) (queue.Record, error) {
	r := &s.record
	if r.fd < 0 {
		return queue.Record{}, nil
	}
	packed := s.features&virtio.FeatureRingPacked != 0
	part := virtio.InflightSize(r.size, packed)
	index := v.index
	switch {
	case index >= int(r.Queues) || v.num > int(r.size):
		s.d.pace.Warn(s.log, "a queue has no place in the record of requests in flight: what is in flight when this process dies is lost to the guest; start the machine with the queue size that its driver uses",
			"queue", index, "descriptors", v.num, "record_queues", r.Queues, "record_descriptors", r.size)
		return queue.Record{}, nil
	case (index+1)*part > len(r.mem):
		return queue.Record{}, fmt.Errorf("the record of requests in flight has %d bytes, the part of queue %d would end at %d", len(r.mem), index, (index+1)*part)
	}
	return queue.Record{Mem: r.mem[index*part : (index+1)*part], Size: r.size}, nil
}

// keepMode notes the cache mode for a successor. The trailer is written and
// read as a file: memory of a file that others cut short is a fault to touch.
func (s *session) keepMode() {
	switch {
	case s.told && s.wce:
		s.record.writeTrailer(2)
	case s.told:
		s.record.writeTrailer(1)
	default:
		s.record.writeTrailer(0)
	}
}

// writeTrailer writes the trailer, where there is room. If that fails a
// successor makes every write durable and has no record of large rings: slow,
// and said, but right.
func (r *record) writeTrailer(mode byte) {
	if r.fd < 0 || !r.hasTrailer() {
		return
	}
	b := make([]byte, trailerSize)
	copy(b, trailerMagic)
	b[trailerAt] = mode
	binary.LittleEndian.PutUint16(b[trailerParts:], r.size)
	_, _ = unix.Pwrite(r.fd, b, int64(r.MmapOffset+r.MmapSize)-trailerSize)
}

// readTrailer is nil where there is no trailer of ours.
func (r *record) readTrailer() []byte {
	b := make([]byte, trailerSize)
	if !r.hasTrailer() {
		return nil
	}
	n, err := unix.Pread(r.fd, b, int64(r.MmapOffset+r.MmapSize)-trailerSize)
	if err != nil || n != trailerSize || string(b[:len(trailerMagic)]) != trailerMagic {
		return nil
	}
	return b
}

// takeSize learns from the trailer for how many descriptors the parts are. What
// cannot be is not believed.
func (r *record) takeSize() {
	b := r.readTrailer()
	if b == nil {
		return
	}
	size := binary.LittleEndian.Uint16(b[trailerParts:])
	parts := uint64(r.Queues) * uint64(virtio.InflightSize(size, false))
	if size >= r.QueueSize && size <= MaxQueueSize && parts+trailerSize <= r.MmapSize {
		r.size = size
	}
}

// keptMode is the cache mode that the guest was told by a predecessor.
func (r *record) keptMode() (on, ok bool) {
	b := r.readTrailer()
	if b == nil {
		return false, false
	}
	return b[trailerAt] == 2, b[trailerAt] == 1 || b[trailerAt] == 2
}

// hasTrailer reports whether there is room for it behind all parts, whichever
// kind of ring they are for. A record that another program made may have none.
func (r *record) hasTrailer() bool {
	parts := uint64(r.Queues) * uint64(virtio.InflightSize(r.QueueSize, false))
	return r.MmapSize >= parts+trailerSize
}

// close lets go of the record. No ring uses it.
func (r *record) close() {
	if r.fd < 0 {
		return
	}
	if err := unix.Munmap(r.mapping); err != nil {
		panic("vhost-user: a mapping of ours cannot be unmapped: " + err.Error())
	}
	sys.CloseFd(r.fd)
	*r = record{fd: -1}
}
