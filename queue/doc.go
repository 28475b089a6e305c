// Package queue serves a virtqueue: one loop, on one thread, with an engine of
// its own, from the guest's ring to the kernel's and back.
//
// A batch is the unit of everything. The loop takes all chains that the guest
// has made available, parses each into a slot of its table, hands those that
// only move bytes of a file to its engine with one system call, reaps what is
// complete, writes the used entries, publishes them once and calls the guest
// at most once. What the node cannot map (a flush, what must be padded or
// bounced) is run by workers through the blocking methods and comes back to
// the loop in batches. Guest memory goes to the kernel as it is.
//
// A Queue is started with Start, given a ring with Attach, and serves while it
// is enabled. Its control methods may be called from any goroutine; each is
// obeyed between two batches. What has to wait for requests in flight (Stop,
// SetMap) waits for this queue's disk only, and takes a context.
//
// Nothing is allocated and nothing larger than 128 bytes is cleared for a
// request: see slot for where its parts are.
//
// Read it in this order: Config and Queue (queue.go), the loop (loop.go),
// taking (take.go), the two lanes (lane.go, worker.go), ending (finish.go),
// slots (slot.go), orders (control.go), polling (poll.go), faults (fault.go).
package queue
