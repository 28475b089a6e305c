package queue

import (
	"runtime"
	"sync/atomic"
	"time"
)

// Polling budgets, in nanoseconds.
const (
	// DefaultPoll is how long a queue looks for more before it sleeps.
	DefaultPoll = 50 * time.Microsecond
	// MaxPoll bounds Config.Poll: what waits longer had better sleep.
	MaxPoll = time.Millisecond

	leastPoll   = int64(time.Microsecond)      // a budget below is none
	crowdedPoll = int64(10 * time.Microsecond) // where there are as many busy loops as processors
)

// busyLoops counts the loops of this process that do not sleep.
var busyLoops atomic.Int32

// processors is how many threads can run at once.
var processors = int32(runtime.NumCPU())

// poller decides how long a loop that has found nothing goes on looking before
// it sleeps. Looking costs a processor, sleeping costs a system call and a
// wake-up: it looks as long as that has paid lately.
type poller struct {
	most   int64 // the configured budget; 0: never
	budget int64 // what misses have left of it
	device int64 // how long the device takes lately, 0: not known
}

// limit is for how long to look now. inFlight says that the device has
// requests: their completion is what will come first, and a device that is
// slower than the budget is not worth looking out for.
func (p *poller) limit(inFlight bool) int64 {
	b := p.budget
	if b > crowdedPoll && busyLoops.Load() >= processors {
		b = crowdedPoll
	}
	if inFlight && p.device > 0 {
		if p.device > p.most {
			return 0
		}
		b = min(b, p.device+p.device/4)
	}
	return b
}

// missed hears that a look of the whole limit found nothing.
func (p *poller) missed() {
	if p.budget /= 2; p.budget < leastPoll {
		p.budget = 0
	}
}

// slept hears how long a sleep lasted: one that was short would have been
// better spent looking.
func (p *poller) slept(ns int64) {
	if ns < p.most {
		p.budget = p.most
	}
}

// took hears how long a request to the device lasted.
func (p *poller) took(ns int64) {
	if p.device == 0 {
		p.device = ns
		return
	}
	p.device += (ns - p.device) / 8
}
