package vhostuser

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/block/blocktest"
	"github.com/platter-storage/platter/virtio"
	wire "github.com/platter-storage/platter/wire/vhostuser"
)

// A server that lies in the used ring is left: the request fails, so does each
// to come, and closing works.
func TestLiesInTheUsedRing(t *testing.T) {
	for name, lie := range map[string]func(r *fakeRing, head uint32){
		"never offered":      func(r *fakeRing, head uint32) { r.used(0, head+1, 1); r.setUsed(1) },
		"no chain":           func(r *fakeRing, _ uint32) { r.used(0, 1<<31, 1); r.setUsed(1) },
		"twice":              func(r *fakeRing, head uint32) { r.used(0, head, 1); r.used(1, head, 1); r.setUsed(2) },
		"far ahead":          func(r *fakeRing, head uint32) { r.used(0, head, 1); r.setUsed(100) },
		"behind":             func(r *fakeRing, head uint32) { r.used(0, head, 1); r.setUsed(65535) },
		"more than fits":     func(r *fakeRing, head uint32) { r.used(0, head, 1<<20); r.setUsed(1) },
		"one more than fits": func(r *fakeRing, head uint32) { r.used(0, head, 4098); r.setUsed(1) },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			f.kicked = func(r *fakeRing) {
				var c virtio.Chain
				if ok, err := r.ring.Pop(&c); !ok || err != nil {
					t.Errorf("the request is not there: %v", err)
				}
				lie(r, uint32(c.Head))
				r.tell()
			}
			f.start()
			in := blocktest.Open(t, blocktest.NewEnv(t), f.config(block.Values{"reconnect": "1000"}), nil)
			c := blocktest.NewClient(t, blocktest.Edge(t, in))
			for range 2 {
				if err := c.Read(0, make([]byte, 4096)); err == nil {
					t.Error("a read succeeded")
				}
			}
			if err := c.Flush(); err == nil || !strings.Contains(err.Error(), "the device") {
				t.Errorf("the flush after it: %v, want an error that names the lie", err)
			}
		})
	}
}

// What a server says of a request is an error, and the next one is served.
func TestAnswersToARequest(t *testing.T) {
	for name, x := range map[string]struct {
		status byte
		short  uint32
		want   syscall.Errno
	}{
		"error":       {virtio.BlkIOErr, 0, syscall.EIO},
		"unsupported": {virtio.BlkUnsupported, 0, syscall.ENOTSUP},
		"no status":   {0xff, 0, syscall.EIO},
		"no such":     {77, 0, syscall.EIO},
		"part":        {virtio.BlkOK, 512, syscall.EIO},
		"nothing":     {virtio.BlkOK, 4097, syscall.EIO},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			var bad atomic.Bool
			bad.Store(true)
			f.kicked = func(r *fakeRing) {
				if !bad.Swap(false) {
					r.each(func(_ virtio.BlkOp, _ uint64, data [][]byte) byte { clear(data[0]); return virtio.BlkOK })
					return
				}
				var c virtio.Chain
				if ok, err := r.ring.Pop(&c); !ok || err != nil {
					t.Errorf("the request is not there: %v", err)
				}
				last := c.In[len(c.In)-1]
				last[len(last)-1] = x.status
				r.ring.Push(c.Handle, uint32(c.InBytes)-x.short)
				r.ring.Publish()
				r.tell()
			}
			f.start()
			in := blocktest.Open(t, blocktest.NewEnv(t), f.config(nil), nil)
			c := blocktest.NewClient(t, blocktest.Edge(t, in))
			if err := c.Read(0, make([]byte, 4096)); !errors.Is(err, x.want) {
				t.Errorf("%v, want %v", err, x.want)
			}
			b := []byte{1, 2, 3}
			if err := c.Read(4096, b); err != nil || b[1] != 0 {
				t.Errorf("the read after it: %v, %v", err, b)
			}
		})
	}
}

