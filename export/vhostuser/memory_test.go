package vhostuser

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/block/blocktest"
	"github.com/platter-storage/platter/queue"
	"github.com/platter-storage/platter/virtio"
	wire "github.com/platter-storage/platter/wire/vhostuser"
)

// mapped counts the mappings of this process that are of f.
func mapped(t *testing.T, m memory) int {
	t.Helper()
	return held(t).maps
}

// Memory that is taken away is unmapped, and the front end told, only when
// nothing touches it any more: not while the disk sits on a request into it, in
// either lane.
func TestMemoryStaysWhileRequestsTouchIt(t *testing.T) {
	for _, fast := range []bool{true, false} {
		for name, change := range map[string]func(m *vm, extra memory) error{
			"remove": func(m *vm, extra memory) error { return m.RemMemReg(extra.Region) },
			"table":  func(m *vm, extra memory) error { return m.SetMemTable([]wire.Region{m.mem.Region}, []int{m.mem.fd}) },
		} {
			t.Run(name, func(t *testing.T) {
				r := newRig(t, blocktest.EmulatorConfig{Fast: fast}, Config{})
				m := newVM(t, 2, 64, 0)
				m.connect(r, allProtocol)
				m.start()
				extra := newMemory(t, guestBase+memSize, userBase+2*memSize, mib)
				m.must(m.AddMemReg(extra.Region, extra.fd))
				stall := r.disk.Stall(block.OpRead, 0, 8*mib, 1)
				q := m.queues[0]
				id, ok := q.driver.Add([]virtio.Seg{{Addr: guestBase + uint64(q.slotAt(0)) + slotData, Len: 16}},
					[]virtio.Seg{{Addr: guestBase + memSize, Len: 4096}, {Addr: guestBase + uint64(q.slotAt(0)) + slotData + 16, Len: 1}}, false)
				if !ok {
					t.Fatal("no room in the ring")
				}
				q.slotOf[id], q.busy[0] = 0, true
				q.driver.Kick()
				signal(q.kick)
				stall.Held()
				before := mapped(t, extra)
				done := make(chan error, 1)
				go func() { done <- change(m, extra) }()
				select {
				case err := <-done:
					t.Fatalf("answered while a request touches the memory: %v", err)
				case <-time.After(50 * time.Millisecond):
				}
				if n := mapped(t, extra); n < before {
					t.Fatal("unmapped while a request touches the memory")
				}
				stall.Release()
				m.must(<-done)
				if k := q.next(); q.status(k) != virtio.BlkOK {
					t.Errorf("status %d", q.status(k))
				}
				if n := mapped(t, extra); n != before-1 {
					t.Errorf("%d mappings before, %d after: want one less", before, n)
				}
				// What is not there any more is not touched.
				id, _ = q.driver.Add([]virtio.Seg{{Addr: guestBase + uint64(q.slotAt(0)) + slotData, Len: 16}},
					[]virtio.Seg{{Addr: guestBase + memSize, Len: 4096}, {Addr: guestBase + uint64(q.slotAt(0)) + slotData + 16, Len: 1}}, false)
				q.slotOf[id] = 0
				q.driver.Kick()
				signal(q.kick)
				if k := q.next(); q.status(k) != virtio.BlkIOErr {
					t.Errorf("a request into memory that is gone: status %d", q.status(k))
				}
				m.queues[1].write(0, 1, 512)
				m.queues[0].checkRead(0, 1, 512)
			})
		}
	}
}

// Memory that is added waits for no disk: the machine's main loop waits for the
// answer.
func TestMemoryIsAddedOverAStalledDisk(t *testing.T) {
	for _, fast := range []bool{true, false} {
		t.Run(fmt.Sprintf("fast=%v", fast), func(t *testing.T) {
			r := newRig(t, blocktest.EmulatorConfig{Fast: fast}, Config{})
			m := newVM(t, 2, 64, rings["packed"])
			m.connect(r, allProtocol)
			m.start()
			q := m.queues[0]
			stall := r.disk.Stall(block.OpWrite, 0, 8*mib, 1)
			k := q.offer(virtio.BlkOut, 0, 4096, true)
			stall.Held()
			for i := range uint64(3) {
				extra := newMemory(t, guestBase+memSize+i*mib, userBase+(2+i)*memSize, mib)
				m.must(m.AddMemReg(extra.Region, extra.fd))
			}
			if _, err := m.Features(); err != nil { // the status is published behind the answer
				t.Fatal(err)
			}
			if s := r.Status(); s.Regions != 4 || s.Queues[0].InFlight != 1 {
				t.Errorf("%+v", s)
			}
			m.queues[1].write(64, 1, 512)
			stall.Release()
			if got := q.next(); got != k || q.status(k) != virtio.BlkOK {
				t.Errorf("request %d, status %d", got, q.status(k))
			}
			m.queues[1].checkRead(64, 1, 512)
			m.leave(r)
		})
	}
}

