package vhostuser

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/block/blocktest"
	"github.com/platter-storage/platter/internal/sys"
	"github.com/platter-storage/platter/virtio"
	wire "github.com/platter-storage/platter/wire/vhostuser"
)

// send sends a message as it stands.
func (m *vm) send(request wire.Request, fl wire.Flags, payload []byte, fds ...int) {
	m.t.Helper()
	b := make([]byte, wire.HeaderSize)
	wire.PutHeader(b, uint32(request), fl, len(payload))
	if _, err := sys.SendFds(m.Conn().Socket(), append(b, payload...), fds); err != nil {
		m.t.Fatal(err)
	}
}

// refused expects the answer that says so.
func (m *vm) refused() error {
	var a wire.Message
	if err := m.Conn().Read(&a); err != nil {
		return fmt.Errorf("no answer: %w", err)
	}
	if v, err := a.U64(); err != nil || v == 0 {
		return fmt.Errorf("answer %d, %v", v, err)
	}
	return nil
}

// closed expects that the connection ends.
func (m *vm) closed() error {
	var a wire.Message
	if err := m.Conn().Read(&a); err == nil {
		return fmt.Errorf("%v was answered", a.Request)
	} else if !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
		return err
	}
	return nil
}

func state(i, n uint32) []byte { return wire.VringState{Index: i, Num: n}.Append(nil) }
func u64(v uint64) []byte      { return wire.AppendU64(nil, v) }

