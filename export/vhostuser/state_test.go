package vhostuser

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/block/blocktest"
	"github.com/platter-storage/platter/internal/sys"
	"github.com/platter-storage/platter/queue"
	"github.com/platter-storage/platter/virtio"
	wire "github.com/platter-storage/platter/wire/vhostuser"
)

// The handshake that QEMU 7.2 makes when it realizes a device, the guest's
// driver starts, the machine pauses, goes on, and ends. The order is the
// recorded one of docs/vhost-user.md: the status is cleared before the rings
// are asked where they stopped.
func TestHandshakeOfQEMU(t *testing.T) {
	for name, features := range map[string]uint64{"split": rings["split"], "packed": rings["packed"]} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, blocktest.EmulatorConfig{}, Config{})
			m := newVM(t, 2, 128, features|virtio.BlkFeatureConfigWCE)
			m.realize(r)
			m.driverOK()
			for i := range 3 {
				m.queues[0].write(uint64(i*8), uint64(i), 4096)
				m.queues[1].checkRead(uint64(i*8), uint64(i), 4096)
				m.pause()
				m.driverOK()
			}
			m.queues[0].checkRead(0, 0, 4096)
			m.pause()
			m.leave(r)
			if log := r.log.String(); strings.Contains(log, "level=WARN") {
				t.Errorf("QEMU's ways are complained about:\n%s", log)
			}
		})
	}
}

// realize is what QEMU sends before the guest runs.
func (m *vm) realize(r *rig) {
	m.t.Helper()
	m.dial(r.socket)
	_, err := m.Features()
	m.must(err)
	p, err := m.ProtocolFeatures()
	m.must(err)
	m.must(m.SetProtocolFeatures(p))
	_, err = m.QueueNum()
	m.must(err)
	_, err = m.MaxMemSlots()
	m.must(err)
	ch, err := m.OpenBackendChannel()
	m.must(err)
	m.t.Cleanup(func() { ch.Close() })
	m.channel = ch
	m.must(m.SetOwner())
	_, err = m.Features()
	m.must(err)
	for _, q := range m.queues {
		m.must(m.SetVringFd(wire.SetVringCall, q.index, q.call))
		m.must(m.SetVringFd(wire.SetVringErr, q.index, q.errFd))
	}
	_, err = m.GetConfig(0, 57)
	m.must(err)
}

// driverOK is what QEMU sends when the guest's driver is ready.
func (m *vm) driverOK() {
	m.t.Helper()
	m.must(m.SetFeatures(m.features))
	m.addStatus(8) // FEATURES_OK
	m.shareRecord()
	for _, q := range m.queues {
		m.must(m.SetVringFd(wire.SetVringCall, q.index, q.call))
	}
	m.must(m.SetFeatures(m.features))
	if !m.shared {
		m.shared = true
		m.must(m.AddMemReg(m.mem.Region, m.mem.fd))
	}
	for _, q := range m.queues {
		m.must(m.SetVringNum(q.index, int(q.layout.Size)))
		m.must(m.SetVringBase(q.index, q.base))
		m.must(m.SetVringAddr(q.addr))
		m.must(m.SetVringFd(wire.SetVringKick, q.index, q.kick))
	}
	for _, q := range m.queues {
		m.must(m.SetVringEnable(q.index, true))
	}
	m.addStatus(7) // ACKNOWLEDGE, DRIVER, DRIVER_OK
}

func (m *vm) addStatus(bits uint8) {
	m.t.Helper()
	st, err := m.Status()
	m.must(err)
	m.must(m.SetStatus(st | bits))
	if now, err := m.Status(); err != nil || now != st|bits {
		m.t.Fatalf("status %#x, %v; want %#x", now, err, st|bits)
	}
}