// absurd are configuration spaces that cannot be served from.
var absurd = map[string]func(c *virtio.BlkConfig){
	"capacity":        func(c *virtio.BlkConfig) { c.Capacity = 1<<64 - 1 },
	"capacity beyond": func(c *virtio.BlkConfig) { c.Capacity = 1 << 54 },
	"no block":        func(c *virtio.BlkConfig) { c.BlkSize = 0 },
	"half a sector":   func(c *virtio.BlkConfig) { c.BlkSize = 256 },
	"odd block":       func(c *virtio.BlkConfig) { c.BlkSize = 1000 },
	"huge block":      func(c *virtio.BlkConfig) { c.BlkSize = 1 << 31 },
	"short segment":   func(c *virtio.BlkConfig) { c.SizeMax = 511 },
}

func TestAbsurdConfiguration(t *testing.T) {
	for name, change := range absurd {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			f.features |= virtio.BlkFeatureBlkSize | virtio.BlkFeatureSizeMax
			f.space = change
			f.start()
			_, err := blocktest.TryOpen(t, blocktest.NewEnv(t), f.config(nil), nil, false)
			if !errors.Is(err, syscall.EPROTO) || !strings.Contains(err.Error(), "the server") || !strings.Contains(err.Error(), f.socket) {
				t.Errorf("%v, want an error that names the socket and what the server claims", err)
			}
		})
	}
}

// Odd limits that can be lived with are kept to.
func TestNarrowLimits(t *testing.T) {
	f := newFake(t)
	f.features |= virtio.BlkFeatureSizeMax | virtio.BlkFeatureDiscard | virtio.BlkFeatureWriteZeroes
	f.space = func(c *virtio.BlkConfig) {
		c.SizeMax, c.SegMax, c.NumQueues = 1000, 0, 0
		c.MaxDiscardSectors, c.MaxDiscardSeg, c.DiscardSectorAlignment = 8, 1, 24
		c.MaxWriteZeroesSectors, c.MaxWriteZeroesSeg = 3, 1
	}
	f.kicked = func(r *fakeRing) {
		r.each(func(op virtio.BlkOp, _ uint64, data [][]byte) byte {
			n := 0
			for _, d := range data {
				n += len(d)
			}
			if (op == virtio.BlkIn || op == virtio.BlkOut) && n != 512 {
				t.Errorf("%v of %d bytes, the server takes 512", op, n)
			}
			return virtio.BlkOK
		})
	}
	f.start()
	in := blocktest.Open(t, blocktest.NewEnv(t), f.config(nil), nil)
	l := in.Info().Limits()
	if l.MaxTransfer != 512 || l.DiscardAlign != 4096 || l.MaxDiscard != 4096 || l.MaxZero != 1536 {
		t.Errorf("limits %+v", l)
	}
	c := blocktest.NewClient(t, blocktest.Edge(t, in))
	for _, err := range []error{c.Read(0, make([]byte, 5000)), c.Write(100, 0, make([]byte, 5000)), c.Zero(0, 8192, 0), c.Discard(0, 65536)} {
		if err != nil {
			t.Error(err)
		}
	}
}

// A server that leaves, or says nonsense, after any number of messages, is an
// error soon.
func TestServerLeavesDuringTheHandshake(t *testing.T) {
	for stop := range 16 {
		f := newFake(t)
		f.kicked = func(*fakeRing) {}
		n, reached := 0, false
		f.hear = func(c *wire.Conn, m *wire.Message) (bool, error) {
			if n++; n <= stop {
				return false, nil
			}
			reached = true
			if stop%2 == 0 {
				_ = c.Write(99, wire.FlagReply, []byte("nonsense"))
			}
			return true, errors.New("over")
		}
		f.start()
		in, err := blocktest.TryOpen(t, blocktest.NewEnv(t), f.config(nil), nil, false)
		f.stop()
		if err == nil && reached {
			t.Errorf("after %d messages: %v was opened", stop, in.Info())
		}
	}
}

