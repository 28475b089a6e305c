package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/virtio"
)

// Limits of Config.
const (
	DefaultDepth = 128  // requests in flight in one queue
	MaxDepth     = 1024 // and the most
)

// Config describes a queue. It is not changed after Start.
type Config struct {
	Child *block.Child      // the disk
	Group *block.QueueGroup // where its requests are counted
	Env   *block.Env
	Name  string // what log lines call the disk
	Index int    // the queue's number in its device

	// Depth is how many requests may be in flight, 0 means DefaultDepth. What
	// the ring has beyond it stays there until a slot is free.
	Depth int
	// Workers is how many of them may block in the slow lane at once, 0 means
	// DefaultWorkers.
	Workers int
	// Poll is for how long the loop looks for more before it sleeps; 0 means
	// DefaultPoll, negative never.
	Poll time.Duration
	// Serial is what GET_ID answers with, cut to virtio.BlkIDSize bytes.
	Serial string
	// Limiter holds requests back; nil lets all pass.
	Limiter Limiter
	// Log hears what people who operate the program should know.
	Log *slog.Logger
}

// Limiter holds requests back that come too fast. Several queues may share
// one: its method is called from their loops, must not wait, and must not
// allocate.
type Limiter interface {
	// Admit asks for a request of n bytes at nowNs of the environment's
	// clock. 0 admits it and counts it; otherwise it is not counted and the
	// queue asks again after waitNs nanoseconds. Requests are asked for in
	// the order in which they came.
	Admit(op block.Op, n, nowNs int64) (waitNs int64)
}

// Vring is a virtqueue to serve. Descriptors stay the caller's, who keeps them
// open until the queue has others in their place or has stopped; -1 is none: a
// ring without Kick is looked at every pollNoKick, one without Call calls
// nobody.
type Vring struct {
	Layout virtio.Layout // where it lies, and the ring features that were negotiated
	Base   uint32        // where it goes on, as Stop returned it; virtio.StartBase of a fresh ring
	Map    *virtio.Map   // guest memory
	// Disk is what requests are checked against: the device's features as
	// negotiated and its limits. Its Capacity is the disk's size at any time.
	Disk virtio.BlkDisk

	Kick, Call, Err int

	// Log hears which pages were written, nil where nobody asks. RingLog says
	// where the ring's own pages are in it.
	Log     *virtio.Log
	RingLog RingLog

	// Record, where it has memory, outlives this process. What it lists as in
	// flight is taken up again, once each, before anything new.
	Record Record
}

// Record is this queue's part of the buffer that in-flight records are kept in,
// for the kind of ring that it serves. Only the queue touches it: the file behind
// it may be cut short at any time.
type Record struct {
	Mem  []byte // virtio.InflightSize; none: nothing is kept
	Size uint16 // descriptors of the rings that the buffer was made for
}

// RingLog says where a ring lies in a dirty log.
type RingLog struct {
	On           bool   // writes to the ring are logged, too
	Desc, Device uint64 // guest physical addresses of Layout.Desc and Layout.Device
}

// Queue serves a virtqueue.
type Queue struct {
	cfg  Config
	name string // of disk and queue, for log lines
	log  *slog.Logger

	child  *block.Child
	bq     *block.Queue
	now    func() int64
	table  table
	work   *workers
	done   doneList // slots that workers, or an engine shared with others, have ended
	asleep atomic.Bool

	// writeback: the guest flushes; otherwise each write is durable when it
	// ends.
	writeback atomic.Bool
	counts    counters
	inFlight  atomic.Int32
	state     atomic.Uint32 // of the ring, for Stats

	mu      sync.Mutex
	orders  []*order
	ordered atomic.Bool // there are some
	ended   bool

	wakeMu sync.Mutex // held while the engine is woken from outside, and while it is replaced

	loop
}

// Start makes a queue and its loop. It has no ring yet.
func Start(cfg Config) (*Queue, error) {
	cfg, err := cfg.checked()
	if err != nil {
		return nil, err
	}
	q := &Queue{cfg: cfg, name: fmt.Sprintf("%s: queue %d", cfg.Name, cfg.Index), child: cfg.Child, now: cfg.Env.Now, done: newDoneList(cfg.Depth)}
	q.log, q.gone = cfg.Log, make(chan struct{})
	q.writeback.Store(true)
	if err := q.table.init(cfg.Depth); err != nil {
		return nil, fmt.Errorf("%s: %w", q.name, err)
	}
	q.bq = block.NewQueue(cfg.Env, cfg.Group)
	q.bq.OwnErrors() // they are looked at before the slot is used again
	for i := range q.table.refs {
		q.table.refs[i].rq = q.bq.Begin()
	}
	q.work = newWorkers(cfg.Workers, cfg.Depth, cfg.Env.Go, q.runSlow)
	ReserveProcs(1)
	started := make(chan error, 1)
	cfg.Env.Go(func() { q.run(started) })
	if err := <-started; err != nil {
		ReserveProcs(-1)
		q.bq.Close()
		q.table.close()
		return nil, fmt.Errorf("%s: %w", q.name, err)
	}
	return q, nil
}

