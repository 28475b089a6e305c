package vhostuser

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/block/blocktest"
	"github.com/platter-storage/platter/internal/testutil"
	"github.com/platter-storage/platter/virtio"
	wire "github.com/platter-storage/platter/wire/vhostuser"
)

// patience bounds waiting for what must come.
const patience = 2 * time.Minute

const mib = 1 << 20

// rig is a device on a socket, ended with the test.
type rig struct {
	*Device
	t      testing.TB
	socket string
	log    *testutil.Output
	disk   *blocktest.Emulator
	in     *block.Instance
	child  *block.Child
}

// newRig offers an emulated disk. The test fails if the device does not shut
// down, or leaves a descriptor, a mapping or a goroutine.
func newRig(t testing.TB, disk blocktest.EmulatorConfig, cfg Config) *rig {
	t.Helper()
	if disk.Size == 0 {
		disk.Size = 16 * mib
	}
	env := blocktest.NewEnv(t)
	e := blocktest.NewEmulator(t, disk)
	in := blocktest.Attach(t, env, e, "disk")
	r := rigOver(t, env, in, cfg)
	r.disk = e
	return r
}

func rigOver(t testing.TB, env *block.Env, in *block.Instance, cfg Config) *rig {
	t.Helper()
	r := &rig{t: t, log: &testutil.Output{}, in: in, socket: filepath.Join(shortDir(t), "s")}
	noLeaks(t)
	var err error
	perm := block.PermRead
	if !in.Info().ReadOnly {
		perm |= block.PermWrite
	}
	if r.child, err = in.NewChild("export", block.RoleRoot, perm, block.PermAll); err != nil {
		t.Fatal(err)
	}
	cfg.Child, cfg.Env, cfg.Name = r.child, env, "disk0"
	cfg.Log = slog.New(slog.NewTextHandler(r.log, nil))
	if r.Device, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", r.socket)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- r.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := r.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		if err := <-ended; !errors.Is(err, ErrClosed) {
			t.Errorf("serve ended with %v", err)
		}
		r.child.Close()
		if t.Failed() {
			t.Logf("log:\n%s", r.log)
		}
	})
	return r
}

// shortDir is a folder with a short name: a socket's path has few bytes.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "vu")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// watched are the tests that noLeaks watches.
var watched sync.Map

// noLeaks fails the test if descriptors, shared mappings or sessions are left.
func noLeaks(t testing.TB) {
	t.Helper()
	if _, twice := watched.LoadOrStore(t, true); twice {
		return // the first device of the test is the last to go
	}
	before := held(t)
	t.Cleanup(func() {
		var now holding
		for range 6000 { // a minute: test machines are slow
			if now = held(t); now.fds <= before.fds && now.maps <= before.maps && now.sessions == "" {
				return
			}
			runtime.Gosched()
			time.Sleep(10 * time.Millisecond)
		}
		t.Errorf("%d descriptors and %d shared mappings before, %d and %d after; %s", before.fds, before.maps, now.fds, now.maps, now.sessions)
	})
}

type holding struct {
	fds, maps int
	sessions  string
}

func held(t testing.TB) (h holding) {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	h.fds, h.maps = len(list), strings.Count(string(maps), "memfd:")
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	for g := range strings.SplitSeq(string(buf), "\n\n") {
		if strings.Contains(g, "vhostuser.(*session)") {
			h.sessions = g
		}
	}
	return h
}

// saw waits until the log has text.
func (r *rig) saw(text string) {
	r.t.Helper()
	for end := time.Now().Add(patience); !strings.Contains(r.log.String(), text); {
		if time.Now().After(end) {
			r.t.Fatalf("the log does not say %q:\n%s", text, r.log)
		}
		time.Sleep(time.Millisecond)
	}
}

// memory is a piece of a machine's memory.
type memory struct {
	wire.Region
	fd  int
	mem []byte
}

// Places in the first piece of memory: rings, then what requests use.
const (
	guestBase = 1 << 30
	userBase  = 1 << 40
	ringRoom  = 64 << 10 // for each queue
	slots     = 64       // requests of each queue at once
	slotData  = 64 << 10
	slotRoom  = slotData + 4096 // data, then header and status
	memSize   = 32 * mib
)

// vm is a virtual machine in this process: its memory, its virtqueues, and the
// front end that shares them.
type vm struct {
	*wire.Frontend
	t        testing.TB
	mem      memory
	features uint64
	queues   []*vq
	inflight wire.Inflight
	record   int // descriptor; -1: none
	channel  *wire.Conn
	shared   bool // the memory is
}

// vq is a virtqueue of a vm.
type vq struct {
	vm         *vm
	index      int
	layout     virtio.Layout
	addr       wire.VringAddr
	driver     *virtio.Driver
	kick, call int
	errFd      int
	base       uint32 // where the back end goes on
	busy       [slots]bool
	slotOf     map[uint16]int
}