// pause is what QEMU sends when the machine stops running.
func (m *vm) pause() {
	m.t.Helper()
	m.must(m.SetStatus(0))
	for _, q := range m.queues {
		m.must(m.SetVringEnable(q.index, false))
	}
	for _, q := range m.queues {
		base, err := m.GetVringBase(q.index)
		m.must(err)
		offered := uint32(binary.LittleEndian.Uint16(q.layout.Driver[2:]))
		if q.layout.Features&virtio.FeatureRingPacked == 0 && base != offered {
			m.t.Fatalf("queue %d stopped at %#x, though %#x requests have been offered", q.index, base, offered)
		}
		q.base = base
	}
}

// RESET_DEVICE stops everything and forgets the rings; memory and the cache
// mode stay.
func TestResetDevice(t *testing.T) {
	r := newRig(t, blocktest.EmulatorConfig{}, Config{})
	m := newVM(t, 2, 64, rings["split"]|virtio.BlkFeatureConfigWCE)
	m.connect(r, allProtocol)
	m.start()
	m.must(m.SetConfig(wire.Config{Offset: virtio.BlkConfigWriteback, Data: []byte{0}}))
	stall := r.disk.Stall(block.OpWrite, 0, mib, 0)
	k := m.queues[0].offer(virtio.BlkOut, 0, 512, true)
	stall.Held()
	done := make(chan error, 1)
	go func() { done <- m.ResetDevice() }()
	select {
	case err := <-done:
		t.Fatalf("reset with a request in flight: %v", err)
	default:
	}
	stall.Release()
	m.must(<-done)
	if st := m.queues[0].status(k); st != virtio.BlkOK {
		t.Errorf("status %d of the request that was in flight", st)
	}
	if base, err := m.GetVringBase(0); err != nil || base != 0 {
		t.Errorf("base %#x, %v after a reset", base, err)
	}
	if b, err := m.GetConfig(virtio.BlkConfigWriteback, 1); err != nil || b[0] != 0 {
		t.Errorf("cache mode % x, %v after a reset", b, err)
	}
	// A new driver begins with fresh rings.
	clear(m.mem.mem[:2*ringRoom])
	m.record = -1
	for i := range m.queues {
		m.queues[i] = m.newQueue(i, 64)
	}
	m.must(m.SetFeatures(m.features))
	m.shareRecord()
	for _, q := range m.queues {
		q.set()
		m.must(m.SetVringEnable(q.index, true))
	}
	m.queues[1].write(8, 5, 4096)
	m.queues[0].checkRead(8, 5, 4096)
	m.leave(r)
}

// The guest is told that the disk has grown, but not while it is suspended.
func TestResize(t *testing.T) {
	r := newRig(t, blocktest.EmulatorConfig{}, Config{})
	m := newVM(t, 1, 64, rings["split"])
	m.realize(r)
	m.driverOK()
	r.resize(32 * mib)
	m.expectChange(32 * mib)
	if st := m.queues[0].write(32*mib/512-8, 3, 4096); st != virtio.BlkOK {
		t.Errorf("write to the new end: status %d", st)
	}
	m.pause()
	r.resize(48 * mib)
	if b, err := m.GetConfig(0, 8); err != nil || binary.LittleEndian.Uint64(b) != 48*mib/512 {
		t.Errorf("capacity % x, %v", b, err)
	}
	m.driverOK()
	m.expectChange(48 * mib)
	m.pause()
	m.leave(r)
}

func (r *rig) resize(n int64) {
	r.t.Helper()
	c, err := r.in.NewChild("resize", block.RoleRoot, block.PermRead|block.PermResize, block.PermAll)
	if err != nil {
		r.t.Fatal(err)
	}
	defer c.Close()
	if err := blocktest.NewClient(r.t, c).Truncate(n); err != nil {
		r.t.Fatal(err)
	}
}

// expectChange waits for the message that the configuration has changed.
func (m *vm) expectChange(size uint64) {
	m.t.Helper()
	var msg wire.Message
	if err := m.channel.Read(&msg); err != nil || wire.BackendRequest(msg.Request) != wire.BackendConfigChange || len(msg.Payload) != 0 {
		m.t.Fatalf("%+v, %v: want a change of the configuration", msg, err)
	}
	if b, err := m.GetConfig(0, 8); err != nil || binary.LittleEndian.Uint64(b) != size/512 {
		m.t.Errorf("capacity % x, %v; want %d sectors", b, err, size/512)
	}
}

