package engine

import (
	"fmt"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/internal/rawio"
	"github.com/platter-storage/platter/internal/sys"
)

// watchTag marks completions of watched descriptors; the rest of the tag is
// the watch's place and generation. ignoreTag is for what needs no answer.
const (
	watchTag  = 1 << 63
	ignoreTag = 1<<64 - 1
)

const regFiles = 64 // places in a ring's table of registered files

// uring is a ring.
type uring struct {
	mem     uringMem
	table   table
	pending uint32 // prepared entries that the kernel has not taken
	tail    uint32 // ours, ahead of the published one

	files      [regFiles]*File
	nFiles     int // places in use, from the first
	haveFiles  bool
	lastFile   *File // where place found it
	lastPlace  int
	fd         int     // the ring
	enterFd    int     // the ring, as uringEnter wants it
	enterFlags uintptr // enterRegisteredRing or 0

	refused doneList
	watches [1 + MaxWatch]watch // the first is that of wakeFd
	deaf    error               // why a watch, perhaps that of wakeFd, is lost
	stats   Stats

	waitArg  getEventsArg // points at waitTime
	waitTime timespec
	holds    bool         // short waits keep the scheduler's processor
	holdArg  getEventsArg // points at holdTime
	holdTime timespec
	params   uringParams
	wakeFd   int
	notify   int // eventfd or -1
}

type watch struct {
	fired func()
	fd    int32
	gen   uint32
	lost  bool // the kernel has ended the poll, and it could not be armed again
}

func (r *uring) Depth() int    { return len(r.table.ios) }
func (r *uring) InFlight() int { return r.table.busy() + int(r.refused.n.Load()) }

// Prep fills in a submission entry.
func (r *uring) Prep(io *rawio.IO, f *File) bool {
	slot, tag, ok := r.table.take(io)
	if !ok {
		return false
	}
	if len(io.Vec) > MaxVec {
		r.refuse(slot, syscall.EINVAL)
		return true
	}
	e := r.entry()
	*e = sqe{userData: tag, fd: int32(f.fd), off: uint64(io.Off)}
	if place := r.place(f); place >= 0 {
		e.fd, e.flags = int32(place), sqeFixedFile
	}
	switch io.Kind {
	case rawio.Read:
		r.transfer(e, slot, io.Vec, opRead, opReadv)
	case rawio.Write:
		r.transfer(e, slot, io.Vec, opWrite, opWritev)
		if io.Sync {
			e.opFlags = unix.RWF_DSYNC
		}
	case rawio.Fsync:
		e.opcode, e.off, e.opFlags = opFsync, 0, fsyncDatasync
	}
	return true
}

// transfer chooses between the two ways to name memory.
func (r *uring) transfer(e *sqe, slot uint32, vec [][]byte, plain, vectored uint8) {
	if len(vec) != 1 {
		e.opcode, e.addr, e.len = vectored, uint64(r.table.iov.fill(slot, vec)), uint32(len(vec))
		return
	}
	b := vec[0]
	e.opcode, e.addr, e.len = plain, uint64(sys.Addr(b)), uint32(min(len(b), maxTransfer))
}

// place is f's place in the table of registered files, -1 if it has none.
func (r *uring) place(f *File) int {
	if f == r.lastFile {
		return r.lastPlace
	}
	r.lastFile, r.lastPlace = f, -1
	if f.flags&Registrable == 0 || !r.haveFiles {
		return -1
	}
	empty := -1
	for i, g := range r.files[:r.nFiles] {
		if g == f {
			r.lastPlace = i
			return i
		}
		if g == nil {
			empty = i
		}
	}
	r.lastPlace = r.registerFile(f, empty)
	return r.lastPlace
}

func (r *uring) registerFile(f *File, place int) int {
	if place < 0 {
		place = r.nFiles
	}
	if place == regFiles || uringSetFile(r.fd, place, f.fd) != 0 {
		return -1
	}
	r.files[place] = f
	r.nFiles = max(r.nFiles, place+1)
	return place
}

// Forget empties f's place in the table of registered files.
func (r *uring) Forget(f *File) {
	if r.lastFile == f {
		r.lastFile = nil
	}
	if i := slices.Index(r.files[:r.nFiles], f); i >= 0 {
		uringSetFile(r.fd, i, -1)
		r.files[i] = nil
	}
}

