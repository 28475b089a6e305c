package vhostuser

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/block/blocktest"
	export "github.com/platter-storage/platter/export/vhostuser"
	"github.com/platter-storage/platter/virtio"
)

// Requests that a server takes with it fail, and so do those after them.
func TestServerGoes(t *testing.T) {
	f := newFake(t)
	var taken sync.WaitGroup
	taken.Add(3)
	f.kicked = func(r *fakeRing) {
		var c virtio.Chain
		for ok, _ := r.ring.Pop(&c); ok; ok, _ = r.ring.Pop(&c) {
			taken.Done()
		}
		r.ring.Arm()
	}
	f.start()
	in := blocktest.Open(t, blocktest.NewEnv(t), f.config(nil), nil)
	c := blocktest.NewClient(t, blocktest.Edge(t, in))
	results := make(chan error, 3)
	for i := range 3 {
		go func() { results <- c.Write(int64(i)*4096, 0, make([]byte, 4096)) }()
	}
	taken.Wait()
	f.stop()
	for range 3 {
		if err := <-results; !errors.Is(err, syscall.ENOTCONN) {
			t.Errorf("%v, want ENOTCONN", err)
		}
	}
	if err := c.Flush(); !errors.Is(err, syscall.ENOTCONN) {
		t.Errorf("flush: %v", err)
	}
	if err := in.Info().Abilities.Refresh(); !errors.Is(err, syscall.ENOTCONN) {
		t.Errorf("refresh: %v", err)
	}
}

// forgetful is a fake's disk. The server loses requests that it has taken, as
// one that is killed does.
type forgetful struct {
	mu   sync.Mutex
	data [1 << 20]byte
	lose atomic.Bool
}

func (d *forgetful) kicked(r *fakeRing) {
	for {
		r.each(func(op virtio.BlkOp, sector uint64, data [][]byte) byte {
			d.mu.Lock()
			defer d.mu.Unlock()
			if d.lose.Load() {
				return keeps
			}
			at := sector * 512
			for _, b := range data {
				switch op {
				case virtio.BlkIn:
					at += uint64(copy(b, d.data[at:]))
				case virtio.BlkOut:
					at += uint64(copy(d.data[at:], b))
				}
			}
			return virtio.BlkOK
		})
		if !r.ring.Arm() {
			return
		}
	}
}

// Connections that are lost with requests in flight, again and again, lose no
// request and no byte.
func TestConnectionsAreLost(t *testing.T) {
	for _, indirect := range []bool{true, false} {
		f, disk := newFake(t), &forgetful{}
		if !indirect {
			f.features &^= virtio.FeatureIndirectDesc
		}
		f.kicked = disk.kicked
		f.start()
		in := blocktest.Open(t, blocktest.NewEnv(t), f.config(block.Values{"reconnect": "600", "queue-size": "64"}), nil)
		c := blocktest.NewClient(t, blocktest.Edge(t, in))
		var stop atomic.Bool
		var rounds atomic.Int64
		var workers sync.WaitGroup
		for w := range 6 {
			workers.Go(func() { churn(t, c, int64(w)*131072, 100000+w, &stop, &rounds) })
		}
		for range 10 {
			for now := rounds.Load(); rounds.Load() < now+5 && !t.Failed(); {
				time.Sleep(time.Millisecond)
			}
			disk.lose.Store(true) // requests pile up
			time.Sleep(2 * time.Millisecond)
			f.hangUp()
			disk.lose.Store(false)
		}
		stop.Store(true)
		workers.Wait()
		f.stop()
	}
}

// churn writes and reads back, until stop.
func churn(t *testing.T, c *blocktest.Client, off int64, n int, stop *atomic.Bool, rounds *atomic.Int64) {
	data, got := make([]byte, n), make([]byte, n)
	for i := uint64(1); !stop.Load(); i++ {
		blocktest.Pattern(data, i)
		if err := c.Write(off, 0, data); err != nil {
			t.Error(err)
			return
		}
		if err := c.Flush(); err != nil {
			t.Error(err)
			return
		}
		if err := c.Read(off, got); err != nil {
			t.Error(err)
			return
		}
		if !bytes.Equal(data, got) {
			t.Errorf("round %d at %d: other data than was written", i, off)
			return
		}
		rounds.Add(1)
	}
}

// A server of ours that is stopped and started anew is found again, with a disk
// that has grown meanwhile, while requests go on; with another disk it is not.
func TestServerComesBack(t *testing.T) {
	env := blocktest.NewEnv(t)
	disk := memDisk(t, env, "1M")
	s := serve(t, disk, export.Config{})
	in := blocktest.Open(t, env, s.with(block.Values{"reconnect": "600", "packed": "on", "queues": "2"}), nil)
	c := blocktest.NewClient(t, blocktest.Edge(t, in))
	var stop atomic.Bool
	var rounds atomic.Int64
	var workers sync.WaitGroup
	for w := range 3 {
		workers.Go(func() { churn(t, c, int64(w)*131072, 100000+w, &stop, &rounds) })
	}
	grow := blocktest.NewClient(t, blocktest.Edge(t, disk))
	for i := range 5 {
		for now := rounds.Load(); rounds.Load() < now+5 && !t.Failed(); {
			time.Sleep(time.Millisecond)
		}
		s.stop()
		if err := grow.Truncate(int64(i+2) << 20); err != nil {
			t.Error(err)
		}
		s.start(disk, export.Config{})
	}
	stop.Store(true)
	workers.Wait()
	for end := time.Now().Add(patience); in.Info().Size() != 6<<20; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the size is %d", in.Info().Size())
		}
	}
	s.stop()
	s.start(disk, export.Config{BlockSize: 4096})
	done := make(chan error, 1)
	go func() { done <- c.Flush() }()
	select {
	case err := <-done:
		t.Errorf("a flush ended with %v on another disk", err)
	case <-time.After(300 * time.Millisecond):
	}
	s.stop()
	s.start(disk, export.Config{})
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A server that does not come back in time fails what waited for it, and one
// that comes back too late is not looked for any more.
func TestServerStaysAway(t *testing.T) {
	env := blocktest.NewEnv(t)
	s := serve(t, memDisk(t, env, "1M"), export.Config{})
	in := blocktest.Open(t, env, s.with(block.Values{"reconnect": "1"}), nil)
	c := blocktest.NewClient(t, blocktest.Edge(t, in))
	s.stop()
	if err := c.Write(0, 0, make([]byte, 4096)); err == nil {
		t.Error("a write to nobody succeeded")
	}
	if text := fmt.Sprint(in.Info().Abilities.Explain()); !bytes.Contains([]byte(text), []byte("was not back within 1 s")) {
		t.Errorf("%s", text)
	}
}

// Closing does not wait for a server that is gone.
func TestCloseWithoutServer(t *testing.T) {
	env := blocktest.NewEnv(t)
	s := serve(t, memDisk(t, env, "1M"), export.Config{})
	in := blocktest.Open(t, env, s.with(block.Values{"reconnect": "80000"}), nil)
	_ = in // closed when the test ends, after the server
	s.stop()
}