// Messages that are wrong are refused, with a line that says what is wrong: the
// front end is told where it asked to be, and disconnected where it did not.
// Either way the next one is served.
func TestWrongMessages(t *testing.T) {
	region := wire.Region{GuestAddr: guestBase, Size: memSize, UserAddr: userBase}
	table := func(r ...wire.Region) []byte { return wire.AppendMemTable(nil, r) }
	huge := region
	huge.Size = math.MaxUint64
	wrap := region
	wrap.MmapOffset = math.MaxUint64 - 4096
	cases := []struct {
		name    string
		request wire.Request
		payload []byte
		fds     int // copies of the memory's descriptor
		log     string
	}{
		{"size", wire.SetFeatures, []byte{1, 2, 3}, 0, "the payload has 3 bytes, not 8"},
		{"unknown request", wire.Request(1000), u64(1), 0, "request 1000"},
		{"request of another device", wire.NetSetMTU, u64(1500), 0, "the message is not known here"},
		{"features that were not offered", wire.SetFeatures, u64(1 << 50), 0, "bits 50"},
		{"protocol features that were not offered", wire.SetProtocolFeatures, u64(1 << 14), 0, "INBAND_NOTIFICATIONS"},
		{"descriptors that are not wanted", wire.SetOwner, nil, 3, "it carries 3 descriptors, not 0"},
		{"queue that there is not", wire.SetVringNum, state(16, 64), 0, "there is no queue 16: the device has 16"},
		{"queue number out of this world", wire.SetVringEnable, state(math.MaxUint32, 1), 0, "there is no queue 4294967295"},
		{"no descriptors in a queue", wire.SetVringNum, state(0, 0), 0, "from 1 to 1024 are possible"},
		{"num beyond the limit", wire.SetVringNum, state(0, 2048), 0, "from 1 to 1024 are possible"},
		{"num not a power of two", wire.SetVringNum, state(0, 100), 0, "a split ring has a power of two"},
		{"enable with a number", wire.SetVringEnable, state(0, 2), 0, "neither 0 (disable) nor 1"},
		{"ring flags", wire.SetVringAddr, wire.VringAddr{Flags: 2}.Append(nil), 0, "flags 0x2 of queue 0 are not known"},
		{"kick that is no eventfd", wire.SetVringKick, u64(0), 1, "an eventfd is needed"},
		{"call that is no eventfd", wire.SetVringCall, u64(0), 1, "an eventfd is needed"},
		{"err that is no eventfd", wire.SetVringErr, u64(0), 1, "an eventfd is needed"},
		{"kick without its descriptor", wire.SetVringKick, u64(0), 0, "it carries 0 descriptors, not 1"},
		{"region beyond its file", wire.AddMemReg, wire.Region{GuestAddr: guestBase, Size: memSize + 1, UserAddr: userBase}.AppendSingle(nil), 1, "its file has 33554432 bytes, less than the 33554433"},
		{"region of no bytes", wire.AddMemReg, wire.Region{GuestAddr: guestBase, UserAddr: userBase}.AppendSingle(nil), 1, "it has no bytes"},
		{"region larger than all", wire.AddMemReg, huge.AppendSingle(nil), 1, "its file has"},
		{"offset that wraps", wire.AddMemReg, wrap.AppendSingle(nil), 1, "its file has"},
		{"region that is not there", wire.RemMemReg, region.AppendSingle(nil), 0, "there is no region"},
		{"regions that overlap", wire.SetMemTable, table(region, region), 2, "overlap"},
		{"descriptor missing from the table", wire.SetMemTable, table(region, region), 1, "1 descriptors for 2 regions"},
		{"guest addresses that wrap", wire.AddMemReg, wire.Region{GuestAddr: math.MaxUint64 - 100, Size: memSize, UserAddr: userBase}.AppendSingle(nil), 1, "passes the end of the address space"},
		{"more regions than a table has", wire.SetMemTable, append(binaryU32(9), make([]byte, 4+8*32)...), 8, "9 regions, more than 8"},
		{"log without memory", wire.SetLogBase, u64(0), 0, "LOG_SHMFD"},
		{"log beyond its file", wire.SetLogBase, wire.Log{Size: memSize + 4}.Append(nil), 1, "its file has"},
		{"log that is no multiple", wire.SetLogBase, wire.Log{Size: 4095}.Append(nil), 1, "multiples of 4"},
		{"record for too many queues", wire.SetInflightFd, wire.Inflight{MmapSize: 4096, Queues: 100, QueueSize: 64}.Append(nil, nil), 1, "a record for 100 queues"},
		{"record that is too small", wire.SetInflightFd, wire.Inflight{MmapSize: 4096, Queues: 16, QueueSize: 1024}.Append(nil, nil), 1, "the record has 4096 bytes"},
		{"record beyond its file", wire.SetInflightFd, wire.Inflight{MmapSize: memSize, MmapOffset: 4096, Queues: 1, QueueSize: 64}.Append(nil, nil), 1, "its file has"},
		{"status of two bytes", wire.SetStatus, u64(256), 0, "it is one byte"},
		{"write to what the guest may not write", wire.SetConfig, wire.Config{Offset: 0, Data: make([]byte, 8)}.Append(nil), 0, "a guest may write one byte"},
	}
	for _, c := range cases {
		for _, ack := range []wire.Flags{0, wire.FlagNeedReply} {
			t.Run(c.name, func(t *testing.T) {
				r := newRig(t, blocktest.EmulatorConfig{}, Config{})
				m := newVM(t, 1, 64, 0)
				m.connect(r, allProtocol)
				m.must(m.SetFeatures(m.features))
				m.send(c.request, wire.Version|ack, c.payload, slices.Repeat([]int{m.mem.fd}, c.fds)...)
				expect := m.closed
				if ack != 0 {
					expect = m.refused
				}
				if err := expect(); err != nil {
					t.Fatal(err)
				}
				r.saw(c.log)
				r.saw("message=")
				next := m
				if ack == 0 {
					r.idle()
					next = newVM(t, 1, 64, 0)
					next.connect(r, allProtocol)
				}
				next.start()
				next.queues[0].write(0, 1, 512)
				next.queues[0].checkRead(0, 1, 512)
			})
		}
	}
}

