package queue

import (
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/engine"
	"github.com/platter-storage/platter/internal/rawio"
	"github.com/platter-storage/platter/virtio"
)

// pollNoKick is how often a ring without a kick descriptor is looked at.
const pollNoKick = 100 * time.Microsecond

// lookClock is how many looks there are to one look at the clock, which costs
// as much as all of them. A power of two.
const lookClock = 8

// loop is what only the loop touches.
type loop struct {
	waiting []*order // those that wait until nothing is in flight
	closing bool
	gone    chan struct{} // closed when the loop has ended
	endErr  error         // how

	// The ring.
	ring    *virtio.Ring
	layout  virtio.Layout
	mem     *virtio.Map
	dirty   *virtio.Log
	enabled bool
	broken  bool
	kickFd  int
	callFd  int
	errFd   int
	chain   virtio.Chain // as Pop found it
	request virtio.BlkRequest
	disk    virtio.BlkDisk
	unkept  bool   // the elements of request are still in it: its slot had no room
	pushed  int    // used entries that are not published
	base    uint32 // where the last ring that was given up can go on

	// The storage.
	eng    engine.Queue
	kind   engine.Kind
	leaf   block.Leaf   // where mappings lead
	file   *engine.File // its file, nil where it is reached through leaf
	sync   bool         // file makes writes durable that are to be
	gather []*rawio.IO  // for leaf
	ioDone func(*rawio.IO)
	leafIO func(*rawio.IO)
	away   int            // requests that leaf has, gathered ones included
	chosen bool           // the engine is what the storage wants, or cannot be had
	files  []*engine.File // those that the engine has seen
	reason atomic.Pointer[string]

	held     int   // the slot that has to wait before it can begin, none
	heldTill int64 // when to ask the limiter again

	// Rest.
	poll      poller
	at        int64  // when the batch began
	inPlace   uint64 // requests of this batch that were served in place
	idleSince int64  // 0: not idle
	lookFor   int64
	looks     uint32

	one           [1][]byte
	deaf          bool // the call descriptor was complained about
	nextComplaint int64
	unsaid        int
	nextRefusal   int64

	ringHook func(virtio.Step) // for tests; nil in production
	hook     func(point)       // as well
}

// A point is one that a crash may come at, beside the steps of a ring.
type point uint8

const (
	pointSubmitted point = iota // the batch is the kernel's
	pointAnswered               // a status byte was written, and no used entry
	pointLogged                 // and what was written is marked in the dirty log
	pointPublished              // the guest sees the batch, and was not called
)

func (q *Queue) passed(p point) {
	if q.hook != nil {
		q.hook(p)
	}
}

// none is held where no slot is.
const none = -1

// run is the loop's goroutine.
func (q *Queue) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	debug.SetPanicOnFault(true) // guest memory may go away under us
	if err := q.prepare(); err != nil {
		started <- err
		return
	}
	started <- nil
	busyLoops.Add(1)
	q.serve()
	busyLoops.Add(-1)
	q.endErr = q.release()
	close(q.gone)
}

// prepare makes what the loop needs, on its thread.
func (q *Queue) prepare() error {
	q.kickFd, q.callFd, q.errFd, q.held = -1, -1, -1, none
	q.chain.In = make([][]byte, 0, virtio.MaxSegs)
	q.chain.Out = make([][]byte, 0, virtio.MaxSegs)
	q.gather = make([]*rawio.IO, 0, q.table.depth())
	q.ioDone, q.leafIO = q.fileDone, q.leafDone
	if q.cfg.Poll > 0 {
		q.poll.most = int64(q.cfg.Poll)
		q.poll.budget = q.poll.most
	}
	if err := q.open(engine.Inline, "nothing goes to a file: the disk is served in place or by workers"); err != nil {
		return err
	}
	q.meetStorage()
	return nil
}