// writes counts the writes that reached the disk, and how many of them were to
// be durable by themselves.
func (r *rig) writes() (n, fua int) {
	for _, c := range r.disk.Calls() {
		if c.Op == block.OpWrite {
			n++
			if c.Flags&block.FUA != 0 {
				fua++
			}
		}
	}
	return n, fua
}

// The cache mode decides whether writes are durable by themselves; the guest
// switches it while it runs, and what it wrote before is flushed then.
func TestCacheMode(t *testing.T) {
	disk := blocktest.EmulatorConfig{WriteFlags: block.FUA}
	for _, c := range []struct {
		name     string
		features uint64 // of the guest
		drop     uint64
		durable  bool
		told     uint8 // what the guest reads
		fua      bool  // writes are durable at first
	}{
		{"writeback", virtio.BlkFeatureConfigWCE, 0, false, 1, false},
		{"no cache below", virtio.BlkFeatureConfigWCE, 0, true, 0, true},
		{"a guest that flushes and knows no modes", 0, 0, false, 1, false},
		{"a guest that does not flush", 0, virtio.BlkFeatureFlush, false, 1, true},
		{"a guest that does not flush but knows modes", virtio.BlkFeatureConfigWCE, virtio.BlkFeatureFlush, false, 1, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, disk, Config{Durable: c.durable})
			r.disk.KeepCalls(true)
			m := newVM(t, 1, 64, c.features)
			m.features &^= c.drop
			m.connect(r, allProtocol)
			if b, err := m.GetConfig(virtio.BlkConfigWriteback, 1); err != nil || b[0] != c.told {
				t.Fatalf("cache mode % x, %v; want %d", b, err, c.told)
			}
			m.start()
			m.queues[0].write(0, 1, 512)
			if n, fua := r.writes(); n != 1 || fua == 1 != c.fua {
				t.Errorf("%d writes, %d of them durable; want durable: %v", n, fua, c.fua)
			}
			m.leave(r)
		})
	}
}

func TestCacheModeSwitched(t *testing.T) {
	r := newRig(t, blocktest.EmulatorConfig{WriteFlags: block.FUA}, Config{})
	r.disk.KeepCalls(true)
	m := newVM(t, 1, 64, virtio.BlkFeatureConfigWCE)
	m.connect(r, allProtocol)
	m.start()
	q := m.queues[0]
	q.write(0, 1, 512)
	setMode := func(v byte) error {
		return m.SetConfig(wire.Config{Offset: virtio.BlkConfigWriteback, Data: []byte{v}})
	}
	m.must(setMode(0))
	if got := blocktest.Pattern(make([]byte, 512), 1); !bytes.Equal(r.disk.Durable()[:512], got) {
		t.Error("what was written before the switch to writethrough is not durable")
	}
	if b, _ := m.GetConfig(virtio.BlkConfigWriteback, 1); b[0] != 0 {
		t.Errorf("cache mode %d after the switch", b[0])
	}
	q.write(8, 2, 512)
	if got := blocktest.Pattern(make([]byte, 512), 2); !bytes.Equal(r.disk.Durable()[8*512:9*512], got) {
		t.Error("a write in writethrough is not durable")
	}
	m.must(setMode(1))
	r.disk.ForgetCalls()
	q.write(16, 3, 512)
	if n, fua := r.writes(); n != 1 || fua != 0 {
		t.Errorf("%d writes, %d durable after the switch back", n, fua)
	}
	var nack *wire.NackError
	if err := setMode(2); !errors.As(err, &nack) {
		t.Errorf("mode 2: %v", err)
	}
	for _, c := range []wire.Config{
		{Offset: 0, Data: make([]byte, 8)}, {Offset: 32, Data: make([]byte, 2)}, {Offset: 31, Data: make([]byte, 1)}, {Offset: 32, Flags: 7, Data: []byte{1}},
	} {
		if err := m.SetConfig(c); !errors.As(err, &nack) {
			t.Errorf("writing %d bytes at %d, flags %d: %v", len(c.Data), c.Offset, c.Flags, err)
		}
	}
	// A migration brings the whole space.
	whole, err := m.GetConfig(0, 60)
	m.must(err)
	whole[virtio.BlkConfigWriteback] = 0
	m.must(m.SetConfig(wire.Config{Flags: wire.ConfigMigration, Data: whole}))
	if b, _ := m.GetConfig(virtio.BlkConfigWriteback, 1); b[0] != 0 {
		t.Errorf("cache mode %d after a migration that brought 0", b[0])
	}
}

