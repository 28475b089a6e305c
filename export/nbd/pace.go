package nbd

// Disks in the page cache: the reader serves short requests in place, like
// those of a disk in memory, as long as that is quick. When two were not, the
// next go the way of disks that wait, and ever more of them while it stays so.

const (
	// slowRead and slowWrite are how long a request may take in nanoseconds
	// and count as quick, beside what copying its bytes takes at a byte a
	// nanosecond. A read that is slower came from the device, and others
	// could have gone there with it; a write that met the write-back of its
	// page may take longer, because a worker would wait for the same page.
	slowRead  = 100_000
	slowWrite = 1_000_000
	// minAvoid and maxAvoid bound how many requests are kept from the reader
	// after a slow one, and forgetAvoid is how many quick ones in a row
	// bring that down again.
	minAvoid    = 64
	maxAvoid    = 16 << 10
	forgetAvoid = 1024
	// The first slow request may have been the scheduler's doing: the reader
	// was in the way of other threads. It is forgiven if as many quick ones
	// follow as have earned its time, at earnedNs each over a worker, and at
	// least minForgive.
	earnedNs   = 4_000
	minForgive = 64
	maxForgive = 4096
)

// pace remembers whether serving in place has been quick.
type pace struct {
	avoid int // requests yet to be kept from the reader
	next  int // how many, the next time
	quick int // quick ones in a row
	due   int // quick ones that are yet to come for the last slow one
	// patient: none is too slow
	patient bool
}

// inPlace says whether to serve the next request in place.
func (p *pace) inPlace() bool {
	if p.avoid > 0 {
		p.avoid--
		return false
	}
	return true
}

// took notes that a request of n bytes, served in place, took ns nanoseconds;
// slow of them are too many.
func (p *pace) took(ns, n, slow int64) {
	if ns <= slow+n || p.patient {
		if p.quick++; p.quick >= forgetAvoid {
			p.next = 0
		}
		p.due = max(p.due-1, 0)
		return
	}
	forgiven := p.due == 0
	p.due = int(min(max(ns/earnedNs, minForgive), maxForgive))
	if forgiven {
		return
	}
	p.next = min(max(2*p.next, minAvoid), maxAvoid)
	p.avoid, p.quick = p.next, 0
}
