package queue

import "sync/atomic"

// Counts are what a queue counts beside its Group.
type Counts struct {
	Batches  uint64 // batches of requests taken
	Taken    uint64 // requests taken
	Resumed  uint64 // of them, taken up from a former process
	Bad      uint64 // of them, refused as they came
	InPlace  uint64 // of them, served on the loop's own thread without an engine
	Shared   uint64 // of them, through an engine shared with others
	Faults   uint64 // of them, whose memory was gone
	Logged   uint64 // of them, marked in the dirty log
	Unlogged uint64 // of those, beyond the log's end
	Held     uint64 // times that the limiter held a request back
	Crowded  uint64 // times that a request waited for room for its elements
	Calls    uint64 // the guest was told of used entries
	Quiet    uint64 // used entries were published and the guest did not want to be told
	Sleeps   uint64 // the loop found nothing and slept
	Looks    uint64 // it looked out for more before
	Missed   uint64 // and found nothing
}

// counters are Counts that the loop adds to and anybody reads.
type counters struct {
	batches, taken, resumed, bad, inPlace, shared, faults, logged, unlogged atomic.Uint64
	held, crowded, calls, quiet, sleeps, looks, missed                      atomic.Uint64
}

func (c *counters) snapshot() Counts {
	return Counts{
		Batches: c.batches.Load(), Taken: c.taken.Load(), Resumed: c.resumed.Load(), Bad: c.bad.Load(),
		InPlace: c.inPlace.Load(), Shared: c.shared.Load(), Faults: c.faults.Load(),
		Logged: c.logged.Load(), Unlogged: c.unlogged.Load(), Held: c.held.Load(), Crowded: c.crowded.Load(),
		Calls: c.calls.Load(), Quiet: c.quiet.Load(), Sleeps: c.sleeps.Load(), Looks: c.looks.Load(), Missed: c.missed.Load(),
	}
}