// A front end that brings its own memory of the cache mode (it does not read
// it) gets durable writes, unless the record says what the guest was told.
func TestCacheModeThatIsNotKnown(t *testing.T) {
	for _, told := range []byte{0, 1} {
		r := newRig(t, blocktest.EmulatorConfig{WriteFlags: block.FUA}, Config{})
		r.disk.KeepCalls(true)
		m := newVM(t, 1, 64, virtio.BlkFeatureConfigWCE)
		m.connect(r, allProtocol)
		m.start()
		m.must(m.SetConfig(wire.Config{Offset: virtio.BlkConfigWriteback, Data: []byte{told}}))
		m.queues[0].write(0, 1, 512)
		m.leave(r)
		r.disk.ForgetCalls()
		m.reconnect(r, allProtocol)
		m.queues[0].write(8, 2, 512)
		if n, fua := r.writes(); n != 1 || fua == 0 != (told == 1) {
			t.Errorf("told %d, with a record: %d writes, %d durable", told, n, fua)
		}
		m.leave(r)
		r.disk.ForgetCalls()
		m.reconnect(r, allProtocol&^wire.ProtocolInflightShmfd)
		m.queues[0].write(16, 3, 512)
		if n, fua := r.writes(); n != 1 || fua != 1 {
			t.Errorf("told %d, without a record: %d writes, %d durable", told, n, fua)
		}
		m.leave(r)
	}
}

// A guest that comes by migration was told of the cache mode elsewhere: its
// writes are durable until it has flushed, or said what it wants.
func TestCacheModeOfAMigratedGuest(t *testing.T) {
	for name, features := range map[string]uint64{"split": 0, "packed": virtio.FeatureRingPacked} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, blocktest.EmulatorConfig{WriteFlags: block.FUA}, Config{})
			r.disk.KeepCalls(true)
			m := newVM(t, 1, 64, features|virtio.BlkFeatureConfigWCE)
			m.realize(r)
			m.driverOK()
			q := m.queues[0]
			q.do(virtio.BlkFlush, 0, 0, false)
			q.write(0, 1, 512)
			m.pause()
			m.driverOK() // a pause is no migration
			q.write(0, 1, 512)
			if n, fua := r.writes(); n != 2 || fua != 0 {
				t.Errorf("%d writes, %d durable before the migration", n, fua)
			}
			m.pause()
			m.leave(r)
			m.shared, m.record = false, -1 // the record stays behind
			r.disk.ForgetCalls()
			m.realize(r)
			m.driverOK()
			r.saw("a guest goes on here that began elsewhere")
			q.write(8, 2, 512)
			if n, fua := r.writes(); n != 1 || fua != 1 {
				t.Errorf("%d writes, %d durable after the migration", n, fua)
			}
			m.pause()
			m.leave(r)
			m.shared = false
			m.reconnect(r, allProtocol) // the doubt goes with the record
			r.disk.ForgetCalls()
			q.write(8, 2, 512)
			if n, fua := r.writes(); n != 1 || fua != 1 {
				t.Errorf("%d writes, %d durable after a restart", n, fua)
			}
			q.do(virtio.BlkFlush, 0, 0, false)
			for end := time.Now().Add(patience); !r.Status().Writeback; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("a guest that flushes is still in doubt")
				}
			}
			r.disk.ForgetCalls()
			q.write(16, 3, 512)
			if n, fua := r.writes(); n != 1 || fua != 0 {
				t.Errorf("%d writes, %d durable after a flush", n, fua)
			}
		})
	}
}

