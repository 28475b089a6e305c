// Package procs keeps processors of Go's scheduler for threads that drive rings.
// Such a thread waits in the kernel without giving its processor back, because
// giving it back and taking it again wakes other threads of the runtime for
// every wait: where few requests are in flight that is most of what they cost.
package procs

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// spare is how many goroutines the runtime runs beside those threads: what
// answers the control sockets must not wait for them.
const spare = 2

var reserved struct {
	sync.Mutex
	n int
}

// Reserve says that n more threads (fewer, if negative) keep a processor, and
// raises GOMAXPROCS to their number and two more. It never lowers it: that
// would stop the world once more for nothing.
func Reserve(n int) {
	reserved.Lock()
	defer reserved.Unlock()
	reserved.n += n
	if want := reserved.n + spare; want > runtime.GOMAXPROCS(0) {
		runtime.GOMAXPROCS(want)
	}
}

var dedicated atomic.Bool

// Dedicate says that this process serves disks and does nothing else. Only then
// do engines that several goroutines share keep processors: a program that uses
// the library has its own idea of GOMAXPROCS.
func Dedicate() { dedicated.Store(true) }

// Dedicated says whether Dedicate was called.
func Dedicated() bool { return dedicated.Load() }
