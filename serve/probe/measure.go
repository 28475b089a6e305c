package probe

import (
	"slices"
	"sync"
	"time"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/sys"
)

// shape is a request to measure.
type shape struct {
	name      string
	bytes     int
	elements  int // scattered over memory, not touching each other
	misplaced int // bytes off a multiple of 4096
	depth     int
}

// shapes come in pairs that differ in one thing.
var shapes = []shape{
	{"4 KiB, memory aligned to 4096", 4 << 10, 1, 0, 1},
	{"4 KiB, memory off by 512", 4 << 10, 1, 512, 1},
	{"64 KiB in one piece", 64 << 10, 1, 0, 1},
	{"64 KiB in 16 scattered pieces", 64 << 10, 16, 0, 1},
	{"256 KiB in one piece", 256 << 10, 1, 0, 1},
	{"256 KiB in 64 scattered pieces", 256 << 10, 64, 0, 1},
}

// manyAtOnce compares engines.
var manyAtOnce = shape{"4 KiB, 16 requests at once", 4 << 10, 1, 0, 16}

// rounds is how often each cell is measured, in turn with the others: what
// else the machine does then falls on all of them alike.
const rounds = 5

// cell is one line of the table: a shape on a disk, with what has been
// measured of it.
type cell struct {
	shape
	child *block.Child
	area  *area
	op    block.Op
	aio   string
	group *block.QueueGroup
	rates []float64

	mu        sync.Mutex // guards what follows, during a round
	latencies []int64    // in nanoseconds, at most maxSamples
}

const maxSamples = 1 << 18

func newCell(c *block.Child, a *area, op block.Op, aio string, s shape) *cell {
	return &cell{shape: s, child: c, area: a, op: op, aio: aio, group: block.NewQueueGroup()}
}

// cells are those of all shapes that fit into the area.
func (a *area) cells(c *block.Child, op block.Op) []*cell {
	var all []*cell
	for _, s := range shapes {
		if a.holds(int64(s.bytes)) {
			all = append(all, newCell(c, a, op, "auto", s))
		}
	}
	return all
}

// measure measures the cells, round by round.
func (r *runner) measure(cells []*cell) ([]Row, error) {
	for n := range rounds * len(cells) {
		cl := cells[n%len(cells)]
		if r.o.Progress != nil {
			r.o.Progress(n, rounds*len(cells), cl.op.String()+": "+cl.name)
		}
		if err := r.round(cl); err != nil {
			return nil, err
		}
	}
	rows := make([]Row, len(cells))
	for i, cl := range cells {
		rows[i] = cl.row()
	}
	return rows, nil
}

// round measures one cell for its part of the time.
func (r *runner) round(cl *cell) error {
	if err := r.ctx.Err(); err != nil {
		return err
	}
	begin := time.Now()
	until := begin.Add(r.o.CellTime / rounds)
	type result struct {
		requests int
		err      error
	}
	results := make(chan result, cl.depth)
	for w := range cl.depth {
		go func() {
			n, err := cl.work(r.env, w, until)
			results <- result{n, err}
		}()
	}
	requests := 0
	var failed error
	for range cl.depth {
		res := <-results
		requests += res.requests
		if res.err != nil {
			failed = res.err
		}
	}
	cl.rates = append(cl.rates, float64(requests)/time.Since(begin).Seconds())
	return failed
}

// work sends one request after the other, the first one whatever the time.
func (cl *cell) work(env *block.Env, worker int, until time.Time) (requests int, err error) {
	v, free, err := cl.memory()
	if err != nil {
		return 0, err
	}
	defer free()
	q := block.NewQueue(env, cl.group)
	defer q.Close()
	seed := uint64(len(cl.rates)*cl.depth+worker) << 32
	var took []int64
	for now := time.Now(); requests == 0 || now.Before(until); {
		if err := cl.request(q, v, seed+uint64(requests)); err != nil {
			return requests, err
		}
		begin := now
		now = time.Now()
		took = append(took, int64(now.Sub(begin)))
		requests++
	}
	cl.mu.Lock()
	defer cl.mu.Unlock()
	room := maxSamples - len(cl.latencies)
	cl.latencies = append(cl.latencies, took[:min(len(took), room)]...)
	return requests, nil
}

// request does the i-th request.
func (cl *cell) request(q *block.Queue, v block.Vec, i uint64) (err error) {
	off := cl.area.at(i, int64(cl.bytes))
	rq := q.Begin()
	if cl.op == block.OpWrite {
		err = cl.child.Pwritev(rq, off, v, 0)
	} else {
		err = cl.child.Preadv(rq, off, v, 0)
	}
	q.End(rq, cl.op, int64(cl.bytes), err)
	return err
}

// memory is a request's: elements that do not touch each other, in an order
// that is not that of their addresses.
func (s *shape) memory() (v block.Vec, free func(), err error) {
	each := s.bytes / s.elements
	stride := each + 4096
	b, mapping, err := sys.MapAligned(stride*s.elements+4096, 4096)
	if err != nil {
		return nil, nil, err
	}
	sys.Touch(b)
	for i := range s.elements {
		place := i
		if s.elements > 1 {
			place = i * 5 % s.elements // 5 and a power of two have no common divisor
		}
		at := place*stride + s.misplaced
		v = append(v, b[at:at+each:at+each])
	}
	return v, func() { sys.Unmap(mapping) }, nil
}

// row sums the cell up.
func (cl *cell) row() Row {
	slices.Sort(cl.rates)
	slices.Sort(cl.latencies)
	median := cl.rates[len(cl.rates)/2]
	return Row{
		Op: cl.op.String(), Shape: cl.name, Engine: cl.aio, Bytes: cl.bytes, Elements: cl.elements, Misplaced: cl.misplaced, Depth: cl.depth,
		Rate: median, Spread: (cl.rates[len(cl.rates)-1] - cl.rates[0]) / median,
		P50: quantile(cl.latencies, 50), P99: quantile(cl.latencies, 99), Ways: ways(cl.group.Stats(), cl.op),
	}
}

func quantile(sorted []int64, percent int) int64 {
	return sorted[min(len(sorted)*percent/100, len(sorted)-1)]
}

// ways are those that at least half of the requests took, but for the lane:
// there is only one here.
func ways(s *block.Stats, op block.Op) []string {
	var names []string
	for i, n := range s.Paths {
		if n*2 >= s.Requests[op] && n > 0 && 1<<i != int(block.PathSlow) {
			names = append(names, block.PathName(i))
		}
	}
	return names
}
