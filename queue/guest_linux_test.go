package queue

import (
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/graph"
	"github.com/platter-storage/platter/internal/realenv"
	"github.com/platter-storage/platter/virtio"

	_ "github.com/platter-storage/platter/filter/fault"
	_ "github.com/platter-storage/platter/format/raw"
	_ "github.com/platter-storage/platter/protocol/file"
	_ "github.com/platter-storage/platter/protocol/mem"
	_ "github.com/platter-storage/platter/protocol/null"
)

// patience bounds waiting for what must come.
const patience = 2 * time.Minute

// guest is a virtual machine in this process: memory, a ring, and the driver
// that uses it.
type guest struct {
	t        testing.TB
	mem      []byte
	m        *virtio.Map
	layout   virtio.Layout
	driver   *virtio.Driver
	kick     int
	called   int
	errFd    int
	dataBase int // where buffers begin
	slotLen  int // bytes of each request's buffers
	headers  int // where headers and status bytes are
	deviceAt int // where the device area of the ring is
	out      []virtio.Seg
	in       []virtio.Seg
	fds      [1]unix.PollFd
	event    [8]byte
}

const (
	guestBase = 1 << 30 // guest physical address of the memory
	headLen   = 16
)

// guestConfig describes one.
type guestConfig struct {
	size     uint16 // of the ring
	features uint64
	buffer   int // bytes of data of each request, 0: 64 KiB
	tableLen int // of indirect tables
	memory   func(n int) []byte
}

func newGuest(t testing.TB, c guestConfig) *guest {
	t.Helper()
	if c.buffer == 0 {
		c.buffer = 64 << 10
	}
	if c.tableLen == 0 {
		c.tableLen = 16
	}
	g := &guest{t: t, slotLen: c.buffer}
	desc, driver, device := virtio.AreaSizes(c.size, c.features)
	at := 0
	take := func(n, align int) int {
		at = (at + align - 1) &^ (align - 1)
		from := at
		at += n
		return from
	}
	d, a, u := take(desc, 4096), take(driver, 4096), take(device, 4096)
	g.deviceAt = u
	tab := take(int(c.size)*c.tableLen*16, 4096)
	g.headers = take(int(c.size)*32, 4096)
	g.dataBase = take(int(c.size)*c.buffer, 4096)
	total := (at + 4095) &^ 4095
	if c.memory == nil {
		c.memory = func(n int) []byte { return anonymous(t, n) }
	}
	g.mem = c.memory(total)
	g.layout = virtio.Layout{
		Size: c.size, Features: c.features | virtio.FeatureVersion1,
		Desc: g.mem[d : d+desc], Driver: g.mem[a : a+driver], Device: g.mem[u : u+device],
	}
	var err error
	tables := virtio.Tables{Guest: guestBase + uint64(tab), Mem: g.mem[tab : tab+int(c.size)*c.tableLen*16], Len: c.tableLen}
	if g.driver, err = virtio.NewDriver(g.layout, tables); err != nil {
		t.Fatal(err)
	}
	if g.m, err = virtio.NewMap([]virtio.Region{{Guest: guestBase, User: 1 << 40, Mem: g.mem}}); err != nil {
		t.Fatal(err)
	}
	g.kick, g.called, g.errFd = eventfd(t), eventfd(t), eventfd(t)
	return g
}

func anonymous(t testing.TB, n int) []byte {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(b) })
	return b
}

