package main

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/bench/content"
	"github.com/platter-storage/platter/bench/process"
	"github.com/platter-storage/platter/bench/sample"
	"github.com/platter-storage/platter/internal/sys"
	"github.com/platter-storage/platter/virtio"
)

// answerTimeout bounds each answer to a message, and stuckAfter how long a
// server may take over the rest of its requests when a run is over.
const (
	answerTimeout = 30 * time.Second
	stuckAfter    = 30 * time.Second
)

// workload is what a client asks of a server.
type workload struct {
	write  bool
	random bool // otherwise in order, from the start again at the end
	block  int  // bytes a request
	depth  int  // requests in flight, each queue
	queues int
	// streams: each request in flight follows a sequence of its own, as that
	// many readers do.
	streams bool
	pinned  bool // client and server share one processor
	// polls: the client looks at its ring instead of sleeping, as a machine
	// does that is awake anyway, and wants no calls.
	polls bool
}

// loader drives one queue from one thread, with as little work a request as it
// can: client and server share the processors. It waits in the kernel, in a
// read of the call descriptor.
type loader struct {
	index      int
	w          workload
	size       int64
	mem        []byte
	drv        *virtio.Driver
	kick, call int
	rng        *rand.PCG
	slots      []slot
	byID       [queueSize]uint16
	next       int64
	disk       content.Content // nil: any bytes are written, and those read are not looked at
	want       []byte
	late       atomic.Bool
	waits      int64

	lat  sample.Latency
	done int64
}

// slot is a request that is in flight or about to be.
type slot struct {
	off      int64
	next     int64 // of its stream, in blocks
	sent     time.Time
	head     []byte
	data     []byte
	out, in  []virtio.Seg
	statusOf []byte
}

// newLoader lays a queue out in mem, which the server sees at.
func newLoader(index int, size int64, mem []byte, at uint64, w workload) (*loader, error) {
	desc, driver, device := virtio.AreaSizes(queueSize, features)
	layout := virtio.Layout{Size: queueSize, Features: features, Desc: mem[:desc]}
	layout.Driver = mem[pages(desc):][:driver]
	layout.Device = mem[pages(desc)+pages(driver):][:device]
	l := &loader{index: index, w: w, size: size, mem: mem, kick: -1, call: -1, rng: rand.NewPCG(uint64(index)+1, 1), slots: make([]slot, w.depth), want: make([]byte, w.block)}
	var err error
	if l.drv, err = virtio.NewDriver(layout, virtio.Tables{}); err != nil {
		return nil, err
	}
	ring, room, _ := room(w)
	for i := range l.slots {
		l.lay(i, ring+i*room, guestBase+at)
	}
	if l.kick, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, err
	}
	if l.call, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
		return nil, errors.Join(err, unix.Close(l.kick))
	}
	return l, nil
}

// lay prepares slot i, whose memory is at in the queue's.
func (l *loader) lay(i, at int, base uint64) {
	s := &l.slots[i]
	s.data = l.mem[at:][:l.w.block]
	head := at + pages(l.w.block)
	s.head, s.statusOf = l.mem[head:][:16], l.mem[head+statusAt:][:1]
	content.Pattern(7)(s.data, 0)
	data := virtio.Seg{Addr: base + uint64(at), Len: uint32(l.w.block)}
	s.out = []virtio.Seg{{Addr: base + uint64(head), Len: 16}}
	s.in = []virtio.Seg{{Addr: base + uint64(head) + statusAt, Len: 1}}
	if l.w.write {
		s.out = append(s.out, data)
	} else {
		s.in = []virtio.Seg{data, s.in[0]}
	}
	s.next = int64(i) * (l.blocks() / int64(l.w.depth))
}

func (l *loader) blocks() int64 { return l.size / int64(l.w.block) }

// run keeps depth requests in flight until the time is over or total requests
// have been sent (0: no such limit), and then takes in what is left.
func (l *loader) run(until time.Time, total int64) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if l.w.pinned {
		undo, err := process.PinThread()
		if err != nil {
			return err
		}
		defer undo()
	}
	watch := time.AfterFunc(time.Until(until)+stuckAfter, func() {
		l.late.Store(true)
		_ = sys.SignalEvent(l.call) // it is open until run has returned
	})
	defer watch.Stop()
	sent := int64(0)
	now := time.Now()
	for i := range l.slots {
		if total == 0 || sent < total {
			l.post(i, now)
			sent++
		}
	}
	for l.show(); l.drv.Out() > 0; l.show() {
		n, err := l.reap(until, total, &sent)
		if err != nil {
			return err
		}
		if n == 0 {
			if err := l.await(); err != nil {
				return err
			}
		}
	}
	return nil
}