// A change of memory that would take a running ring away changes nothing.
func TestMemoryOfARunningRing(t *testing.T) {
	r := newRig(t, blocktest.EmulatorConfig{}, Config{})
	m := newVM(t, 1, 64, 0)
	m.connect(r, allProtocol)
	m.start()
	other := newMemory(t, 0, 4096, mib)
	var nack *wire.NackError
	if err := m.RemMemReg(m.mem.Region); !errors.As(err, &nack) {
		t.Errorf("removing it: %v", err)
	}
	if err := m.SetMemTable([]wire.Region{other.Region}, []int{other.fd}); !errors.As(err, &nack) {
		t.Errorf("another table: %v", err)
	}
	r.saw("queue 0, which runs, would lose its ring")
	m.queues[0].write(0, 1, 512)
	m.queues[0].checkRead(0, 1, 512)
	_, err := m.GetVringBase(0)
	m.must(err)
	m.must(m.RemMemReg(m.mem.Region))
}

// As many regions as there can be, and one more.
func TestMemorySlots(t *testing.T) {
	r := newRig(t, blocktest.EmulatorConfig{}, Config{})
	m := newVM(t, 1, 64, 0)
	m.connect(r, allProtocol)
	if n, err := m.MaxMemSlots(); err != nil || n != wire.MaxMemSlots {
		t.Errorf("%d slots, %v", n, err)
	}
	m.start()
	page := newMemory(t, 0, 0, 4096)
	add := func(i int) error {
		return m.AddMemReg(wire.Region{GuestAddr: uint64(i) << 20, Size: 4096, UserAddr: uint64(i+1) << 20}, page.fd)
	}
	for i := range wire.MaxMemSlots - 1 {
		m.must(add(i))
	}
	var nack *wire.NackError
	if err := add(wire.MaxMemSlots); !errors.As(err, &nack) {
		t.Errorf("one region too many: %v", err)
	}
	r.saw("there are 509 regions already")
	m.queues[0].write(0, 1, 512)
	if s := r.Status(); s.Regions != wire.MaxMemSlots {
		t.Errorf("%d regions", s.Regions)
	}
	m.leave(r)
}

// Regions begin anywhere in their files, and a file cut short under its mapping
// costs its own machine the requests that lie there, nobody his life.
func TestTruncatedMemory(t *testing.T) {
	for name, features := range map[string]uint64{"split": rings["split"], "packed": rings["packed"]} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, blocktest.EmulatorConfig{}, Config{})
			other := newRig(t, blocktest.EmulatorConfig{}, Config{})
			m := newVM(t, 2, 64, features)
			m.realize(r)
			m.driverOK()
			extra := newMemory(t, guestBase+memSize, userBase+2*memSize, 2*mib)
			extra.Size, extra.MmapOffset = mib, mib
			m.must(m.AddMemReg(extra.Region, extra.fd))
			neighbour := newVM(t, 1, 64, 0)
			neighbour.connect(other, allProtocol)
			neighbour.start()
			if err := unix.Ftruncate(extra.fd, mib); err != nil {
				t.Fatal(err)
			}
			q := m.queues[0]
			at := guestBase + uint64(q.slotAt(0)) + slotData
			for _, in := range []bool{true, false} {
				q.offerSlot(1, virtio.BlkFlush, 0, 0, false) // a header to copy
				q.next()
				h := q.vm.mem.mem[q.slotAt(0)+slotData:]
				clear(h[:16])
				h[16] = 0xee
				rd, wr := []virtio.Seg{{Addr: at, Len: 16}}, []virtio.Seg{{Addr: guestBase + memSize, Len: 4096}, {Addr: at + 16, Len: 1}}
				if !in {
					h[0] = byte(virtio.BlkOut)
					rd, wr = append(rd, wr[0]), wr[1:]
				}
				id, _ := q.driver.Add(rd, wr, false)
				q.slotOf[id] = 0
				q.driver.Kick()
				signal(q.kick)
				if k := q.next(); q.status(k) != virtio.BlkIOErr {
					t.Errorf("into memory that is gone: status %d", q.status(k))
				}
			}
			m.queues[1].write(0, 1, 512)
			neighbour.queues[0].write(0, 1, 512)
			// The ring itself: the queue stops.
			if err := unix.Ftruncate(m.mem.fd, 0); err != nil {
				t.Fatal(err)
			}
			signal(q.kick)
			p := []unix.PollFd{{Fd: int32(q.errFd), Events: unix.POLLIN}}
			if n, err := unix.Poll(p, int(patience.Milliseconds())); n != 1 {
				t.Fatalf("the error descriptor was not signalled: %v", err)
			}
			neighbour.queues[0].checkRead(0, 1, 512)
			m.leave(r)
			neighbour.leave(other)
			if err := unix.Ftruncate(m.mem.fd, memSize); err != nil { // for the test's own cleanup
				t.Fatal(err)
			}
		})
	}
}

