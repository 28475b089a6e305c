package engine

import (
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/internal/rawio"
	"github.com/platter-storage/platter/internal/sys"
)

// native is a queue of Linux AIO.
type native struct {
	*waiter
	table  table
	iocbs  []iocb    // by slot; free of pointers
	list   []uintptr // addresses of the prepared ones
	ctx    uintptr
	ring   *aioRing  // the completion ring as the kernel maps it, or nil
	events []ioEvent // of ring, or our own to copy into
	done   doneList
	away   int // requests that have no slot any more and are, or will be, in done
	stats  Stats
	syncer *workers // where the kernel cannot sync asynchronously
}

func newNative(cfg Config) (Queue, error) {
	ctx, errno := ioSetup(cfg.Depth)
	if errno != 0 {
		return nil, fmt.Errorf("native: %w: %s", ErrUnavailable, aioRefusal(errno, cfg.Depth))
	}
	w, err := newWaiter()
	if err != nil {
		ioDestroy(ctx)
		return nil, fmt.Errorf("native: %w", err)
	}
	q := &native{waiter: w, ctx: ctx, done: newDoneList(cfg.Depth)}
	if err := q.table.init(cfg.Depth); err != nil {
		w.close()
		ioDestroy(ctx)
		return nil, fmt.Errorf("native: memory for %d slots: %w", cfg.Depth, err)
	}
	q.iocbs = make([]iocb, cfg.Depth)
	q.list = make([]uintptr, 0, cfg.Depth)
	if q.ring, q.events = aioRingOf(ctx); q.ring == nil {
		q.events = make([]ioEvent, 32)
	}
	return q, nil
}

// aioRefusal says in words why there is no context, and what to do.
func aioRefusal(errno syscall.Errno, depth int) string {
	switch errno {
	case syscall.EAGAIN:
		return fmt.Sprintf("%d events are more than the system has left (fs.aio-nr is %s of fs.aio-max-nr %s): raise fs.aio-max-nr, or use aio=threads", depth, sysctl("fs/aio-nr"), sysctl("fs/aio-max-nr"))
	case syscall.ENOSYS, syscall.EPERM:
		return "the kernel has no Linux AIO, or a seccomp filter hides it: allow io_setup, io_submit, io_getevents and io_destroy, or use aio=threads"
	case syscall.ENOMEM:
		return "no memory for an AIO context: use a smaller queue depth, or aio=threads"
	}
	return fmt.Sprintf("io_setup: %v; use aio=threads", errno)
}

func (q *native) Prep(io *rawio.IO, f *File) bool {
	slot, tag, ok := q.table.take(io)
	if !ok {
		return false
	}
	if len(io.Vec) > MaxVec {
		q.refuse(slot, syscall.EINVAL)
		return true
	}
	c := &q.iocbs[slot]
	*c = iocb{data: tag, fd: uint32(f.fd), offset: io.Off, flags: iocbFlagResfd, resfd: uint32(q.efd)}
	switch io.Kind {
	case rawio.Read:
		q.transfer(c, slot, io.Vec, iocbPread, iocbPreadv)
	case rawio.Write:
		q.transfer(c, slot, io.Vec, iocbPwrite, iocbPwritev)
		if io.Sync {
			c.rwFlags = unix.RWF_DSYNC
		}
	case rawio.Fsync:
		c.opcode, c.offset = iocbFdsync, 0
	}
	q.list = append(q.list, addrOfIocb(c))
	return true
}

func (q *native) transfer(c *iocb, slot uint32, vec [][]byte, plain, vectored uint16) {
	if len(vec) == 1 {
		c.opcode, c.buf, c.nbytes = plain, uint64(sys.Addr(vec[0])), uint64(len(vec[0]))
		return
	}
	c.opcode, c.buf, c.nbytes = vectored, uint64(q.table.iov.fill(slot, vec)), uint64(len(vec))
}

// refuse ends a request that the kernel does not get or does not take.
func (q *native) refuse(slot uint32, errno syscall.Errno) {
	io := q.table.drop(slot)
	setResult(io, -int(errno))
	q.stats.Refused++
	q.away++
	if q.done.add(io) {
		q.Wake()
	}
}