func binaryU32(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// A front end that goes on and on is disconnected.
func TestTooManyRefusals(t *testing.T) {
	r := newRig(t, blocktest.EmulatorConfig{}, Config{})
	m := newVM(t, 1, 64, 0)
	m.connect(r, allProtocol)
	for i := range maxRefused {
		m.send(wire.SetVringNum, wire.Version|wire.FlagNeedReply, state(0, 3))
		if err := m.refused(); err != nil {
			t.Fatalf("refusal %d: %v", i, err)
		}
	}
	m.send(wire.SetVringNum, wire.Version|wire.FlagNeedReply, state(0, 3))
	if err := m.closed(); err != nil {
		t.Error(err)
	}
	r.saw("more than 16 messages were refused")
}

// An empty answer says that a part of the configuration space is not there.
func TestConfigurationThatIsNotThere(t *testing.T) {
	r := newRig(t, blocktest.EmulatorConfig{}, Config{})
	m := newVM(t, 1, 64, 0)
	m.connect(r, noAck)
	var nack *wire.NackError
	if _, err := m.GetConfig(100, 100); !errors.As(err, &nack) {
		t.Errorf("beyond the end: %v", err)
	}
	if _, err := m.GetConfig(0, 60); err != nil {
		t.Errorf("after it: %v", err)
	}
}

// Messages that break off, at every byte, end the connection and nothing else.
func TestMessageBreaksOff(t *testing.T) {
	r := newRig(t, blocktest.EmulatorConfig{}, Config{})
	region := wire.Region{GuestAddr: guestBase, Size: memSize, UserAddr: userBase}
	b := make([]byte, wire.HeaderSize)
	payload := wire.AppendMemTable(nil, []wire.Region{region})
	wire.PutHeader(b, uint32(wire.SetMemTable), wire.Version, len(payload))
	b = append(b, payload...)
	for n := 1; n < len(b); n += 3 {
		m := newVM(t, 1, 64, 0)
		m.dial(r.socket)
		if _, err := sys.SendFds(m.Conn().Socket(), b[:n], []int{m.mem.fd}); err != nil {
			t.Fatal(err)
		}
		m.leave(r)
	}
	r.saw("the connection ended after")
	m := newVM(t, 1, 64, 0)
	m.connect(r, allProtocol)
	m.start()
	m.queues[0].write(0, 1, 512)
}

// A kick that comes before the ring is known starts nothing; the ring starts
// when it is complete, and what was offered meanwhile is served.
func TestKickBeforeSetup(t *testing.T) {
	r := newRig(t, blocktest.EmulatorConfig{}, Config{})
	m := newVM(t, 1, 64, 0)
	m.connect(r, allProtocol)
	q := m.queues[0]
	m.must(m.SetFeatures(m.features))
	m.must(m.SetVringEnable(0, true))
	m.must(m.SetVringFd(wire.SetVringKick, 0, q.kick))
	r.saw("a kick was set up for a queue before its size, addresses and memory")
	k := q.offer(virtio.BlkOut, 0, 512, true)
	signal(q.kick)
	m.must(m.SetVringAddr(q.addr))
	m.shareMemory()
	if s := r.Status(); len(s.Queues) != 0 {
		t.Errorf("queues run: %+v", s.Queues)
	}
	m.must(m.SetVringNum(0, 64))
	if got := q.next(); got != k || q.status(k) != virtio.BlkOK {
		t.Errorf("request %d, status %d", got, q.status(k))
	}
}

// Rings outside memory do not start; the front end is told, or disconnected.
func TestRingOutsideMemory(t *testing.T) {
	for _, c := range []struct {
		name string
		addr func(a *wire.VringAddr)
		want string
	}{
		{"descriptors nowhere", func(a *wire.VringAddr) { a.Desc = 4096 }, "its descriptors (1024 bytes at user address 0x1000) are not in one region"},
		{"used ring at the very end", func(a *wire.VringAddr) { a.Used = userBase + memSize - 8 }, "its used ring"},
		{"available ring around the end of addresses", func(a *wire.VringAddr) { a.Avail = math.MaxUint64 - 1 }, "its available ring"},
		{"descriptors that are not aligned", func(a *wire.VringAddr) { a.Desc += 8 }, "aligned to 16"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, blocktest.EmulatorConfig{}, Config{})
			m := newVM(t, 1, 64, 0)
			m.connect(r, allProtocol)
			q := m.queues[0]
			c.addr(&q.addr)
			m.must(m.SetFeatures(m.features))
			m.shareMemory()
			m.must(m.SetVringNum(0, 64))
			m.must(m.SetVringAddr(q.addr))
			var nack *wire.NackError
			if err := m.SetVringFd(wire.SetVringKick, 0, q.kick); !errors.As(err, &nack) {
				t.Fatalf("%v", err)
			}
			r.saw("queue 0 cannot start")
			r.saw(c.want)
		})
	}
}