// show tells the server of what was posted, if it wants to be told.
func (l *loader) show() {
	if l.drv.Kick() {
		_ = sys.SignalEvent(l.kick) // it is open until run has returned
	}
}

// await passes the time until there may be more to take in.
func (l *loader) await() error {
	switch {
	case l.w.polls && l.late.Load():
		return l.stuck()
	case l.w.polls || l.drv.Arm():
		return nil
	}
	return l.wait()
}

func (l *loader) stuck() error {
	return fmt.Errorf("%d requests were not done %v after the end", l.drv.Out(), stuckAfter)
}

// wait sleeps until the server calls.
func (l *loader) wait() error {
	var b [8]byte
	l.waits++
	for {
		_, err := unix.Read(l.call, b[:])
		switch {
		case err == unix.EINTR:
		case err != nil:
			return fmt.Errorf("waiting for a call: %w", err)
		case l.late.Load():
			return l.stuck()
		default:
			return nil
		}
	}
}

// post puts slot i's next request into the ring.
func (l *loader) post(i int, now time.Time) {
	s := &l.slots[i]
	s.off, s.sent = l.place(s), now
	op := virtio.BlkIn
	if l.w.write {
		op = virtio.BlkOut
		if l.disk != nil {
			l.disk(s.data, s.off)
		}
	}
	header(s.head, op, s.off)
	s.statusOf[0] = 0xff
	id, ok := l.drv.Add(s.out, s.in, false)
	if !ok {
		panic("the ring has room for all slots")
	}
	l.byID[id] = uint16(i)
}

// place is where a slot's next request goes: a multiple of its length.
func (l *loader) place(s *slot) int64 {
	n := l.blocks()
	at := int64(0)
	switch {
	case l.w.random:
		at = int64(l.rng.Uint64() % uint64(n))
	case l.w.streams:
		at = s.next % n
		s.next++
	default:
		at = l.next % n
		l.next++
	}
	return at * int64(l.w.block)
}

// reap takes in what is done, and posts anew.
func (l *loader) reap(until time.Time, total int64, sent *int64) (n int, err error) {
	now := time.Time{}
	for {
		id, _, ok, err := l.drv.Next()
		if err != nil || !ok {
			return n, err
		}
		if n == 0 {
			now = time.Now()
		}
		n++
		i := int(l.byID[id])
		s := &l.slots[i]
		if err := l.check(s); err != nil {
			return n, err
		}
		l.lat.Add(now.Sub(s.sent))
		l.done++
		if now.Before(until) && (total == 0 || *sent < total) {
			l.post(i, now)
			*sent++
		}
	}
}

// check looks at the status, and at what was read where that is known.
func (l *loader) check(s *slot) error {
	if st := s.statusOf[0]; st != virtio.BlkOK {
		return fmt.Errorf("request of %d bytes at %d failed with status %d", l.w.block, s.off, st)
	}
	if l.w.write || l.disk == nil {
		return nil
	}
	l.disk(l.want, s.off)
	if !bytes.Equal(l.want, s.data) {
		return fmt.Errorf("read of %d bytes at %d: other data than the disk holds", l.w.block, s.off)
	}
	return nil
}

// load is one run of a workload.
type load struct {
	ops  int64
	took time.Duration
	lat  sample.Latency
}

// run drives every queue for d, or for total requests each.
func (c *client) run(d time.Duration, total int64, disk content.Content) (load, error) {
	start := time.Now()
	errs := make([]error, len(c.loaders))
	var wg sync.WaitGroup
	for i, l := range c.loaders {
		l.disk = disk
		wg.Go(func() { errs[i] = l.run(start.Add(d), total) })
	}
	wg.Wait()
	out := load{took: time.Since(start)}
	for _, l := range c.loaders {
		out.ops += l.done
		out.lat.Merge(&l.lat)
	}
	return out, errors.Join(errs...)
}

// askEvery is how often the configuration space is asked for beside a load.
const askEvery = 2 * time.Millisecond

// ask asks for the configuration space again and again until stop, and counts
// how long each answer takes.
func (c *client) ask(stop *atomic.Bool) (lat sample.Latency, err error) {
	for !stop.Load() {
		began := time.Now()
		if _, err := c.GetConfig(0, 60); err != nil {
			return lat, err
		}
		lat.Add(time.Since(began))
		time.Sleep(askEvery)
	}
	return lat, nil
}

// runAsking is run, with the latencies of GET_CONFIG instead of the requests'.
func (c *client) runAsking(d time.Duration, disk content.Content) (load, error) {
	var stop atomic.Bool
	var lat sample.Latency
	var err error
	var asking sync.WaitGroup
	asking.Go(func() { lat, err = c.ask(&stop) })
	out, bad := c.run(d, 0, disk)
	stop.Store(true)
	asking.Wait()
	out.lat = lat
	return out, errors.Join(bad, err)
}
