package blocktest

import (
	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/sys"
)

// Cost gives an emulator's reads and writes a duration, in a time of its own:
// that of a server behind a network, to which a request of several elements may
// become several requests. Threads are simulated, each with its own clock, all
// on one goroutine: Run is a closed loop of them, and the same each time.
type Cost struct {
	// RequestNs is the server's time for a request, and for a commit.
	RequestNs int64
	// LinkBytesPerSecond is shared by all requests, CopyBytesPerSecond what
	// the client copies to and from buffers of its own. 0: no time.
	LinkBytesPerSecond, CopyBytesPerSecond float64
	// Slots is how many requests the server works on at a time.
	Slots int
	// MaxRequest is the longest request in bytes.
	MaxRequest int64
	// EachElement: every element is a request, as in kernels of 2011.
	// Otherwise pieces join where the kernel's NFS client joins pages.
	EachElement bool
	// Commit: a write that was split costs a commit.
	Commit bool

	// Requests and Commits count what the server got.
	Requests, Commits int64

	clocks  []int64
	thread  int
	free    []int64 // when each slot is free
	link    int64   // when the link is free
	callers uintptr // memory of the caller's first element
}

// SetCost makes the emulator's requests take time.
func (e *Emulator) SetCost(c *Cost) { e.cost = c }

// Now is the time of the simulated thread that runs: for block.Env.
func (c *Cost) Now() int64 {
	if len(c.clocks) == 0 {
		return 0
	}
	return c.clocks[c.thread]
}

// Run lets threads issue n requests together, each when its last is done: f
// issues request i. It returns the nanoseconds that they took.
func (c *Cost) Run(threads, n int, f func(thread, i int)) int64 {
	begin := c.start(threads)
	for i := range n {
		c.thread = 0
		for t, at := range c.clocks {
			if at < c.clocks[c.thread] {
				c.thread = t
			}
		}
		f(c.thread, i)
	}
	end := begin
	for _, at := range c.clocks {
		end = max(end, at)
	}
	return end - begin
}

// start sets the clocks of so many threads to the latest time yet.
func (c *Cost) start(threads int) (begin int64) {
	for _, at := range c.clocks {
		begin = max(begin, at)
	}
	c.clocks, c.thread = c.clocks[:0], 0
	for range threads {
		c.clocks = append(c.clocks, begin)
	}
	for len(c.free) < max(c.Slots, 1) {
		c.free = append(c.free, 0)
	}
	return begin
}

// Issue says whose memory the next request begins with: other memory was
// copied.
func (c *Cost) Issue(v block.Vec) { c.callers = sys.Addr(v[0]) }

// charge moves the running thread's clock to the end of r.
func (c *Cost) charge(r request) {
	if len(c.clocks) == 0 {
		c.start(1) // outside Run: one thread
	}
	start := c.clocks[c.thread]
	if len(r.v) == 1 && sys.Addr(r.v[0]) != c.callers && c.CopyBytesPerSecond > 0 {
		start += int64(float64(r.n) * 1e9 / c.CopyBytesPerSecond)
	}
	end := start
	parts := c.Parts(r.v)
	for _, n := range parts {
		done := c.serve(start)
		if c.LinkBytesPerSecond > 0 {
			c.link = max(c.link, done) + int64(float64(n)*1e9/c.LinkBytesPerSecond)
			done = c.link
		}
		end = max(end, done)
	}
	c.Requests += int64(len(parts))
	if c.Commit && r.op == block.OpWrite && len(parts) > 1 {
		c.Commits++
		end = c.serve(end)
	}
	c.clocks[c.thread] = end
}

// serve takes the slot that is free first.
func (c *Cost) serve(start int64) int64 {
	best := 0
	for i, at := range c.free {
		if at < c.free[best] {
			best = i
		}
	}
	c.free[best] = max(c.free[best], start) + c.RequestNs
	return c.free[best]
}

// fragmentPage is the page size that the model joins at.
var fragmentPage = uintptr(sys.PageSize())

// Parts are the lengths of the requests that v becomes. It walks pages, as the
// kernel does: a fragment of a page joins the one before if that ends where
// its page ends and this begins where its page begins, or if both lie in one page
// back to back.
func (c *Cost) Parts(v block.Vec) []int64 {
	var parts []int64
	var last uintptr // where the fragment before ends; 0: none
	for _, e := range v {
		if c.EachElement {
			last = 0
		}
		for at, end := sys.Addr(e), sys.Addr(e)+uintptr(len(e)); at < end; {
			stop := min(at-at%fragmentPage+fragmentPage, end)
			joins := last != 0 && (at%fragmentPage == 0 && last%fragmentPage == 0 || at == last && (at-1)/fragmentPage == at/fragmentPage)
			parts = c.add(parts, int64(stop-at), joins)
			at, last = stop, stop
		}
	}
	return parts
}

// add puts a fragment of n bytes to the last request as far as it has room.
func (c *Cost) add(parts []int64, n int64, joins bool) []int64 {
	if k := len(parts) - 1; joins && k >= 0 {
		take := min(n, c.MaxRequest-parts[k])
		parts[k] += take
		n -= take
	}
	for n > 0 {
		take := min(n, c.MaxRequest)
		parts = append(parts, take)
		n -= take
	}
	return parts
}
