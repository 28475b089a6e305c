package block

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

// Path is the set of ways that a request took; each bit has a counter.
type Path uint32

// The ways.
const (
	PathFast         Path = 1 << iota // fast lane, start to end
	PathSlow                          // the blocking methods
	PathDirect                        // reached a node with the caller's memory as it is
	PathBounceMem                     // bounced: an element's address
	PathBounceLen                     // bounced: an element's length
	PathBounceSegs                    // bounced: too many elements for one block
	PathBounceWait                    // waited for a bounce buffer
	PathPadded                        // offset or length unaligned: padded
	PathRMW                           // padded write: read, modified, written
	PathSplit                         // longer than the node takes at once
	PathRetried                       // tried again: limits changed, or the rest of a short transfer
	PathSerialised                    // waited for an overlapping request
	PathFlushForFUA                   // FUA by a flush
	PathZeroFallback                  // write zeroes by writing zeroes
	PathLinearised                    // through one linear buffer because that is faster
	PathShort                         // a fast-lane result finished in the slow lane
	NumPaths         = 16
)

var pathNames = [NumPaths]string{
	"fast_lane", "slow_lane", "as_is", "bounced_mem", "bounced_len", "bounced_segments", "bounce_wait",
	"padded", "rmw", "split", "retried", "serialised", "flush_for_fua", "zero_fallback", "linearised", "short",
}

// PathName is the name of bit i in statistics.
func PathName(i int) string { return pathNames[i] }

// Histogram buckets: log-linear, 4 to an octave of nanoseconds, from 256 ns;
// the last holds everything above about 68 s.
const (
	histSubBits = 2
	histMinBits = 8
	histMaxBits = 36
	HistBuckets = (histMaxBits-histMinBits)<<histSubBits + 1
)

// histBucket is the index for a latency.
func histBucket(ns int64) int {
	if ns < 1<<histMinBits {
		return 0
	}
	top := bits.Len64(uint64(ns)) - 1
	if top >= histMaxBits {
		return HistBuckets - 1
	}
	sub := int(ns>>(top-histSubBits)) & (1<<histSubBits - 1)
	return (top-histMinBits)<<histSubBits + sub
}

// HistUpper is the upper bound of bucket i in nanoseconds.
func HistUpper(i int) int64 {
	octave, sub := i>>histSubBits, i&(1<<histSubBits-1)
	return int64(1<<histSubBits+sub+1) << (octave + histMinBits - histSubBits)
}

// counters of one queue. Its owner adds; anyone may read.
type counters struct {
	requests, bytes, errors [NumOps]atomic.Uint64
	paths                   [NumPaths]atomic.Uint64
	nodeCalls, nodeSegments atomic.Uint64
	hist                    [NumOps][HistBuckets]atomic.Uint64
}

// Stats is a snapshot of counters, of one queue or a sum.
type Stats struct {
	Requests, Bytes, Errors [NumOps]uint64
	Paths                   [NumPaths]uint64
	// NodeCalls and NodeSegments are the calls that reached a node's
	// driver from the edges, and the elements in them.
	NodeCalls, NodeSegments uint64
	Hist                    [NumOps][HistBuckets]uint64
}

func (s *Stats) add(c *counters) {
	for i := range s.Requests {
		s.Requests[i] += c.requests[i].Load()
		s.Bytes[i] += c.bytes[i].Load()
		s.Errors[i] += c.errors[i].Load()
		for j := range s.Hist[i] {
			s.Hist[i][j] += c.hist[i][j].Load()
		}
	}
	for i := range s.Paths {
		s.Paths[i] += c.paths[i].Load()
	}
	s.NodeCalls += c.nodeCalls.Load()
	s.NodeSegments += c.nodeSegments.Load()
}

// Path is the counter of one way.
func (s *Stats) Path(p Path) uint64 { return s.Paths[bits.TrailingZeros32(uint32(p))] }

// Quantile is the latency in nanoseconds below which the share q of op's
// requests completed: the upper bound of its bucket, 0 where there were none.
func (s *Stats) Quantile(op Op, q float64) int64 {
	var total uint64
	for _, n := range s.Hist[op] {
		total += n
	}
	if total == 0 {
		return 0
	}
	want := max(uint64(q*float64(total)+0.5), 1)
	var seen uint64
	for i, n := range s.Hist[op] {
		if seen += n; seen >= want {
			return HistUpper(i)
		}
	}
	return HistUpper(HistBuckets - 1)
}

