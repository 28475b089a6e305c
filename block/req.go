package block

import (
	"context"

	"github.com/platter-storage/platter/internal/bufpool"
)

// Req carries one request through the nodes below it: what it has tracked, the
// memory it may reuse, where its statistics go, and the only means of waiting.
// A Req serves one request at a time and is used again for the next; taking
// and returning one costs no allocation and no clearing.
//
// Fields by when they are set, which is what keeps stale data out: ctx, depth,
// path and start by Begin or Restart; a frame's fields by push, except vec (reused memory,
// length set before use); buf by Get; failure by fail. The semaphores are empty at rest, but for
// stray tokens in park.
type Req struct {
	queue  *Queue
	ctx    context.Context // nil: never cancelled
	depth  int
	path   Path
	start  int64
	frames []*frame
	park   chan struct{} // capacity 1; a stray token may be left in it
	held   int           // buffers out
	buf    bufpool.Waiter
	bufOK  chan struct{} // capacity 1; exactly one token for each queued Get
	slept  chan struct{} // capacity 1; exactly one token for each timer that ran
	next   *Req          // free list
	// choice is what the fast lane decided when it declined, for the slow
	// lane: cleared by Restart.
	choice lineChoice
	// failure is the error that the request ended with, where the queue
	// keeps errors with their requests.
	failure Error
}

// frame is what a request holds at one edge.
type frame struct {
	entry
	rq  *Req
	vec Vec // scratch for padded and split vectors
	// joined is scratch for vectors whose touching elements were made one.
	joined Vec
	// fast lane only
	child  *Child
	op     Op
	fl     Flags
	cookie uint64
	choice lineChoice // set by Map
}

// newReq makes a request object for q, with frames for the usual depth.
func newReq(q *Queue) *Req {
	rq := &Req{queue: q, park: make(chan struct{}, 1), bufOK: make(chan struct{}, 1), slept: make(chan struct{}, 1)}
	rq.buf.Ready = func(*bufpool.Waiter) { rq.bufOK <- struct{}{} }
	for range 2 {
		rq.frames = append(rq.frames, &frame{rq: rq})
	}
	return rq
}

// Context is the request's context, never nil.
func (rq *Req) Context() context.Context {
	if rq.ctx == nil {
		return context.Background()
	}
	return rq.ctx
}

// SetContext bounds the request's waiting: for other requests, for a buffer, and
// in nodes that wait. What has been handed to the storage is not taken back.
func (rq *Req) SetContext(ctx context.Context) { rq.ctx = ctx }

// Queue is where the request comes from.
func (rq *Req) Queue() *Queue { return rq.queue }

// Took notes that the request went the way p.
func (rq *Req) Took(p Path) { rq.path |= p }

// push enters one edge deeper. The frame is valid until pop.
func (rq *Req) push() *frame {
	if rq.depth == len(rq.frames) {
		rq.frames = append(rq.frames, &frame{rq: rq})
	}
	f := rq.frames[rq.depth]
	rq.depth++
	return f
}

// pop leaves the edge.
func (rq *Req) pop() { rq.depth-- }

// wait parks until wake, or until the request's context ends. It may return
// early: callers look again. After an error they take themselves off the list
// of who is to be woken.
func (rq *Req) wait() error {
	if rq.ctx == nil {
		<-rq.park
		return nil
	}
	select {
	case <-rq.park:
		return nil
	case <-rq.ctx.Done():
		return &givenUp{rq.ctx.Err()}
	}
}

// wake ends one wait, now or the next. Any goroutine may call it.
func (rq *Req) wake() {
	select {
	case rq.park <- struct{}{}:
	default:
	}
}

// Sleep waits for ns nanoseconds of the environment's time, or until the
// request's context ends, whose error it then wraps.
func (rq *Req) Sleep(ns int64) error {
	stop := rq.queue.env.After(ns, func() { rq.slept <- struct{}{} })
	if rq.ctx == nil {
		<-rq.slept
		return nil
	}
	select {
	case <-rq.slept:
		return nil
	case <-rq.ctx.Done():
		if !stop() {
			<-rq.slept // the timer ran: its token must not end the next sleep
		}
		return &givenUp{rq.ctx.Err()}
	}
}

// Buffer gives a buffer of n bytes, at most bufpool.MaxBuf, aligned well and
// not cleared, waiting first come first served where there is none. A node, or
// a user of an edge, may hold buffers while its requests go on below: a request
// that holds one takes its next from a pool of its own, whose holders wait for
// none of those who wait here, so that nobody waits in a circle. Buffers are
// released in the opposite order. The error is that the request's context has
// ended, and wraps its error.
func (rq *Req) Buffer(n int) ([]byte, error) {
	pool := rq.queue.env.pool(rq.held)
	if !pool.Get(&rq.buf, n) {
		rq.Took(PathBounceWait)
		if err := rq.awaitBuffer(pool); err != nil {
			return nil, err
		}
	}
	rq.held++
	b := rq.buf.Buf
	rq.buf.Buf = nil
	return b, nil
}

// awaitBuffer waits until the queued waiter has its buffer, whose token it
// takes in any case: a buffer that comes as the context ends is given back.
func (rq *Req) awaitBuffer(pool *bufpool.Pool) error {
	if rq.ctx == nil {
		<-rq.bufOK
		return nil
	}
	select {
	case <-rq.bufOK:
		return nil
	case <-rq.ctx.Done():
	}
	if !pool.Cancel(&rq.buf) {
		<-rq.bufOK
		pool.Put(rq.buf.Buf)
		rq.buf.Buf = nil
	}
	return &givenUp{rq.ctx.Err()}
}

// Release gives the request's last buffer back.
func (rq *Req) Release(b []byte) {
	rq.held--
	rq.queue.env.pool(rq.held).Put(b)
}