// reconnect is a front end that goes on after its back end was gone: it asks
// nothing that it knows.
func (m *vm) reconnect(r *rig, protocol wire.Protocol) {
	m.t.Helper()
	m.dial(r.socket)
	p, err := m.ProtocolFeatures()
	m.must(err)
	m.must(m.SetProtocolFeatures(p & protocol))
	for _, q := range m.queues { // what the guest has seen used is where to go on
		if q.layout.Features&virtio.FeatureRingPacked == 0 {
			q.base = uint32(binary.LittleEndian.Uint16(q.layout.Device[2:]))
		}
	}
	m.start()
}

// A ring that the guest damages stops, the device needs a reset, and the front
// end hears of it; other queues go on.
func TestBrokenRing(t *testing.T) {
	r := newRig(t, blocktest.EmulatorConfig{}, Config{})
	m := newVM(t, 2, 64, 0)
	m.realize(r)
	m.driverOK()
	binary.LittleEndian.PutUint16(m.queues[0].layout.Driver[2:], 1000)
	signal(m.queues[0].kick)
	m.t.Log("waiting for the error descriptor")
	p := []unix.PollFd{{Fd: int32(m.queues[0].errFd), Events: unix.POLLIN}}
	if n, err := unix.Poll(p, int(patience.Milliseconds())); n != 1 {
		t.Fatalf("the error descriptor was not signalled: %v", err)
	}
	if st, err := m.Status(); err != nil || st&statusNeedsReset == 0 {
		t.Errorf("status %#x, %v", st, err)
	}
	if s := r.Status(); len(s.Queues) != 2 || s.Queues[0].State != queue.Broken || s.Queues[1].State == queue.Broken {
		t.Errorf("%+v", s.Queues)
	}
	m.queues[1].write(0, 1, 512)
	m.queues[1].checkRead(0, 1, 512)
	m.leave(r)
}

// The channel for our requests has to be a unix stream socket.
func TestBackendChannelThatIsNone(t *testing.T) {
	r := newRig(t, blocktest.EmulatorConfig{}, Config{})
	m := newVM(t, 1, 64, 0)
	m.connect(r, allProtocol)
	b := make([]byte, wire.HeaderSize)
	wire.PutHeader(b, uint32(wire.SetBackendReqFd), wire.Version|wire.FlagNeedReply, 0)
	if _, err := sys.SendFds(m.Conn().Socket(), b, []int{m.mem.fd}); err != nil {
		t.Fatal(err)
	}
	var answer wire.Message
	if err := m.Conn().Read(&answer); err != nil {
		t.Fatal(err)
	}
	if v, err := answer.U64(); err != nil || v == 0 {
		t.Errorf("answer %d, %v", v, err)
	}
	r.saw("the descriptor is no stream socket")
}