// entry is the next submission entry. There is always one: no more than Depth
// requests are pending, and watches are submitted at once.
func (r *uring) entry() *sqe {
	e := &r.mem.sqes[r.tail&r.mem.sqMask]
	r.tail++
	r.pending++
	return e
}

// refuse ends a request that the kernel does not get or does not take.
func (r *uring) refuse(slot uint32, errno syscall.Errno) {
	io := r.table.drop(slot)
	setResult(io, -int(errno))
	r.stats.Refused++
	r.refused.add(io)
}

// Submit publishes what is prepared and enters the kernel once.
func (r *uring) Submit() error {
	if r.pending == 0 {
		return nil
	}
	r.mem.sqTail.Store(r.tail)
	var back backoff
	for r.pending > 0 {
		n, errno := uringEnter(r.enterFd, r.pending, 0, r.enterFlags)
		r.stats.Syscalls++
		if errno == 0 && n > 0 {
			r.pending -= uint32(n)
			continue
		}
		if errno == syscall.EBUSY {
			r.enterNow() // the completion ring is full: let it take what overflowed
		}
		r.stats.Retries++
		if !transient(errno) || !back.again() {
			return r.refusePending(errno)
		}
	}
	return nil
}

// refusePending takes back the entries that the kernel did not take.
func (r *uring) refusePending(errno syscall.Errno) error {
	if errno == 0 {
		errno = syscall.EAGAIN
	}
	n := r.pending
	first := r.tail - n
	for i := first; i != r.tail; i++ {
		e := &r.mem.sqes[i&r.mem.sqMask]
		if e.userData&watchTag == 0 {
			r.refuse(uint32(e.userData), errno)
		}
	}
	r.tail, r.pending = first, 0
	r.mem.sqTail.Store(r.tail)
	return fmt.Errorf("io_uring: the kernel did not take %d requests: %w", n, errno)
}

// enterNow lets the kernel post what it has kept back. It does not block.
func (r *uring) enterNow() {
	_, _ = uringEnter(r.enterFd, 0, 0, r.enterFlags|enterGetEvents) // the next call sees what is wrong
}

// Reap reads the completion ring.
func (r *uring) Reap(limit int) int {
	limit = reapLimit(limit)
	n := 0
	for io := r.refused.next(); io != nil; io = r.refused.next() {
		finish(io)
		if n++; n == limit {
			return n
		}
	}
	if r.mem.sqFlags.Load()&(sqTaskrun|sqCQOverflow) != 0 {
		r.enterNow()
	}
	head, tail := r.mem.cqHead.Load(), r.mem.cqTail.Load()
	if head == tail {
		return n
	}
	for ; head != tail && n != limit; head++ {
		c := r.mem.cqes[head&r.mem.cqMask]
		if c.userData&watchTag != 0 {
			r.watchFired(c)
			continue
		}
		if io := r.table.end(c.userData); io != nil {
			setResult(io, int(c.res))
			finish(io)
			n++
		}
	}
	r.mem.cqHead.Store(head)
	return n
}

// ready says whether Reap would find something.
func (r *uring) ready() bool {
	return r.mem.cqHead.Load() != r.mem.cqTail.Load() || r.refused.n.Load() > 0 ||
		r.mem.sqFlags.Load()&(sqTaskrun|sqCQOverflow) != 0
}

// Wait enters the kernel until a completion is posted. It does not where a
// watch is lost and cannot be armed again now either: the sleeper would not hear
// of what is written there.
func (r *uring) Wait(timeout time.Duration) error {
	if r.ready() || timeout == 0 {
		return nil
	}
	if r.deaf != nil {
		r.deaf = r.armLost()
	}
	if r.deaf != nil {
		return fmt.Errorf("io_uring: a watched descriptor is not heard any more: %w", r.deaf)
	}
	var arg *getEventsArg
	if timeout > 0 {
		arg = &r.waitArg
		r.waitTime = timespec{int64(timeout / time.Second), int64(timeout % time.Second)}
	}
	if r.holds && (timeout < 0 || timeout > holdFor) && r.waitHolding() {
		return nil
	}
	errno := uringWait(r.enterFd, r.enterFlags, arg)
	switch errno {
	case 0, syscall.ETIME, syscall.EINTR:
		return nil
	case syscall.EAGAIN, syscall.EBUSY: // short of something: the owner looks again, but does not spin
		time.Sleep(100 * time.Microsecond)
		return nil
	}
	return fmt.Errorf("io_uring: waiting for completions: %w", errno)
}