// serve is the loop: obey, then a batch, and rest where there was none.
func (q *Queue) serve() {
	for {
		if (q.ordered.Load() || len(q.waiting) > 0) && !q.obey() {
			return
		}
		if q.step() > 0 {
			q.idleSince = 0
			continue
		}
		q.rest()
	}
}

// step is one batch: what has come back, what is new, one system call for what
// goes to the file, and one publication of what has ended.
func (q *Queue) step() int {
	n := q.takeBack()
	n += q.eng.Reap(0)
	n += q.takeNew()
	if q.eng.InFlight() > 0 || len(q.gather) > 0 {
		q.submit()
		q.at = 0
		n += q.eng.Reap(0) // what the page cache had is there at once
	}
	q.publish()
	return n
}

// submit hands the batch to the kernel.
func (q *Queue) submit() {
	_ = q.eng.Submit() // refused requests carry the error
	if len(q.gather) > 0 {
		q.leaf.Submit(q.gather)
		q.gather = q.gather[:0]
	}
	q.passed(pointSubmitted)
}

// quiet says that nothing is in flight and all is published.
func (q *Queue) quiet() bool { return q.table.used == 0 && q.pushed == 0 }

// rest follows a step that found nothing: look again for a while, then sleep.
func (q *Queue) rest() {
	if q.idleSince == 0 {
		q.idleSince = q.now()
		q.looks = 0
		if q.lookFor = q.poll.limit(q.eng.InFlight() > 0); q.lookFor > 0 {
			q.counts.looks.Add(1)
		}
	}
	if q.lookFor > 0 {
		if q.looks++; q.looks&(lookClock-1) != 0 || q.now()-q.idleSince < q.lookFor {
			return
		}
		q.poll.missed()
		q.counts.missed.Add(1)
	}
	q.sleep()
	q.idleSince = 0
}

// sleep waits for a kick, a completion, a worker or an order.
func (q *Queue) sleep() {
	if q.arm() {
		return
	}
	q.asleep.Store(true)
	if q.ordered.Load() || q.done.n.Load() > 0 {
		q.asleep.Store(false)
		return
	}
	q.counts.sleeps.Add(1)
	from := q.now()
	busyLoops.Add(-1)
	if q.eng.Wait(q.patience(from)) != nil {
		time.Sleep(time.Millisecond) // waiting is broken: go on without, slowly
	}
	busyLoops.Add(1)
	q.asleep.Store(false)
	q.poll.slept(q.now() - from)
	q.disarm()
}

// patience is for how long to sleep at most: without limit, but where the
// limiter said when to ask again, or where there is nothing to be woken by.
func (q *Queue) patience(now int64) time.Duration {
	switch {
	case q.held != none && q.heldTill > 0:
		return time.Duration(max(q.heldTill-now, 1))
	case q.kickFd < 0 && q.taking():
		return pollNoKick
	}
	return -1
}

// taking says whether new requests are taken.
func (q *Queue) taking() bool {
	return q.ring != nil && q.enabled && !q.broken && len(q.waiting) == 0
}

// arm asks the guest for a kick. True: there is more already.
func (q *Queue) arm() (more bool) {
	if !q.taking() || q.held != none || q.table.free < 0 {
		return false // what ends will be the reason to go on
	}
	defer q.ringFault("looking for requests")
	if more = q.ring.Arm(); more {
		q.ring.Disarm()
	}
	return more
}

// disarm spares the guest the kicks while the loop looks by itself.
func (q *Queue) disarm() {
	if q.ring == nil || q.broken {
		return
	}
	defer q.ringFault("looking for requests")
	q.ring.Disarm()
}

// release ends what prepare made. Nothing is in flight.
func (q *Queue) release() error {
	q.work.close()
	q.wakeMu.Lock()
	for _, f := range q.files {
		q.eng.Forget(f) // it may be closed as soon as this queue is
	}
	err := q.eng.Close()
	q.eng = nil
	q.wakeMu.Unlock()
	q.bq.Close()
	q.table.close()
	ReserveProcs(-1)
	return err
}