// Front ends made with the Rust crate vhost (Cloud Hypervisor, Firecracker) ask
// for an acknowledgement with every message, also those that have an answer of
// their own: each is answered once. They send sizes first, and the table of
// memory whole; some pause by disabling the rings.
func TestHandshakeOfRustFrontEnds(t *testing.T) {
	r := newRig(t, blocktest.EmulatorConfig{}, Config{})
	m := newVM(t, 2, 128, rings["split"])
	m.dial(r.socket)
	var answer wire.Message
	ask := func(request wire.Request, payload []byte, want int, fds ...int) {
		t.Helper()
		m.send(request, wire.Version|wire.FlagNeedReply, payload, fds...)
		if err := m.Conn().Read(&answer); err != nil || answer.Request != request || len(answer.Payload) != want {
			t.Fatalf("%v: answer %v of %d bytes, %v; want %d bytes", request, answer.Request, len(answer.Payload), err, want)
		}
		if want != 8 || request.HasReply() {
			return
		}
		if v, err := answer.U64(); v != 0 || err != nil {
			t.Fatalf("%v: answer %d, %v", request, v, err)
		}
	}
	m.send(wire.SetOwner, wire.Version, nil)
	m.send(wire.GetFeatures, wire.Version, nil)
	m.must(m.Conn().Read(&answer))
	m.send(wire.SetProtocolFeatures, wire.Version, u64(uint64(protocolOffered&^wire.ProtocolStatus)))
	ask(wire.GetQueueNum, nil, 8)
	ask(wire.GetConfig, wire.Config{Data: make([]byte, 60)}.Append(nil), 72)
	ask(wire.SetFeatures, u64(m.features), 8)
	ask(wire.SetMemTable, wire.AppendMemTable(nil, []wire.Region{m.mem.Region}), 8, m.mem.fd)
	for i := range m.queues {
		ask(wire.SetVringNum, state(uint32(i), 128), 8)
	}
	ask(wire.GetInflightFd, wire.Inflight{Queues: 2, QueueSize: 128}.Append(nil, nil), 24)
	in, err := answer.Inflight()
	m.must(err)
	m.inflight, m.record = in, answer.Fds.Take(0)
	t.Cleanup(func() { unix.Close(m.record) })
	ask(wire.SetInflightFd, m.inflight.Append(nil, nil), 8, m.record)
	for i, q := range m.queues {
		ask(wire.SetVringAddr, q.addr.Append(nil), 8)
		ask(wire.SetVringBase, state(uint32(i), 0), 8)
		ask(wire.SetVringCall, u64(uint64(i)), 8, q.call)
		ask(wire.SetVringKick, u64(uint64(i)), 8, q.kick)
	}
	for i := range m.queues {
		ask(wire.SetVringEnable, state(uint32(i), 1), 8)
	}
	m.queues[0].write(0, 1, 4096)
	m.queues[1].checkRead(0, 1, 4096)
	stall := r.disk.Stall(block.OpWrite, 0, mib, 1)
	k := m.queues[0].offer(virtio.BlkOut, 0, 512, true)
	stall.Held()
	time.AfterFunc(20*time.Millisecond, stall.Release)
	ask(wire.SetVringEnable, state(0, 0), 8) // pause
	if st := m.queues[0].status(k); st != virtio.BlkOK {
		t.Errorf("status %d of a request after its ring was disabled: it would still come", st)
	}
	k2 := m.queues[0].offer(virtio.BlkOut, 0, 512, true)
	time.Sleep(20 * time.Millisecond)
	if st := m.queues[0].status(k2); st != 0xee {
		t.Errorf("a disabled ring is served: status %d", st)
	}
	ask(wire.SetVringEnable, state(0, 1), 8)
	m.queues[0].next()
	m.queues[0].next()
	if log := r.log.String(); strings.Contains(log, "level=WARN") {
		t.Errorf("log:\n%s", log)
	}
}

// A ring that starts calls the guest, which may have been left waiting by a
// process that died between publishing and calling.
func TestStartCallsTheGuest(t *testing.T) {
	r := newRig(t, blocktest.EmulatorConfig{}, Config{})
	m := newVM(t, 1, 64, rings["split"])
	m.realize(r)
	called := func() bool {
		p := []unix.PollFd{{Fd: int32(m.queues[0].call), Events: unix.POLLIN}}
		n, err := unix.Poll(p, 0)
		return n == 1 && err == nil
	}
	if called() {
		t.Error("called before there is a ring")
	}
	m.driverOK()
	if !called() {
		t.Error("not called when the ring started")
	}
	// And nobody takes a call away from the guest.
	drain(m.queues[0].call)
	if !called() {
		t.Error("the call was taken away")
	}
}
