package vhostuser

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/block/blocktest"
	"github.com/platter-storage/platter/virtio"
	wire "github.com/platter-storage/platter/wire/vhostuser"
)

// A machine with several queues of each kind of ring writes, flushes, discards,
// reads back, stops and goes on where it stopped.
func TestRequests(t *testing.T) {
	for name, features := range rings {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, blocktest.EmulatorConfig{}, Config{InOrder: true, Serial: "serial-0123456789012"})
			m := newVM(t, 3, 64, features|virtio.BlkFeatureDiscard|virtio.BlkFeatureWriteZeroes|virtio.BlkFeatureMQ)
			m.connect(r, allProtocol)
			m.start()
			for round := range 2 {
				for _, q := range m.queues {
					exercise(t, q, round)
				}
				for _, q := range m.queues { // stop and start again
					base, err := m.GetVringBase(q.index)
					m.must(err)
					q.base = base
				}
				for _, q := range m.queues {
					q.set()
				}
			}
			m.leave(r)
		})
	}
}

func exercise(t *testing.T, q *vq, round int) {
	t.Helper()
	base := uint64(q.index*4096 + round*1024)
	for i := range 20 {
		if st := q.write(base+uint64(i*8), seedOf(q.index, i), 4096); st != virtio.BlkOK {
			t.Fatalf("write: status %d", st)
		}
	}
	if st := q.do(virtio.BlkFlush, 0, 0, false); st != virtio.BlkOK {
		t.Fatalf("flush: status %d", st)
	}
	for i := range 20 {
		q.checkRead(base+uint64(i*8), seedOf(q.index, i), 4096)
	}
	if st := q.do(virtio.BlkGetID, 0, 20, false); st != virtio.BlkOK || string(q.data(0)[:20]) != "serial-0123456789012" {
		t.Fatalf("serial: status %d, %q", st, q.data(0)[:20])
	}
	for _, op := range []virtio.BlkOp{virtio.BlkDiscard, virtio.BlkWriteZeroes} {
		clear(q.data(0)[:16])
		binary.LittleEndian.PutUint64(q.data(0), base)
		binary.LittleEndian.PutUint32(q.data(0)[8:], 8)
		if st := q.do(op, 0, 16, true); st != virtio.BlkOK {
			t.Fatalf("%v: status %d", op, st)
		}
	}
	blocktest.Pattern(q.data(0)[:4096], 99)
	if st := q.do(virtio.BlkIn, base, 4096, false); st != virtio.BlkOK || !bytes.Equal(q.data(0)[:4096], make([]byte, 4096)) {
		t.Fatalf("after write zeroes: status %d, or not zeroes", st)
	}
	for _, st := range []struct {
		op     virtio.BlkOp
		sector uint64
		want   byte
	}{{virtio.BlkIn, 16 * mib / 512, virtio.BlkIOErr}, {virtio.BlkSecureErase, 0, virtio.BlkUnsupported}, {virtio.BlkOp(77), 0, virtio.BlkUnsupported}} {
		if got := q.do(st.op, st.sector, 512, false); got != st.want {
			t.Fatalf("%v at sector %d: status %d, want %d", st.op, st.sector, got, st.want)
		}
	}
}

// What the guest sees of the disk, field by field.
func TestConfigurationSpace(t *testing.T) {
	lim := *block.ByteLimits()
	lim.PhysicalBlock, lim.OptTransfer, lim.DiscardAlign = 4096, 1<<20, 65536
	r := newRig(t, blocktest.EmulatorConfig{Size: 16*mib + 700, Limits: &lim}, Config{Queues: 4, QueueSize: 64})
	m := newVM(t, 1, 64, 0)
	m.connect(r, allProtocol)
	b, err := m.GetConfig(0, 256)
	m.must(err)
	var c virtio.BlkConfig
	c.Decode(b)
	want := virtio.BlkConfig{
		Capacity: 32769, SizeMax: 16 << 20, SegMax: 62, Cylinders: 32, Heads: 16, Sectors: 63, BlkSize: 512,
		PhysicalBlockExp: 3, MinIOSize: 8, OptIOSize: 2048, Writeback: 1, NumQueues: 4,
		MaxDiscardSectors: 2097152, MaxDiscardSeg: 32, DiscardSectorAlignment: 128,
		MaxWriteZeroesSectors: 2097152, MaxWriteZeroesSeg: 32, WriteZeroesMayUnmap: 1,
	}
	if c != want {
		t.Errorf("%+v\nwant %+v", c, want)
	}
	if !bytes.Equal(b[virtio.BlkConfigSize:], make([]byte, 256-virtio.BlkConfigSize)) {
		t.Error("what is beyond the space is not zero")
	}
	part, err := m.GetConfig(20, 4)
	if err != nil || binary.LittleEndian.Uint32(part) != 512 {
		t.Errorf("block size alone: % x, %v", part, err)
	}
}