// A server that says nothing holds up an opening no longer than its caller
// wants.
func TestSilentServer(t *testing.T) {
	f := newFake(t)
	asked := make(chan struct{})
	f.hear = func(*wire.Conn, *wire.Message) (bool, error) { close(asked); return true, nil }
	f.start()
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-asked
		cancel()
	}()
	began := time.Now()
	if _, err := dial(ctx, &config{path: f.socket, size: 128, memory: MinMemory}); err == nil {
		t.Error("it was opened")
	}
	if time.Since(began) > patience {
		t.Error("it took its time")
	}
}

// A server without the features that everything depends on is refused in words.
func TestServersThatLackFeatures(t *testing.T) {
	for name, x := range map[string]struct {
		features uint64
		protocol wire.Protocol
		vals     block.Values
		want     string
	}{
		"old":         {wire.FeatureProtocol, wire.ProtocolConfig, nil, "VERSION_1"},
		"no protocol": {virtio.FeatureVersion1, 0, nil, "protocol features"},
		"no config":   {virtio.FeatureVersion1 | wire.FeatureProtocol, wire.ProtocolReplyAck, nil, "CONFIG"},
		"no packed":   {virtio.FeatureVersion1 | wire.FeatureProtocol, wire.ProtocolConfig, block.Values{"packed": "on"}, "packed"},
		"no order":    {virtio.FeatureVersion1 | wire.FeatureProtocol, wire.ProtocolConfig, block.Values{"in-order": "on"}, "in order"},
		"one queue":   {virtio.FeatureVersion1 | wire.FeatureProtocol, wire.ProtocolConfig, block.Values{"queues": "3"}, "1 queues"},
	} {
		f := newFake(t)
		f.features, f.protocol = x.features, x.protocol
		f.start()
		_, err := blocktest.TryOpen(t, blocktest.NewEnv(t), f.config(x.vals), nil, false)
		if err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v, want an error about %s", name, err, x.want)
		}
	}
}

func TestNobodyListens(t *testing.T) {
	_, err := blocktest.TryOpen(t, blocktest.NewEnv(t), block.Values{"driver": "vhostuser", "path": "/nonexistent/s"}, nil, false)
	if !errors.Is(err, syscall.ENOENT) || !strings.Contains(err.Error(), "start the server") {
		t.Error(err)
	}
}

// FuzzSpace: whatever a server claims is refused, or gives limits that hold.
func FuzzSpace(f *testing.F) {
	var b [virtio.BlkConfigSize]byte
	good := virtio.BlkConfig{Capacity: 2048, SizeMax: 1 << 20, SegMax: 126, BlkSize: 4096, NumQueues: 4, PhysicalBlockExp: 3, OptIOSize: 8,
		MaxDiscardSectors: 1 << 20, MaxDiscardSeg: 1, DiscardSectorAlignment: 8, MaxWriteZeroesSectors: 1 << 20, MaxWriteZeroesSeg: 1}
	good.Encode(&b)
	f.Add(b[:], ^uint64(0), uint16(128))
	for _, change := range absurd {
		c := good
		change(&c)
		c.Encode(&b)
		f.Add(b[:], ^uint64(0), uint16(4))
	}
	f.Fuzz(func(t *testing.T, b []byte, features uint64, size uint16) {
		size = 1 << min(size%11+2, 10)
		var c virtio.BlkConfig
		c.Decode(b)
		n, err := capacity(&c)
		if err == nil && (n < 0 || n > block.MaxSize) {
			t.Fatalf("a disk of %d bytes", n)
		}
		s, err := shapeOf(&c, features, int(size))
		if err != nil {
			return
		}
		l := s.limits()
		if err := l.Validate(); err != nil {
			t.Fatal(err)
		}
		if s.unit < 512 || s.unit > chunkSize || s.segs < 1 || s.segs+2 > int(size) || s.longest() < int(s.align) || s.longest() > s.unit*s.segs || s.longest() > longest {
			t.Fatalf("%+v", s)
		}
	})
}