func eventfd(t testing.TB) int {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// vring is the guest's ring as a queue wants it.
func (g *guest) vring() Vring {
	return Vring{
		Layout: g.layout, Base: virtio.StartBase(g.layout.Features), Map: g.m,
		Kick: g.kick, Call: g.called, Err: g.errFd,
	}
}

// buffer is the data of request slot k, which is anything below the ring's
// size.
func (g *guest) buffer(k int) []byte {
	return g.mem[g.dataBase+k*g.slotLen:][:g.slotLen:g.slotLen]
}

func (g *guest) gpa(off int) uint64 { return guestBase + uint64(off) }

// status is the status byte of request slot k.
func (g *guest) status(k int) byte { return g.mem[g.headers+k*32+headLen] }

// header writes the request header of slot k and poisons its status.
func (g *guest) header(k int, typ uint32, sector uint64) {
	h := g.mem[g.headers+k*32:]
	binary.LittleEndian.PutUint32(h, typ)
	binary.LittleEndian.PutUint32(h[4:], 0)
	binary.LittleEndian.PutUint64(h[8:], sector)
	h[headLen] = 0xee
}

// offer puts a request into the ring: slot k, with n bytes of data in parts
// elements, which the device reads or writes. The guest does not see it before
// kickNow.
func (g *guest) offer(k int, typ uint32, sector uint64, n, parts int, write bool) (id uint16, ok bool) {
	g.header(k, typ, sector)
	g.out = append(g.out[:0], virtio.Seg{Addr: g.gpa(g.headers + k*32), Len: headLen})
	g.in = g.in[:0]
	from := g.gpa(g.dataBase + k*g.slotLen)
	for p := range parts {
		l := n / parts &^ 511
		if p == parts-1 {
			l = n - l*(parts-1)
		}
		seg := virtio.Seg{Addr: from, Len: uint32(l)}
		from += uint64(l)
		if write {
			g.out = append(g.out, seg)
		} else {
			g.in = append(g.in, seg)
		}
	}
	g.in = append(g.in, virtio.Seg{Addr: g.gpa(g.headers + k*32 + headLen), Len: 1})
	return g.driver.Add(g.out, g.in, parts > 2)
}

// kickNow shows the device what was offered.
func (g *guest) kickNow() {
	if g.driver.Kick() {
		signal(g.kick)
	}
}

var eventOne = []byte{1, 0, 0, 0, 0, 0, 0, 0}

func signal(fd int) { _, _ = unix.Write(fd, eventOne) }

// await waits until the driver finds a used entry.
func (g *guest) await() (id uint16, written uint32) {
	g.t.Helper()
	id, written, ok := g.awaitFor(patience)
	if !ok {
		g.t.Fatalf("no used entry after %v with %d chains out", patience, g.driver.Out())
	}
	return id, written
}

func (g *guest) awaitFor(d time.Duration) (id uint16, written uint32, ok bool) {
	g.t.Helper()
	deadline := time.Now().Add(d)
	for {
		id, written, ok, err := g.driver.Next()
		if err != nil {
			g.t.Fatal(err)
		}
		if ok {
			return id, written, true
		}
		if g.driver.Arm() {
			continue
		}
		left := time.Until(deadline)
		if left <= 0 {
			return 0, 0, false
		}
		g.fds[0] = unix.PollFd{Fd: int32(g.called), Events: unix.POLLIN}
		_, _ = unix.Poll(g.fds[:], int(left.Milliseconds())+1)
		_, _ = unix.Read(g.called, g.event[:])
	}
}

// readable waits until an eventfd is written, and takes what is there.
func readable(fd int, d time.Duration) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, _ := unix.Poll(fds, int(d.Milliseconds())+1)
	var b [8]byte
	_, _ = unix.Read(fd, b[:])
	return n > 0
}

// one runs a single request in slot 0 and gives its status.
func (g *guest) one(typ uint32, sector uint64, n, parts int, write bool) (status byte, written uint32) {
	g.t.Helper()
	if _, ok := g.offer(0, typ, sector, n, parts, write); !ok {
		g.t.Fatal("the ring is full")
	}
	g.kickNow()
	_, written = g.await()
	return g.status(0), written
}

// disk opens a disk from a description.
func disk(t testing.TB, env *block.Env, text string, readOnly bool) (*block.Instance, *block.Child) {
	t.Helper()
	vals, err := block.ParseOptions(text)
	if err != nil {
		t.Fatal(err)
	}
	gr := graph.New(env)
	in, err := gr.Add(context.Background(), vals, readOnly)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := gr.Close(); err != nil {
			t.Error(err)
		}
	})
	perm, shared := block.PermRead|block.PermWrite, block.PermAll
	if readOnly {
		perm = block.PermRead
	}
	c, err := in.NewChild("the test", block.RoleData, perm, shared)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return in, c
}

func quietLog() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func newEnv() *block.Env { return realenv.New(quietLog(), 0) }

// start starts a queue over child and gives it g's ring.
func start(t testing.TB, g *guest, cfg Config) *Queue {
	t.Helper()
	q := startDetached(t, cfg)
	if g != nil {
		if err := q.Attach(g.vring()); err != nil {
			t.Fatal(err)
		}
		if err := q.Enable(true); err != nil {
			t.Fatal(err)
		}
	}
	return q
}

func startDetached(t testing.TB, cfg Config) *Queue {
	t.Helper()
	if cfg.Env == nil {
		cfg.Env = cfg.Child.Instance().Env()
	}
	if cfg.Group == nil {
		cfg.Group = block.NewQueueGroup()
	}
	if cfg.Name == "" {
		cfg.Name = "disk"
	}
	q, err := Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := q.Close(ctx); err != nil {
			t.Errorf("closing the queue: %v", err)
		}
	})
	return q
}

// soaking says that tests are to go on for longer.
func soaking() bool { return os.Getenv("PLATTER_SOAK") != "" }
