package queue

import (
	"fmt"
	"runtime"
	"syscall"

	"github.com/platter-storage/platter/internal/sys"
)

// Guest memory is a mapping of a file that the front end can cut short: then
// touching it is a fault, which the loop and its workers turn into a panic
// (debug.SetPanicOnFault) and recover here. Anything else that panics is a
// fault of ours and goes on panicking. What the kernel touches is EFAULT.

// faulted says whether a panic is that of memory which is gone.
func faulted(r any) bool {
	_, ok := r.(interface {
		runtime.Error
		Addr() uintptr
	})
	if !ok {
		panic(r)
	}
	return true
}

// recoverFault makes EFAULT of a fault. It is deferred.
func recoverFault(err *error) {
	if r := recover(); r != nil && faulted(r) {
		*err = syscall.EFAULT
	}
}

// ringGone says what happened when memory that is not a request's is gone.
const ringGone = "the memory of the ring, of its records or of its dirty log is gone (the front end has cut a file short)"

// recoverRing is recoverFault where the ring's own memory is touched before the
// ring is served. It is deferred.
func recoverRing(err *error) {
	if r := recover(); r != nil && faulted(r) {
		*err = fmt.Errorf("%s: %w", ringGone, syscall.EFAULT)
	}
}

// ringFault breaks the ring if its own memory is gone, that of its in-flight
// records, or the dirty log. It is deferred.
func (q *Queue) ringFault(doing string) {
	if r := recover(); r != nil && faulted(r) {
		q.breakRing(ringGone + ": found while " + doing)
	}
}

// breakRing stops serving a ring that the guest has damaged. Requests in
// flight end, and nobody hears of it. The other queues go on.
func (q *Queue) breakRing(why string) {
	if q.broken {
		return
	}
	q.broken, q.pushed = true, 0
	q.setState()
	q.log.Error(fmt.Sprintf("%s stops: %s; the guest has to reset the device", q.name, why))
	if q.errFd >= 0 {
		if err := sys.SignalEvent(q.errFd); err != nil {
			q.log.Warn(fmt.Sprintf("%s: its front end cannot be told: writing to the error descriptor: %v", q.name, err))
		}
	}
}