func TestBlockSizeOf4096(t *testing.T) {
	r := newRig(t, blocktest.EmulatorConfig{Size: 16*mib + 2048}, Config{BlockSize: 4096})
	m := newVM(t, 1, 64, 0)
	m.connect(r, allProtocol)
	b, err := m.GetConfig(0, 60)
	m.must(err)
	var c virtio.BlkConfig
	c.Decode(b)
	if c.BlkSize != 4096 || c.Capacity != 32768 || c.DiscardSectorAlignment != 8 {
		t.Errorf("%+v", c)
	}
	r.saw("bytes_left_over=2048")
}

// The features on offer follow the options.
func TestOffer(t *testing.T) {
	const always = virtio.FeatureVersion1 | virtio.FeatureIndirectDesc | virtio.FeatureEventIdx | wire.FeatureLogAll | wire.FeatureProtocol |
		virtio.BlkFeatureSizeMax | virtio.BlkFeatureSegMax | virtio.BlkFeatureGeometry | virtio.BlkFeatureBlkSize | virtio.BlkFeatureFlush |
		virtio.BlkFeatureTopology | virtio.BlkFeatureConfigWCE | virtio.BlkFeatureMQ
	const change = virtio.BlkFeatureDiscard | virtio.BlkFeatureWriteZeroes
	for _, c := range []struct {
		name     string
		disk     blocktest.EmulatorConfig
		cfg      Config
		features uint64
	}{
		{"default", blocktest.EmulatorConfig{}, Config{}, always | change | virtio.FeatureRingPacked},
		{"no packed", blocktest.EmulatorConfig{}, Config{NoPacked: true}, always | change},
		{"in order", blocktest.EmulatorConfig{}, Config{InOrder: true}, always | change | virtio.FeatureRingPacked | virtio.FeatureInOrder},
		{"read-only", blocktest.EmulatorConfig{}, Config{ReadOnly: true}, always | virtio.BlkFeatureRO | virtio.FeatureRingPacked},
		{"read-only disk", blocktest.EmulatorConfig{ReadOnly: true}, Config{}, always | virtio.BlkFeatureRO | virtio.FeatureRingPacked},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, c.disk, c.cfg)
			m := newVM(t, 1, 64, 0)
			m.dial(r.socket)
			if f, err := m.Features(); err != nil || f != c.features {
				t.Errorf("features %#x, %v; want %#x", f, err, c.features)
			}
			if p, err := m.ProtocolFeatures(); err != nil || p != protocolOffered {
				t.Errorf("protocol features %v, %v", p, err)
			}
			if n, err := m.MaxMemSlots(); err == nil {
				t.Errorf("%d memory slots before the feature was negotiated", n)
			}
		})
	}
}

func TestReadOnly(t *testing.T) {
	r := newRig(t, blocktest.EmulatorConfig{}, Config{ReadOnly: true})
	m := newVM(t, 1, 64, 0)
	m.connect(r, allProtocol)
	m.start()
	q := m.queues[0]
	if st := q.write(0, 1, 512); st != virtio.BlkIOErr {
		t.Errorf("write: status %d", st)
	}
	if st := q.do(virtio.BlkIn, 0, 512, false); st != virtio.BlkOK {
		t.Errorf("read: status %d", st)
	}
	if st := q.do(virtio.BlkFlush, 0, 0, false); st != virtio.BlkOK {
		t.Errorf("flush: status %d", st)
	}
	if n := r.disk.Count(block.OpWrite); n != 0 {
		t.Errorf("%d writes reached the disk", n)
	}
}

// One front end after the other is served, each with a fresh device.
func TestFrontEndsOneAfterAnother(t *testing.T) {
	r := newRig(t, blocktest.EmulatorConfig{}, Config{})
	for i := range 5 {
		m := newVM(t, 2, 64, rings["split"])
		m.connect(r, allProtocol)
		if i%2 == 0 { // as libblkio does: ask, leave, and come again
			m.leave(r)
			continue
		}
		m.start()
		m.queues[1].write(8, uint64(i), 4096)
		m.queues[0].checkRead(8, uint64(i), 4096)
		m.leave(r)
	}
}

// A second front end waits for the first to leave.
func TestSecondFrontEndWaits(t *testing.T) {
	r := newRig(t, blocktest.EmulatorConfig{}, Config{})
	first := newVM(t, 1, 64, 0)
	first.connect(r, allProtocol)
	first.start()
	second := newVM(t, 1, 64, 0)
	second.dial(r.socket)
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := second.Features(); err != nil {
			t.Errorf("the second front end, once the first has left: %v", err)
		}
	})
	r.saw("a second front end waits")
	first.queues[0].write(0, 1, 512) // the first is not disturbed
	first.Close()
	wg.Wait()
}