// Queue is one source of requests to one disk: a connection, a virtqueue, a
// job. It has the request objects and the counters, both its own, so that
// queues share nothing while they run.
type Queue struct {
	env   *Env
	shard uint32
	group *QueueGroup
	// ownErrors: see OwnErrors.
	ownErrors bool
	c         *counters

	mu   sync.Mutex
	free *Req
	made int
}

// MaxReqs is the most request objects of one queue. A queue that wants more at
// once has a fault in its flow control.
const MaxReqs = 4096

// QueueGroup adds up the counters of the queues that serve one disk, those
// that have ended included.
type QueueGroup struct {
	mu    sync.Mutex
	live  map[*Queue]struct{}
	ended counters
}

// NewQueueGroup makes an empty group.
func NewQueueGroup() *QueueGroup { return &QueueGroup{live: map[*Queue]struct{}{}} }

// nextShard spreads queues over the trackers' shards.
var nextShard atomic.Uint32

// NewQueue makes a queue whose counters count in group.
func NewQueue(env *Env, group *QueueGroup) *Queue {
	q := &Queue{env: env, shard: nextShard.Add(1), group: group, c: new(counters)}
	group.mu.Lock()
	group.live[q] = struct{}{}
	group.mu.Unlock()
	return q
}

// OwnErrors makes the errors of this queue's requests part of their objects: a
// disk that fails every request costs no memory for it. Such an error is valid
// until its object is used for another request. It is said before the first.
func (q *Queue) OwnErrors() { q.ownErrors = true }

// Env is what the queue runs in.
func (q *Queue) Env() *Env { return q.env }

// Close moves the queue's counters to those of ended queues.
func (q *Queue) Close() {
	g := q.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, ok := g.live[q]; !ok {
		return
	}
	delete(g.live, q)
	var s Stats
	s.add(q.c)
	g.ended.merge(&s)
}

func (c *counters) merge(s *Stats) {
	for i := range s.Requests {
		c.requests[i].Add(s.Requests[i])
		c.bytes[i].Add(s.Bytes[i])
		c.errors[i].Add(s.Errors[i])
		for j := range s.Hist[i] {
			c.hist[i][j].Add(s.Hist[i][j])
		}
	}
	for i := range s.Paths {
		c.paths[i].Add(s.Paths[i])
	}
	c.nodeCalls.Add(s.NodeCalls)
	c.nodeSegments.Add(s.NodeSegments)
}

// Stats adds up all queues of the group, live and ended.
func (g *QueueGroup) Stats() *Stats {
	s := new(Stats)
	g.mu.Lock()
	defer g.mu.Unlock()
	s.add(&g.ended)
	for q := range g.live {
		s.add(q.c)
	}
	return s
}

// Stats is a snapshot of this queue alone.
func (q *Queue) Stats() *Stats {
	s := new(Stats)
	s.add(q.c)
	return s
}

// Begin takes a request object and starts its clock. It returns nil when
// MaxReqs are out: the caller has a fault in its flow control.
func (q *Queue) Begin() *Req {
	q.mu.Lock()
	rq := q.free
	if rq != nil {
		q.free = rq.next
	} else if q.made < MaxReqs {
		q.made++
		rq = newReq(q)
	}
	q.mu.Unlock()
	if rq != nil {
		rq.Restart(q.env.Now())
	}
	return rq
}

// Restart makes an object fit for another request, which began at now: for a
// source that keeps its objects and counts with Count what it does with them.
func (rq *Req) Restart(now int64) {
	rq.depth, rq.path, rq.ctx, rq.start, rq.choice.in = 0, 0, nil, now, nil
}

// End counts the finished request and takes its object back. n is the length
// in bytes.
func (q *Queue) End(rq *Req, op Op, n int64, err error) {
	q.Count(rq, op, n, err, q.env.Now())
	q.mu.Lock()
	rq.next, q.free = q.free, rq
	q.mu.Unlock()
}

// Count counts a request that finished at now, and leaves its object to the
// caller, for Restart.
func (q *Queue) Count(rq *Req, op Op, n int64, err error, now int64) {
	c := q.c
	c.requests[op].Add(1)
	c.bytes[op].Add(uint64(n))
	if err != nil {
		c.errors[op].Add(1)
	}
	c.hist[op][histBucket(now-rq.start)].Add(1)
	for p := uint32(rq.path); p != 0; p &= p - 1 {
		c.paths[bits.TrailingZeros32(p)].Add(1)
	}
	if rq.depth != 0 {
		panic("block: a request ended inside a node")
	}
}