// Submit hands over the list. The kernel stops at the first request that it
// does not like: that one ends with the error, the others go on.
func (q *native) Submit() (err error) {
	if len(q.list) == 0 {
		return nil
	}
	var back backoff
	left := q.list
	for len(left) > 0 {
		n, errno := ioSubmit(q.ctx, left)
		q.stats.Syscalls++
		if errno == 0 && n > 0 {
			left = left[n:]
			continue
		}
		if transient(errno) && back.again() {
			q.stats.Retries++
			continue
		}
		if errno == 0 {
			errno = syscall.EAGAIN
		}
		if q.notTaken(left[0], errno) && err == nil {
			err = fmt.Errorf("native: the kernel did not take a request: %w", errno)
		}
		left = left[1:]
	}
	q.list = q.list[:0]
	return err
}

// notTaken deals with a request that io_submit returned an error for. A sync
// that this kernel (before 4.18) cannot do asynchronously goes to a worker.
func (q *native) notTaken(addr uintptr, errno syscall.Errno) (refused bool) {
	slot := uint32((addr - addrOfIocb(&q.iocbs[0])) / iocbSize)
	c := &q.iocbs[slot]
	if c.opcode != iocbFdsync || errno != syscall.EINVAL {
		q.refuse(slot, errno)
		return true
	}
	if q.syncer == nil {
		q.syncer = newWorkers(1, q.Depth(), q.synced)
	}
	q.away++
	q.syncer.push([]entry{{q.table.drop(slot), OpenFile(int(c.fd), 0)}})
	return false
}

// synced runs on the worker.
func (q *native) synced(io *rawio.IO) {
	if q.done.add(io) {
		q.Wake()
	}
}

func (q *native) Reap(limit int) int {
	limit = reapLimit(limit)
	q.reap()
	n := 0
	for io := q.done.next(); io != nil; io = q.done.next() {
		q.away--
		finish(io)
		if n++; n == limit {
			return n
		}
	}
	if q.ring == nil {
		return n + q.reapByCall(limit-n)
	}
	head, tail := q.ring.head.Load(), q.ring.tail.Load()
	if head == tail {
		return n
	}
	for head != tail && n != limit {
		n += q.completed(&q.events[head])
		if head++; head == q.ring.nr {
			head = 0
		}
	}
	q.ring.head.Store(head)
	return n
}

// completed delivers one event's request: 1, or 0 for an event of none.
func (q *native) completed(ev *ioEvent) int {
	io := q.table.end(ev.data)
	if io == nil {
		return 0
	}
	setResult(io, int(ev.res))
	finish(io)
	return 1
}

// reapByCall collects where the completion ring is not the one we know.
func (q *native) reapByCall(limit int) int {
	n := 0
	for n < limit {
		events := q.events[:min(limit-n, len(q.events))]
		got, errno := ioGetevents(q.ctx, events)
		if errno != 0 || got == 0 {
			break
		}
		for i := range events[:got] {
			n += q.completed(&events[i])
		}
	}
	return n
}

func (q *native) Wait(timeout time.Duration) error {
	if q.ready() {
		return nil
	}
	return q.wait(timeout)
}

// ready says whether Reap would find something. Without the mapped ring only
// the eventfd tells.
func (q *native) ready() bool {
	return q.done.n.Load() > 0 || q.ring != nil && q.ring.head.Load() != q.ring.tail.Load()
}

func (q *native) Forget(*File) {}
func (q *native) Depth() int   { return len(q.table.ios) }

func (q *native) InFlight() int { return q.table.busy() + q.away }

func (q *native) Stats() Stats {
	s := q.stats
	s.Stale = q.table.stale
	return s
}

func (q *native) Reason() string {
	how := "completions read from its ring"
	if q.ring == nil {
		how = "completions read by calls: the kernel's ring is of an unknown layout"
	}
	return fmt.Sprintf("native (Linux AIO) with %d slots: %s", q.Depth(), how)
}

// Close waits for what is in flight: the kernel has the memory until then.
func (q *native) Close() error {
	err := drain(q)
	if q.syncer != nil {
		q.syncer.close()
	}
	ioDestroy(q.ctx)
	q.close()
	q.table.iov.close()
	return err
}
