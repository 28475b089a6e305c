package queue

import (
	"runtime"
	"sync"
)

// spareProcs is how many goroutines the runtime runs beside the queues' loops:
// a loop that never blocks holds its place until it is interrupted, 10 ms
// later, and what answers the control sockets must not wait for that.
const spareProcs = 2

var procs struct {
	sync.Mutex
	loops int
}

// ReserveProcs says that n more loops (fewer, if negative) will run in this
// process, and raises GOMAXPROCS to their number and two more. It never lowers
// it: that would stop the world once more for nothing. Start does this for its
// own queue; a caller that will start many does it once for all.
func ReserveProcs(n int) {
	procs.Lock()
	defer procs.Unlock()
	procs.loops += n
	if want := procs.loops + spareProcs; want > runtime.GOMAXPROCS(0) {
		runtime.GOMAXPROCS(want)
	}
}