// A file that its owner may only read is no guest's memory.
func TestMemoryThatCannotBeWritten(t *testing.T) {
	r := newRig(t, blocktest.EmulatorConfig{}, Config{})
	m := newVM(t, 1, 64, 0)
	m.connect(r, allProtocol)
	sealed, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", m.mem.fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(sealed)
	var nack *wire.NackError
	if err := m.AddMemReg(m.mem.Region, sealed); !errors.As(err, &nack) {
		t.Errorf("%v", err)
	}
	r.saw("mapping 33554432 bytes of its file")
	p := make([]int, 2)
	if err := unix.Pipe(p); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(p[0])
	defer unix.Close(p[1])
	if err := m.AddMemReg(m.mem.Region, p[0]); !errors.As(err, &nack) {
		t.Errorf("a pipe: %v", err)
	}
	r.saw("no file in memory")
}

// The log of a migration: pages that requests have written, and pages of the
// rings, are marked before the guest sees the request done.
func TestDirtyLog(t *testing.T) {
	for name, features := range map[string]uint64{"split": rings["split"], "packed": rings["packed"]} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, blocktest.EmulatorConfig{}, Config{})
			m := newVM(t, 1, 64, features)
			m.connect(r, allProtocol)
			m.start()
			q := m.queues[0]
			bits := newMemory(t, 0, 0, (guestBase+memSize)/wire.LogPage/8)
			m.must(m.SetLogBase(wire.Log{Size: bits.Size}, bits.fd))
			q.do(virtio.BlkIn, 0, 8192, false)
			if got := dirtyPages(bits); len(got) != 0 {
				t.Errorf("pages %v are marked though nobody asked", got)
			}
			// As QEMU begins a migration.
			m.must(m.SetFeatures(m.features | wire.FeatureLogAll))
			q.addr.Flags = wire.VringLog
			m.must(m.SetVringAddr(q.addr))
			page := func(off int) uint64 { return uint64(guestBase+off) / wire.LogPage }
			q.do(virtio.BlkIn, 0, 8192, false)
			got := dirtyPages(bits)
			used := page(int(q.addr.Used - userBase))
			for _, p := range []uint64{page(q.slotAt(0)), page(q.slotAt(0) + 4096), page(q.slotAt(0) + slotData)} {
				if !got[p] {
					t.Errorf("page %#x was written and is not marked", p)
				}
			}
			if features&virtio.FeatureRingPacked != 0 {
				used = page(int(q.addr.Desc - userBase))
			}
			if !got[used] {
				t.Errorf("the ring's page %#x was written and is not marked", used)
			}
			if got[page(q.slotAt(2))] || len(got) > 6 {
				t.Errorf("pages %v are marked", got)
			}
			clear(bits.mem)
			q.write(0, 1, 4096)
			if got := dirtyPages(bits); got[page(q.slotAt(0))] || !got[page(q.slotAt(0)+slotData)] {
				t.Errorf("a write to the disk marks the pages %v", got)
			}
			// And ends it.
			m.must(m.SetFeatures(m.features))
			clear(bits.mem)
			q.do(virtio.BlkIn, 0, 4096, false)
			if got := dirtyPages(bits); len(got) != 0 {
				t.Errorf("pages %v are marked after the end", got)
			}
			small := newMemory(t, 0, 0, 4096)
			var nack *wire.NackError
			if err := m.SetLogBase(wire.Log{Size: 4096}, small.fd); err == nil || errors.As(err, &nack) {
				t.Errorf("a log that does not cover memory: %v", err)
			}
			r.saw("does not cover guest memory")
		})
	}
}