// What may not change while a ring runs is refused.
func TestChangesToARunningRing(t *testing.T) {
	r := newRig(t, blocktest.EmulatorConfig{}, Config{})
	m := newVM(t, 1, 64, 0)
	m.connect(r, allProtocol)
	m.start()
	var nack *wire.NackError
	for name, err := range map[string]error{
		"size": m.SetVringNum(0, 32), "base": m.SetVringBase(0, 7), "features": m.SetFeatures(m.features &^ virtio.BlkFeatureFlush),
		"record": m.SetInflight(m.inflight, m.record),
	} {
		if !errors.As(err, &nack) {
			t.Errorf("%s: %v", name, err)
		}
	}
	m.queues[0].write(0, 1, 512)
	// The same addresses, and others, are no fault: a migration says them again.
	m.must(m.SetVringAddr(m.queues[0].addr))
	moved := m.queues[0].addr
	copy(m.mem.mem[24*mib:], m.mem.mem[:ringRoom])
	moved.Desc, moved.Avail, moved.Used = moved.Desc+24*mib, moved.Avail+24*mib, moved.Used+24*mib
	m.must(m.SetVringAddr(moved))
	k := m.queues[0].offer(virtio.BlkIn, 0, 512, false)
	copy(m.mem.mem[24*mib:], m.mem.mem[:8192]) // as the driver wrote it
	signal(m.queues[0].kick)
	for end := time.Now().Add(patience); m.queues[0].status(k) != virtio.BlkOK; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the ring is not served where it has moved to")
		}
	}
}

// Two disks: what a hostile front end does to the one, and a disk that does not
// answer, are nothing to the other.
func TestOtherDisksNoticeNothing(t *testing.T) {
	bad := newRig(t, blocktest.EmulatorConfig{}, Config{})
	good := newRig(t, blocktest.EmulatorConfig{}, Config{})
	m := newVM(t, 1, 64, 0)
	m.connect(good, allProtocol)
	m.start()
	stuck := newVM(t, 1, 64, 0)
	stuck.connect(bad, allProtocol)
	stuck.start()
	stall := bad.disk.Stall(block.OpWrite, 0, mib, 0)
	stuck.queues[0].offer(virtio.BlkOut, 0, 512, true)
	stall.Held()
	stuck.send(wire.GetVringBase, wire.Version, state(0, 0)) // waits for the disk
	for i := range 50 {
		m.queues[0].write(uint64(i), uint64(i), 512)
	}
	if st := bad.Status(); st.Queues[0].InFlight != 1 {
		t.Errorf("%+v", st)
	}
	stall.Release()
}

// A call descriptor that its owner made block and filled up keeps the queue's
// thread only for as long as the front end is there.
func TestCallThatBlocks(t *testing.T) {
	r := newRig(t, blocktest.EmulatorConfig{}, Config{})
	m := newVM(t, 1, 64, 0)
	m.connect(r, allProtocol)
	m.start()
	q := m.queues[0]
	fill(t, q.call)
	if err := unix.SetNonblock(q.call, false); err != nil {
		t.Fatal(err)
	}
	q.offer(virtio.BlkOut, 0, 512, true)
	for end := time.Now().Add(patience); q.status(0) != virtio.BlkOK; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the request does not end")
		}
	}
	m.leave(r)
}

// fill makes the next write to an eventfd wait.
func fill(t *testing.T, fd int) {
	t.Helper()
	_, _ = unix.Read(fd, make([]byte, 8)) // what there is; it does not matter whether there was
	if _, err := unix.Write(fd, binary.NativeEndian.AppendUint64(nil, math.MaxUint64-1)); err != nil {
		t.Fatal(err)
	}
}