// Wake is Queue's.
func (r *uring) Wake() { wakeEventfd(r.wakeFd) }

// holdFor is how long the owner of a queue waits without telling the scheduler.
// Telling it wakes the runtime's monitor, which then looks every 20 us what has
// become of the thread; after a few milliseconds of nothing that does not matter
// any more. To stop the world the runtime interrupts the wait with a signal.
const holdFor = 5 * time.Millisecond

// waitHolding waits for at most holdFor. True: there may be something.
func (r *uring) waitHolding() bool {
	r.holdTime = timespec{0, int64(holdFor)}
	errno := uringWaitHolding(r.enterFd, r.enterFlags, &r.holdArg)
	return errno == 0 || errno == syscall.EINTR || r.ready()
}

// Watch adds a multishot poll to the ring. The entry is submitted at once.
func (r *uring) Watch(fd int, fired func()) error {
	for i := range r.watches {
		w := &r.watches[i]
		if w.fired == nil {
			w.fired, w.fd = fired, int32(fd)
			w.gen++
			err := r.arm(i)
			if err != nil {
				w.fired = nil // the place is free again
			}
			return err
		}
	}
	return fmt.Errorf("io_uring: a queue watches at most %d descriptors", MaxWatch)
}

func (r *uring) arm(i int) error {
	w := &r.watches[i]
	if err := r.Submit(); err != nil {
		return err
	}
	*r.entry() = sqe{opcode: opPollAdd, fd: w.fd, len: pollAddMulti, opFlags: unix.POLLIN, userData: w.tag(i)}
	return r.Submit()
}

// armLost arms the watches that are lost. What was written meanwhile is heard
// then: a poll begins with what is there.
func (r *uring) armLost() error {
	for i := range r.watches {
		w := &r.watches[i]
		if !w.lost || w.fired == nil {
			continue
		}
		if err := r.arm(i); err != nil {
			return err
		}
		w.lost = false
	}
	return nil
}

func (w *watch) tag(i int) uint64 { return watchTag | uint64(w.gen&genMask)<<16 | uint64(i) }

// watchFired runs a watch's function, and arms it again if the kernel has
// ended the multishot poll, as it does when the completion ring is full. After
// an error there is nothing to wait for. A ring that cannot arm is deaf until
// Wait can.
func (r *uring) watchFired(c cqe) {
	i := int(c.userData & 0xffff)
	if c.userData == ignoreTag || i >= len(r.watches) || r.watches[i].fired == nil || r.watches[i].tag(i) != c.userData {
		return
	}
	r.watches[i].fired()
	if c.flags&cqeMore != 0 {
		return
	}
	if c.res >= 0 {
		if err := r.arm(i); err != nil {
			r.watches[i].lost, r.deaf = true, err
		}
	} else if r.watches[i].fd == int32(r.wakeFd) {
		r.watches[i].lost, r.deaf = true, syscall.Errno(-c.res)
	}
}

// Unwatch removes the poll.
func (r *uring) Unwatch(fd int) {
	for i := range r.watches {
		w := &r.watches[i]
		if w.fired != nil && w.fd == int32(fd) {
			w.fired, w.lost = nil, false
			_ = r.Submit() // makes room; what was refused is told by Reap
			*r.entry() = sqe{opcode: opPollRemove, fd: -1, addr: w.tag(i), userData: ignoreTag}
			_ = r.Submit()
		}
	}
}

// NotifyFd registers an eventfd the first time.
func (r *uring) NotifyFd() int {
	if r.notify >= 0 {
		return r.notify
	}
	efd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return -1
	}
	if uringRegisterEventfd(r.fd, efd) != 0 {
		unix.Close(efd)
		return -1
	}
	r.notify = efd
	return efd
}

// Stats are the counters.
func (r *uring) Stats() Stats {
	s := r.stats
	s.Stale = r.table.stale
	return s
}

// Close waits for what is in flight: the kernel has the memory until then.
// Completions are heard without watches.
func (r *uring) Close() error {
	clear(r.watches[:])
	r.deaf = nil
	err := drain(r)
	r.release()
	return err
}