func newMemory(t testing.TB, guest, user uint64, n int) memory {
	t.Helper()
	fd, err := unix.MemfdCreate("guest", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Ftruncate(fd, int64(n)); err != nil {
		t.Fatal(err)
	}
	b, err := unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		unix.Munmap(b)
		unix.Close(fd)
	})
	return memory{wire.Region{GuestAddr: guest, Size: uint64(n), UserAddr: user}, fd, b}
}

func eventfd(t testing.TB) int {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// newVM makes a machine that is not connected yet.
func newVM(t testing.TB, queues int, size uint16, features uint64) *vm {
	t.Helper()
	m := &vm{t: t, mem: newMemory(t, guestBase, userBase, memSize), record: -1}
	m.features = features | virtio.FeatureVersion1 | wire.FeatureProtocol | virtio.BlkFeatureFlush
	for i := range queues {
		m.queues = append(m.queues, m.newQueue(i, size))
	}
	return m
}

func (m *vm) newQueue(index int, size uint16) *vq {
	m.t.Helper()
	q := &vq{vm: m, index: index, kick: eventfd(m.t), call: eventfd(m.t), errFd: eventfd(m.t), base: virtio.StartBase(m.features), slotOf: map[uint16]int{}}
	desc, driver, device := virtio.AreaSizes(size, m.features)
	at := index * ringRoom
	place := func(n int) (b []byte, user uint64) {
		from := at
		at = (at + n + 4095) &^ 4095
		return m.mem.mem[from : from+n], userBase + uint64(from)
	}
	q.layout = virtio.Layout{Size: size, Features: m.features}
	q.addr.Index = uint32(index)
	q.layout.Desc, q.addr.Desc = place(desc)
	q.layout.Driver, q.addr.Avail = place(driver)
	q.layout.Device, q.addr.Used = place(device)
	q.addr.Log = guestBase + q.addr.Used - userBase
	var err error
	if q.driver, err = virtio.NewDriver(q.layout, virtio.Tables{}); err != nil {
		m.t.Fatal(err)
	}
	return q
}

// connect goes to the device as QEMU does when it realizes one.
func (m *vm) connect(r *rig, protocol wire.Protocol) {
	m.t.Helper()
	m.dial(r.socket)
	m.negotiate(protocol)
}

func (m *vm) dial(socket string) {
	m.t.Helper()
	var err error
	if m.Frontend, err = wire.DialFrontend(socket); err != nil {
		m.t.Fatal(err)
	}
	m.Timeout = patience
	m.t.Cleanup(func() { m.Close() })
}

func (m *vm) negotiate(protocol wire.Protocol) {
	m.t.Helper()
	offered, err := m.Features()
	m.must(err)
	if more := m.features &^ offered; more != 0 {
		m.t.Fatalf("features %s are not offered", bitList(more))
	}
	can, err := m.ProtocolFeatures()
	m.must(err)
	m.must(m.SetProtocolFeatures(can & protocol))
	if n, err := m.QueueNum(); err != nil || n < len(m.queues) {
		m.t.Fatalf("%d queues, %v", n, err)
	}
	m.must(m.SetOwner())
	for _, q := range m.queues {
		m.must(m.SetVringFd(wire.SetVringCall, q.index, q.call))
	}
	if _, err := m.GetConfig(0, 60); err != nil {
		m.t.Fatal(err)
	}
}

func (m *vm) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

// start starts the rings as QEMU does when the guest's driver is ready.
func (m *vm) start() {
	m.t.Helper()
	m.must(m.SetFeatures(m.features))
	if m.Protocol()&wire.ProtocolInflightShmfd != 0 {
		m.shareRecord()
	}
	m.shareMemory()
	for _, q := range m.queues {
		q.set()
	}
	for _, q := range m.queues {
		m.must(m.SetVringEnable(q.index, true))
	}
}

func (m *vm) shareMemory() {
	m.t.Helper()
	if m.Protocol()&wire.ProtocolConfigureMemSlots != 0 {
		m.must(m.AddMemReg(m.mem.Region, m.mem.fd))
	} else {
		m.must(m.SetMemTable([]wire.Region{m.mem.Region}, []int{m.mem.fd}))
	}
}

// shareRecord asks for a record of requests in flight unless it has one.
func (m *vm) shareRecord() {
	m.t.Helper()
	if m.record < 0 {
		var err error
		m.inflight, m.record, err = m.GetInflight(len(m.queues), int(m.queues[0].layout.Size))
		m.must(err)
		fd := m.record
		m.t.Cleanup(func() { unix.Close(fd) })
	}
	m.must(m.SetInflight(m.inflight, m.record))
}

// set tells all of the ring but that it is enabled.
func (q *vq) set() {
	m := q.vm
	m.t.Helper()
	m.must(m.SetVringNum(q.index, int(q.layout.Size)))
	m.must(m.SetVringBase(q.index, q.base))
	m.must(m.SetVringAddr(q.addr))
	m.must(m.SetVringFd(wire.SetVringKick, q.index, q.kick))
	m.must(m.SetVringFd(wire.SetVringCall, q.index, q.call))
}

// data is the memory of request slot k.
func (q *vq) data(k int) []byte { return q.vm.mem.mem[q.slotAt(k):][:slotData] }

func (q *vq) slotAt(k int) int { return mib + (q.index*slots+k)*slotRoom }

func (q *vq) status(k int) byte { return q.vm.mem.mem[q.slotAt(k)+slotData+16] }

// offer puts a request into the ring and shows it to the device: n bytes of
// the slot's data, which the device writes to unless out.
func (q *vq) offer(op virtio.BlkOp, sector uint64, n int, out bool) (k int) {
	q.vm.t.Helper()
	for k = 0; k < slots && q.busy[k]; k++ {
	}
	if k == slots {
		q.vm.t.Fatal("no slot is free")
	}
	return q.offerSlot(k, op, sector, n, out)
}

func (q *vq) offerSlot(k int, op virtio.BlkOp, sector uint64, n int, out bool) int {
	q.vm.t.Helper()
	at := q.slotAt(k)
	h := q.vm.mem.mem[at+slotData:]
	binary.LittleEndian.PutUint32(h, uint32(op))
	binary.LittleEndian.PutUint64(h[8:], sector)
	h[16] = 0xee
	base := uint64(guestBase + at)
	rd, wr := []virtio.Seg{{Addr: base + slotData, Len: 16}}, []virtio.Seg(nil)
	if seg := (virtio.Seg{Addr: base, Len: uint32(n)}); n > 0 && out {
		rd = append(rd, seg)
	} else if n > 0 {
		wr = append(wr, seg)
	}
	id, ok := q.driver.Add(rd, append(wr, virtio.Seg{Addr: base + slotData + 16, Len: 1}), false)
	if !ok {
		q.vm.t.Fatal("the ring is full")
	}
	q.busy[k], q.slotOf[id] = true, k
	if q.driver.Kick() {
		signal(q.kick)
	}
	return k
}

func signal(fd int) { _, _ = unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }

// next waits for a request that is done.
func (q *vq) next() (k int) {
	q.vm.t.Helper()
	for end := time.Now().Add(patience); ; {
		if k, ok := q.poll(); ok {
			return k
		}
		if time.Now().After(end) {
			q.vm.t.Fatalf("queue %d: no request is done", q.index)
		}
		time.Sleep(50 * time.Microsecond)
	}
}

func (q *vq) poll() (k int, ok bool) {
	id, _, ok, err := q.driver.Next()
	if err != nil {
		q.vm.t.Fatal(err)
	}
	if !ok {
		return 0, false
	}
	k = q.slotOf[id]
	delete(q.slotOf, id)
	q.busy[k] = false
	return k, true
}

// do runs one request and returns its status.
func (q *vq) do(op virtio.BlkOp, sector uint64, n int, out bool) byte {
	q.vm.t.Helper()
	k := q.offer(op, sector, n, out)
	if got := q.next(); got != k {
		q.vm.t.Fatalf("request %d is done, not %d", got, k)
	}
	return q.status(k)
}

func (q *vq) write(sector uint64, seed uint64, n int) byte {
	blocktest.Pattern(q.data(0)[:n], seed)
	return q.do(virtio.BlkOut, sector, n, true)
}

// checkRead reads and compares with what write wrote.
func (q *vq) checkRead(sector uint64, seed uint64, n int) {
	q.vm.t.Helper()
	clear(q.data(0)[:n])
	if st := q.do(virtio.BlkIn, sector, n, false); st != virtio.BlkOK {
		q.vm.t.Fatalf("queue %d: read of sector %d: status %d", q.index, sector, st)
	}
	if want := blocktest.Pattern(make([]byte, n), seed); !bytes.Equal(want, q.data(0)[:n]) {
		q.vm.t.Fatalf("queue %d: sector %d has other content than was written", q.index, sector)
	}
}

// leave ends the connection and waits until the device has let go.
func (m *vm) leave(r *rig) {
	m.t.Helper()
	m.Close()
	r.idle()
}

// idle waits until no front end is served.
func (r *rig) idle() {
	r.t.Helper()
	for end := time.Now().Add(patience); r.Status().Connected; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatal("the front end is still served")
		}
	}
}

const (
	allProtocol  = ^wire.Protocol(0)
	noAck        = allProtocol &^ wire.ProtocolReplyAck
	ringFeatures = virtio.FeatureEventIdx | virtio.FeatureIndirectDesc
)

var rings = map[string]uint64{"split": ringFeatures, "packed": ringFeatures | virtio.FeatureRingPacked, "in_order": virtio.FeatureInOrder, "plain": 0}

func seedOf(q, i int) uint64 { return uint64(q*1000 + i + 1) }

// accept waits for the device to connect to path.
func (m *vm) accept(path string) {
	m.t.Helper()
	os.Remove(path)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	m.must(err)
	defer l.Close()
	c, err := l.AcceptUnix()
	m.must(err)
	m.Frontend = wire.NewFrontend(c)
	m.Timeout = patience
	m.t.Cleanup(func() { m.Close() })
}