// A front end that floods the socket and never reads an answer is let go when
// the server stops.
func TestFrontEndThatNeverReads(t *testing.T) {
	r := newRig(t, blocktest.EmulatorConfig{}, Config{})
	m := newVM(t, 1, 64, 0)
	m.dial(r.socket)
	b := make([]byte, wire.HeaderSize)
	wire.PutHeader(b, uint32(wire.GetFeatures), wire.Version, 0)
	s := m.Conn().Socket()
	if err := s.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := s.Write(b); err != nil {
			break
		}
	}
	if !r.Status().Connected {
		t.Error("the front end is gone")
	}
}

// The features text of the log names bits, not addresses.
func TestBitList(t *testing.T) {
	if s := bitList(1<<3 | 1<<40); s != "3, 40" {
		t.Errorf("%q", s)
	}
}

// FuzzSession: a front end sends anything, in parts and with descriptors: its
// memory, an eventfd, a socket. Nothing panics or hangs, and in the end nothing
// is open or mapped.
func FuzzSession(f *testing.F) {
	for _, seed := range sessionSeeds() {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		r := newRig(t, blocktest.EmulatorConfig{Size: mib}, Config{})
		m := newVM(t, 1, 64, 0)
		m.dial(r.socket)
		kinds := []int{m.mem.fd, eventfd(t), eventfd(t)}
		go discard(m)
		if len(in) > 16<<10 {
			in = in[:16<<10]
		}
		for len(in) > 2 { // each message: descriptors, length, bytes
			n := min(int(in[1]), len(in)-2)
			var fds []int
			for i := range int(in[0] & 7) {
				fds = append(fds, kinds[(int(in[0]>>3)+i)%len(kinds)])
			}
			b := fixHeader(in[2 : 2+n])
			if _, err := sys.SendFds(m.Conn().Socket(), b, fds); err != nil {
				break
			}
			in = in[2+n:]
		}
		m.leave(r)
		if strings.Contains(r.log.String(), "panic") {
			t.Fatal(r.log)
		}
	})
}

// fixHeader makes most messages whole: the first byte is the request, the rest
// its payload; where its high bit is set the bytes are sent as they are.
func fixHeader(b []byte) []byte {
	if len(b) == 0 || b[0]&0x80 != 0 {
		return append([]byte{0}, b...)
	}
	h := make([]byte, wire.HeaderSize)
	wire.PutHeader(h, uint32(b[0]), wire.Version|wire.FlagNeedReply, len(b)-1)
	return append(h, b[1:]...)
}

func discard(m *vm) {
	var b [512]byte
	for {
		if _, err := m.Conn().Socket().Read(b[:]); err != nil {
			return
		}
	}
}

// sessionSeeds are a machine's start and stop, as FuzzSession takes them.
func sessionSeeds() [][]byte {
	var b bytes.Buffer
	add := func(fds byte, request wire.Request, payload []byte) {
		b.Write([]byte{fds, byte(1 + len(payload)), byte(request)})
		b.Write(payload)
	}
	region := wire.Region{GuestAddr: guestBase, Size: memSize, UserAddr: userBase}
	const eventFd = 1 | 1<<3
	add(0, wire.SetProtocolFeatures, u64(uint64(protocolOffered)))
	add(0, wire.SetFeatures, u64(virtio.FeatureVersion1|wire.FeatureProtocol))
	add(0, wire.GetInflightFd, wire.Inflight{Queues: 1, QueueSize: 64}.Append(nil, nil))
	add(1, wire.AddMemReg, region.AppendSingle(nil))
	add(0, wire.SetVringNum, state(0, 64))
	add(0, wire.SetVringBase, state(0, 0))
	add(0, wire.SetVringAddr, wire.VringAddr{Desc: userBase, Avail: userBase + 4096, Used: userBase + 8192}.Append(nil))
	add(eventFd, wire.SetVringCall, u64(0))
	add(eventFd, wire.SetVringKick, u64(0))
	add(0, wire.SetVringEnable, state(0, 1))
	start := bytes.Clone(b.Bytes())
	add(1, wire.SetLogBase, wire.Log{Size: 1 << 20}.Append(nil))
	add(0, wire.RemMemReg, region.AppendSingle(nil))
	add(0, wire.SetStatus, u64(0))
	add(0, wire.GetVringBase, state(0, 0))
	add(0, wire.ResetDevice, nil)
	return [][]byte{start, bytes.Clone(b.Bytes())}
}