// The second front end is refused when the first stays.
func TestSecondFrontEndIsRefused(t *testing.T) {
	r := newRig(t, blocktest.EmulatorConfig{}, Config{wait: 20 * time.Millisecond})
	first := newVM(t, 1, 64, 0)
	first.connect(r, allProtocol)
	second := newVM(t, 1, 64, 0)
	second.dial(r.socket)
	if _, err := second.Features(); err == nil {
		t.Error("two front ends are served at once")
	}
	r.saw("a second front end was refused: the device is in use")
	if _, err := first.Features(); err != nil {
		t.Errorf("the first front end: %v", err)
	}
}

// A write that has not ended when the front end leaves ends, and is published
// into memory that is still mapped; only then is the next one served.
func TestFrontEndLeavesWithRequestsInFlight(t *testing.T) {
	for name, fast := range map[string]bool{"fast": true, "slow": false} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, blocktest.EmulatorConfig{Fast: fast}, Config{})
			m := newVM(t, 1, 64, rings["split"])
			m.connect(r, allProtocol)
			m.start()
			stall := r.disk.Stall(block.OpWrite, 0, 1<<20, 0)
			q := m.queues[0]
			k := q.offer(virtio.BlkOut, 0, 4096, true)
			stall.Held()
			m.Close()
			if !r.Status().Connected {
				t.Error("the device let go while a request was in flight")
			}
			stall.Release()
			r.idle()
			if got, ok := q.poll(); !ok || got != k || q.status(k) != virtio.BlkOK {
				t.Errorf("request %d, %v, status %d", got, ok, q.status(k))
			}
		})
	}
}

// Shutdown lets requests finish; one whose storage does not is an error, and
// the disk is not to be closed.
func TestShutdownWithRequestsInFlight(t *testing.T) {
	r := newRig(t, blocktest.EmulatorConfig{}, Config{})
	m := newVM(t, 1, 64, 0)
	m.connect(r, allProtocol)
	m.start()
	stall := r.disk.Stall(block.OpWrite, 0, 1<<20, 0)
	k := m.queues[0].offer(virtio.BlkOut, 0, 4096, true)
	stall.Held()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := r.Shutdown(ctx); err == nil || !strings.Contains(err.Error(), "do not close the disk") {
		t.Errorf("shutdown with a request in flight: %v", err)
	}
	stall.Release()
	if err := r.Shutdown(context.Background()); err != nil {
		t.Errorf("shutdown after it: %v", err)
	}
	if st := m.queues[0].status(k); st != virtio.BlkOK {
		t.Errorf("status %d", st)
	}
	<-r.turn // for the test's own shutdown
}

// A front end that listens is connected to, and again after it has left.
func TestConnect(t *testing.T) {
	r := newRig(t, blocktest.EmulatorConfig{}, Config{})
	path := r.socket + "c"
	ended := make(chan error, 1)
	go func() { ended <- r.Connect(path) }()
	r.saw("no front end listens yet")
	for i := range 2 {
		m := newVM(t, 1, 64, 0)
		m.accept(path)
		m.negotiate(allProtocol)
		m.start()
		m.queues[0].write(0, uint64(i), 512)
		m.queues[0].checkRead(0, uint64(i), 512)
		m.leave(r)
	}
	if err := r.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, ErrClosed) {
		t.Errorf("connect ended with %v", err)
	}
	<-r.turn
}

func TestConfigIsChecked(t *testing.T) {
	env := blocktest.NewEnv(t)
	in := blocktest.Attach(t, env, blocktest.NewEmulator(t, blocktest.EmulatorConfig{Size: mib}), "disk")
	child := blocktest.Edge(t, in)
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{Queues: MaxQueues}, ""}, {Config{Queues: MaxQueues + 1}, "65 queues"}, {Config{Queues: -1}, "-1 queues"},
		{Config{QueueSize: MaxQueueSize}, ""}, {Config{QueueSize: 2 * MaxQueueSize}, "65536 descriptors"}, {Config{QueueSize: 100}, "power of two"}, {Config{QueueSize: 2}, "2 descriptors"},
		{Config{BlockSize: 4096}, ""}, {Config{BlockSize: 1024}, "blocks of 1024"},
		{Config{Serial: "01234567890123456789"}, ""}, {Config{Serial: "012345678901234567890"}, "at most 20 bytes"},
		{Config{Poll: -1}, ""}, {Config{Poll: 1 << 40}, "polling"},
	} {
		c.cfg.Child, c.cfg.Env, c.cfg.Name = child, env, "x"
		d, err := New(c.cfg)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.cfg, err, c.want)
		}
		if err == nil {
			if err := d.Shutdown(context.Background()); err != nil {
				t.Error(err)
			}
		}
	}
	if _, err := New(Config{}); err == nil {
		t.Error("a device without a disk")
	}
}