// checked fills in defaults.
func (c Config) checked() (Config, error) {
	if c.Depth == 0 {
		c.Depth = DefaultDepth
	}
	if c.Workers == 0 {
		c.Workers = DefaultWorkers
	}
	if c.Poll == 0 {
		c.Poll = DefaultPoll
	}
	if c.Log == nil {
		c.Log = c.Env.Log
	}
	switch {
	case c.Depth < 1 || c.Depth > MaxDepth:
		return c, fmt.Errorf("%s: a queue depth of %d is out of range: 1 to %d", c.Name, c.Depth, MaxDepth)
	case c.Workers < 1 || c.Workers > MaxWorkers:
		return c, fmt.Errorf("%s: %d workers of a queue are out of range: 1 to %d", c.Name, c.Workers, MaxWorkers)
	case c.Poll > MaxPoll:
		return c, fmt.Errorf("%s: polling for %v is out of range: at most %v", c.Name, c.Poll, MaxPoll)
	}
	return c, nil
}

// Attach gives the queue a ring. It must have none. Requests are taken once it
// is enabled, those that v.Inflight lists first.
func (q *Queue) Attach(v Vring) error {
	return q.command(context.Background(), true, func() error { return q.attach(v) })
}

// Enable lets the queue take requests, or stops it from that. When it returns
// no more are taken; those in flight end and are published all the same.
func (q *Queue) Enable(on bool) error {
	return q.command(context.Background(), false, func() error { q.setEnabled(on); return nil })
}

// SetKick replaces the descriptor by which the guest says that there is more.
func (q *Queue) SetKick(fd int) error {
	return q.command(context.Background(), false, func() error { return q.setKick(fd) })
}

// SetCall replaces the descriptor by which the guest is told of used entries.
// It is signalled once: what the guest was told on the old one may be lost.
func (q *Queue) SetCall(fd int) error {
	return q.command(context.Background(), false, func() error { q.callFd = fd; q.call(); return nil })
}

// SetErr replaces the descriptor that is signalled when the ring breaks.
func (q *Queue) SetErr(fd int) error {
	return q.command(context.Background(), false, func() error { q.errFd = fd; return nil })
}

// SetLog replaces the dirty log, nil ends logging.
func (q *Queue) SetLog(l *virtio.Log, ring RingLog) error {
	return q.command(context.Background(), false, func() error { q.setLog(l, ring); return nil })
}

// SetWriteback says whether the guest flushes. Without, each write is durable
// when it ends. It holds for what is taken from now on.
func (q *Queue) SetWriteback(on bool) { q.writeback.Store(on) }

// SetMap replaces guest memory, and with it where the ring lies. It waits until
// nothing in flight touches the old memory, in either lane, and takes nothing
// new meanwhile: when it returns nil the old memory may be unmapped. If ctx
// ends first the order stands, and both must stay until the queue has stopped.
// The ring's areas lie at desc, driver and device in the new memory; a queue
// without a ring needs none of it.
//
// Memory that is only added waits for nothing: where m has all that the queue
// has at the same addresses, and the ring stays where it is, requests in flight
// go on.
func (q *Queue) SetMap(ctx context.Context, m *virtio.Map, desc, driver, device []byte) error {
	added := false
	err := q.command(ctx, false, func() error { added = q.addMemory(m, desc, driver, device); return nil })
	if err != nil || added {
		return err
	}
	return q.command(ctx, true, func() error { return q.setMap(m, desc, driver, device) })
}

// Drain waits until nothing is in flight. Taking goes on afterwards.
func (q *Queue) Drain(ctx context.Context) error {
	return q.command(ctx, true, func() error { return nil })
}

// Stop takes nothing more, waits until all that is in flight has ended and is
// published, and gives the ring up. base is where it can be attached again; of
// a queue that has none, where its last one can. If ctx ends first the queue
// stops later, and Stop can be called again to wait on. A ring that broke stops
// all the same. The next ring that is attached is not enabled.
func (q *Queue) Stop(ctx context.Context) (base uint32, err error) {
	err = q.command(ctx, true, func() error { base = q.detach(); return nil })
	return base, err
}

// Close stops the queue and ends its loop and its workers. The caller closes
// the edge when it has returned nil. If ctx ends first it can be called again,
// to wait on.
func (q *Queue) Close(ctx context.Context) error {
	err := q.command(ctx, true, func() error {
		q.detach()
		q.closing = true
		return nil
	})
	if err != nil && !errors.Is(err, ErrClosed) {
		return err
	}
	select {
	case <-q.gone:
		return q.endErr
	case <-ctx.Done():
		return fmt.Errorf("%s: its loop has not ended: %w", q.name, ctx.Err())
	}
}

// State is what a queue's ring is doing.
type State uint32

// The states.
const (
	Detached State = iota // it has no ring
	Disabled              // it has one and takes nothing
	Enabled               // it serves
	Broken                // the guest has damaged the ring: it takes nothing until it is attached anew
)

var stateNames = [...]string{"detached", "disabled", "enabled", "broken"}

// String is the state's name in statistics.
func (s State) String() string { return stateNames[s] }

// Stats are a queue's counters. Requests, bytes, errors, latencies and the ways
// that requests took are with the Group.
type Stats struct {
	State    State
	InFlight int // requests taken and not yet published
	Counts
}

// Stats never waits, whatever the disk does.
func (q *Queue) Stats() Stats {
	return Stats{State(q.state.Load()), int(q.inFlight.Load()), q.counts.snapshot()}
}

// Reason says in sentences how the queue reaches the storage, and why.
func (q *Queue) Reason() string {
	if p := q.reason.Load(); p != nil {
		return *p
	}
	return ""
}