// A log whose file is cut short costs the queue, not the server.
func TestTruncatedLog(t *testing.T) {
	r := newRig(t, blocktest.EmulatorConfig{}, Config{})
	m := newVM(t, 1, 64, rings["split"])
	m.realize(r)
	m.driverOK()
	bits := newMemory(t, 0, 0, (guestBase+memSize)/wire.LogPage/8)
	m.must(m.SetLogBase(wire.Log{Size: bits.Size}, bits.fd))
	m.must(m.SetFeatures(m.features | wire.FeatureLogAll))
	if err := unix.Ftruncate(bits.fd, 0); err != nil {
		t.Fatal(err)
	}
	q := m.queues[0]
	q.offer(virtio.BlkIn, 0, 4096, false)
	for end := time.Now().Add(patience); r.Status().Queues[0].InFlight > 0 || r.Status().Queues[0].Taken == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%+v", r.Status())
		}
	}
	m.leave(r)
	n := newVM(t, 1, 64, 0)
	n.connect(r, allProtocol)
	n.start()
	n.queues[0].write(0, 1, 512)
}

// A record of another program's making can be cut short: that costs the queue.
func TestTruncatedRecord(t *testing.T) {
	for name, features := range map[string]uint64{"split": rings["split"], "packed": rings["packed"]} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, blocktest.EmulatorConfig{}, Config{})
			m := newVM(t, 1, 64, features)
			m.realize(r)
			rec := newMemory(t, 0, 0, 64<<10)
			m.inflight, m.record = wire.Inflight{MmapSize: rec.Size, Queues: 1, QueueSize: 64}, rec.fd
			m.driverOK()
			q := m.queues[0]
			q.write(0, 1, 512)
			stall := r.disk.Stall(block.OpWrite, 0, mib, 1)
			q.offer(virtio.BlkOut, 0, 512, true)
			stall.Held()
			if err := unix.Ftruncate(rec.fd, 0); err != nil {
				t.Fatal(err)
			}
			stall.Release()
			for end := time.Now().Add(patience); r.Status().Queues[0].State != queue.Broken; time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("%+v", r.Status())
				}
			}
			m.leave(r)
			if err := unix.Ftruncate(rec.fd, 64<<10); err != nil {
				t.Fatal(err)
			}
			m.reconnect(r, allProtocol) // the file is zero: nothing is on record
		})
	}
}

// A record whose file is cut short before a ring starts is a ring that cannot
// start: the front end is told, other machines notice nothing.
func TestRecordCutBeforeTheRingStarts(t *testing.T) {
	for name, features := range map[string]uint64{"split": rings["split"], "packed": rings["packed"]} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, blocktest.EmulatorConfig{}, Config{})
			m := newVM(t, 1, 32, features)
			m.connect(r, allProtocol)
			m.must(m.SetFeatures(m.features))
			m.shareMemory()
			rec := newMemory(t, 0, 0, 64<<10)
			m.must(m.SetInflight(wire.Inflight{MmapSize: rec.Size, Queues: 1, QueueSize: 32}, rec.fd))
			if err := unix.Ftruncate(rec.fd, 0); err != nil {
				t.Fatal(err)
			}
			q := m.queues[0]
			m.must(m.SetVringNum(0, 32))
			m.must(m.SetVringBase(0, q.base))
			m.must(m.SetVringAddr(q.addr))
			var nack *wire.NackError
			if err := m.SetVringFd(wire.SetVringKick, 0, q.kick); !errors.As(err, &nack) {
				t.Fatalf("a ring without the record that it was promised: %v", err)
			}
			r.saw("queue 0 cannot start")
			r.saw("of its records or of its dirty log is gone")
			if err := unix.Ftruncate(rec.fd, 64<<10); err != nil {
				t.Fatal(err)
			}
			m.must(m.SetVringNum(0, 32)) // there again, the record is that of nothing
			m.must(m.SetVringEnable(0, true))
			q.write(0, 1, 512)
			q.checkRead(0, 1, 512)
		})
	}
}

func dirtyPages(bits memory) map[uint64]bool {
	got := map[uint64]bool{}
	for i, b := range bits.mem {
		for j := range 8 {
			if b>>j&1 != 0 {
				got[uint64(i*8+j)] = true
			}
		}
	}
	return got
}

// The record of requests in flight cannot be made shorter by whoever has it,
// and has the size that the rings need.
func TestRecord(t *testing.T) {
	for name, features := range map[string]uint64{"split": rings["split"], "packed": rings["packed"]} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, blocktest.EmulatorConfig{}, Config{})
			m := newVM(t, 2, 64, features)
			m.connect(r, allProtocol)
			m.must(m.SetFeatures(m.features))
			m.shareRecord()
			need := 2*virtio.InflightSize(64, features&virtio.FeatureRingPacked != 0) + trailerSize
			if int(m.inflight.MmapSize) < need || m.inflight.Queues != 2 || m.inflight.QueueSize != 64 {
				t.Errorf("%+v; want %d bytes at least", m.inflight, need)
			}
			if err := unix.Ftruncate(m.record, 0); err == nil {
				t.Error("the record could be cut short")
			}
			if !r.Status().Recorded {
				t.Error("there is no record")
			}
			var nack *wire.NackError
			short := m.inflight
			short.MmapSize = uint64(virtio.InflightSize(64, false))
			if err := m.SetInflight(short, m.record); !errors.As(err, &nack) {
				t.Errorf("a record that has no room for its queues: %v", err)
			}
			m.shareMemory()
			m.queues[0].set()
			if err := m.SetInflight(m.inflight, m.record); !errors.As(err, &nack) {
				t.Errorf("another record for a ring that runs: %v", err)
			}
		})
	}
}

// A record that another program made may have no place for a ring: that is
// served without.
func TestRecordOfAnotherSize(t *testing.T) {
	r := newRig(t, blocktest.EmulatorConfig{}, Config{})
	m := newVM(t, 2, 64, 0)
	m.connect(r, allProtocol)
	m.must(m.SetFeatures(m.features))
	fd, err := unix.MemfdCreate("record", unix.MFD_CLOEXEC)
	m.must(err)
	defer unix.Close(fd)
	m.must(unix.Ftruncate(fd, 4096))
	m.must(m.SetInflight(wire.Inflight{MmapSize: 4096, Queues: 1, QueueSize: 32}, fd))
	m.shareMemory()
	for i, want := range []string{"queue=0 descriptors=64 record_queues=1 record_descriptors=32", "queue=1 descriptors=64"} {
		q := m.queues[i]
		q.set()
		m.must(m.SetVringEnable(i, true))
		r.saw("a queue has no place in the record")
		r.saw(want)
		q.write(0, 1, 512)
	}
}

// QEMU asks for a record by its own queue-size and lets guests make larger
// rings: they have their place, and a successor finds it.
func TestRecordForLargerRings(t *testing.T) {
	for name, features := range rings {
		t.Run(name, func(t *testing.T) {
			first := newRig(t, blocktest.EmulatorConfig{}, Config{InOrder: features&virtio.FeatureInOrder != 0})
			m := newVM(t, 1, 64, features)
			m.connect(first, allProtocol)
			m.must(m.SetFeatures(m.features))
			in, fd, err := m.GetInflight(1, 16)
			m.must(err)
			defer unix.Close(fd)
			if in.QueueSize != 16 || in.MmapSize < uint64(virtio.InflightSize(64, false))+trailerSize {
				t.Errorf("the record is %+v", in)
			}
			r := openedRecord(t, in, fd)
			if r.takeSize(); r.size != DefaultQueueSize {
				t.Errorf("a successor takes it for one of %d descriptors", r.size)
			}
			for _, lie := range []uint16{15, MaxQueueSize + 1, 65535} {
				r.size = lie
				r.writeTrailer(0)
				r.size = 16
				if r.takeSize(); r.size != 16 {
					t.Errorf("%d descriptors are believed", lie)
				}
			}
			r.size = DefaultQueueSize
			r.writeTrailer(0)
			m.must(m.SetInflight(in, fd))
			m.shareMemory()
			m.queues[0].set()
			m.must(m.SetVringEnable(0, true))
			m.queues[0].write(0, 1, 512)
			if log := first.log.String(); strings.Contains(log, "no place in the record") {
				t.Errorf("the ring has no place:\n%s", log)
			}
		})
	}
}

// openedRecord is the record as another process would see it.
func openedRecord(t *testing.T, in wire.Inflight, fd int) *record {
	t.Helper()
	own, err := unix.Dup(fd)
	if err != nil {
		t.Fatal(err)
	}
	r, err := openRecord(in, own)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.close)
	return &r
}
