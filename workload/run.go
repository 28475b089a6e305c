package workload

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/sys"
)

const (
	// MaxThreads bounds the threads of a run.
	MaxThreads = 64
	maxFiles   = 1 << 20
	randomUnit = 4096 // random offsets are multiples of it
	pieceLen   = 4096 // of the shapes in pieces
)

// Config is one run.
type Config struct {
	Profile *Profile
	Threads int
	// Scale is the share of the profile's bytes and file sizes, above 0.
	Scale float64
	Shape Shape
	Seed  uint64
	// Progress hears how many bytes of how many are moved; nil: nobody.
	Progress func(done, total int64)
}

// Result is what a run did.
type Result struct {
	Profile  string  `json:"profile"`
	Threads  int     `json:"threads"`
	Scale    float64 `json:"scale"`
	Shape    Shape   `json:"shape"`
	Seed     uint64  `json:"seed"`
	Ns       int64   `json:"ns"`
	Read     int64   `json:"read_bytes"`
	Written  int64   `json:"written_bytes"`
	Requests int64   `json:"requests"` // reads, writes, flushes, discards
	// Quantiles of the latency of reads and writes, in nanoseconds.
	P50  int64 `json:"p50_ns"`
	P99  int64 `json:"p99_ns"`
	P999 int64 `json:"p999_ns"`
	// Linearised requests went through one buffer; Pieces is how many
	// elements of memory the storage's driver got.
	Linearised uint64 `json:"linearised"`
	Pieces     uint64 `json:"pieces"`
	// Histogram has the share of reads and writes at or below each latency.
	Histogram []Point `json:"histogram"`
}

// Point of a distribution: Share of the requests took at most Ns.
type Point struct {
	Ns    int64   `json:"ns"`
	Share float64 `json:"share"`
}

// MBps is the rate in 10^6 bytes a second.
func (r *Result) MBps() float64 { return float64(r.Read+r.Written) * 1e3 / float64(max(r.Ns, 1)) }

// check refuses what makes no sense.
func (c *Config) check(size int64) error {
	switch {
	case c.Threads < 1 || c.Threads > MaxThreads:
		return fmt.Errorf("%d threads: 1 to %d are possible", c.Threads, MaxThreads)
	case !(c.Scale > 0 && c.Scale <= 1000):
		return fmt.Errorf("a scale of %g: above 0, to 1000", c.Scale)
	case !slices.Contains(Shapes, c.Shape):
		return fmt.Errorf("there is no shape %q: %v", c.Shape, Shapes)
	case size < int64(c.Threads)*c.fileSize():
		return fmt.Errorf("the disk has %s, but %d threads with a file of %s each need more: a smaller --scale or fewer threads", block.FormatSize(size), c.Threads, block.FormatSize(c.fileSize()))
	}
	return nil
}

// fileSize is the room of one file: whole blocks, at least 4.
func (c *Config) fileSize() int64 {
	if c.Profile.Size == 0 {
		return 1 << 20
	}
	b := int64(c.Profile.Block)
	return max(int64(float64(c.Profile.Size)*c.Scale)/b, 4) * b
}

// total is how many bytes one thread moves.
func (c *Config) total() int64 {
	b := int64(c.Profile.Block)
	return max(int64(float64(c.Profile.Total)*c.Scale)/int64(c.Threads)/b, 1) * b
}

// Need is the size of a disk that such a run is at home on.
func (c *Config) Need() int64 {
	files := int64(2 * c.Threads)
	if c.Profile.Size == 0 {
		files = max(files, 64)
	}
	return files * c.fileSize()
}

// worker is one thread with its memory and its own files.
type worker struct {
	c      *Config
	child  *block.Child
	queue  *block.Queue
	ctx    context.Context
	rnd    *rand.Rand
	shapes []block.Vec // the whole block, in each shape that it uses
	part   block.Vec   // scratch
	first  int64       // its part of the disk
	size   int64
	// slots are the places of its files; those before alive have one.
	slots []int64
	alive int
	left  int64
	moved *atomic.Int64
	read  int64
	write int64
	other int64
}

// Run runs the workload. The bytes that its threads counted must be those that
// the edge counted.
func Run(ctx context.Context, child *block.Child, c Config) (*Result, error) {
	if err := c.check(child.Size()); err != nil {
		return nil, err
	}
	env, group := child.Instance().Env(), block.NewQueueGroup()
	workers, unmap, err := c.workers(ctx, child, group)
	defer unmap()
	if err != nil {
		return nil, err
	}
	began := env.Now()
	err = c.runAll(workers)
	r := &Result{Profile: c.Profile.Name, Threads: c.Threads, Scale: c.Scale, Shape: c.Shape, Seed: c.Seed, Ns: env.Now() - began}
	for _, w := range workers {
		r.Read += w.read
		r.Written += w.write
		r.Requests += w.other
		w.queue.Close()
	}
	if err != nil {
		return nil, err
	}
	return r, r.count(group.Stats())
}

// workers makes the threads, with a part of the disk for each.
func (c *Config) workers(ctx context.Context, child *block.Child, group *block.QueueGroup) (ws []*worker, unmap func(), err error) {
	var mappings [][]byte
	unmap = func() {
		for _, m := range mappings {
			_ = sys.Unmap(m)
		}
	}
	moved, size := new(atomic.Int64), c.fileSize()
	files := min(child.Size()/size/int64(c.Threads), maxFiles/int64(c.Threads))
	for i := range c.Threads {
		mem, mapping, err := sys.MapAligned(3*(2*c.Profile.Block+2*pieceLen), block.MaxAlign)
		if err != nil {
			return nil, unmap, err
		}
		sys.Touch(mem)
		mappings = append(mappings, mapping)
		ws = append(ws, &worker{c: c, child: child, queue: block.NewQueue(child.Instance().Env(), group), ctx: ctx,
			rnd: rand.New(rand.NewPCG(c.Seed, uint64(i))), shapes: shapesOf(c.Shape, mem, c.Profile.Block),
			first: int64(i) * files * size, size: size, left: c.total(), moved: moved})
		for k := range files {
			ws[i].slots = append(ws[i].slots, k)
		}
		ws[i].alive = len(ws[i].slots)
	}
	return ws, unmap, nil
}

// shapesOf cuts a block's memory.
func shapesOf(s Shape, mem []byte, n int) []block.Vec {
	scattered := func(off int) (v block.Vec) {
		for at := off; n > 0; at += 2 * pieceLen {
			k := min(n, pieceLen)
			v = append(v, mem[at:at+k:at+k])
			n -= k
		}
		return v
	}
	whole := n
	contig := block.Vec{mem[:n:n]}
	pages := scattered(0)
	n = whole
	half := scattered(512)
	switch s {
	case Contig:
		return []block.Vec{contig}
	case Pages:
		return []block.Vec{pages}
	case HalfPage:
		return []block.Vec{half}
	}
	return []block.Vec{contig, pages, half}
}

// runAll runs the threads to their end, or to the first error.
func (c *Config) runAll(ws []*worker) error {
	errs := make([]error, len(ws))
	var all sync.WaitGroup
	var failed atomic.Bool
	for i, w := range ws {
		all.Go(func() {
			for w.left > 0 && errs[i] == nil && !failed.Load() {
				errs[i] = w.step()
			}
			if errs[i] != nil {
				failed.Store(true)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// step does one operation to one file.
func (w *worker) step() error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	op := w.pick()
	at, n := w.first+w.file(op.Kind)*w.size, w.fileLen()
	switch op.Kind {
	case ReadAll, Create:
		return w.whole(op.Kind == Create, at, n)
	case CreateFlush:
		if err := w.whole(true, at, n); err != nil {
			return err
		}
		return w.do(block.OpFlush, 0, func(rq *block.Req) error { return w.child.Flush(rq) })
	case Delete:
		return w.do(block.OpDiscard, n, func(rq *block.Req) error { return w.child.Discard(rq, at, n) })
	}
	for range op.Blocks {
		b := int64(w.c.Profile.Block)
		off := at + w.rnd.Int64N((w.size-b)/randomUnit+1)*randomUnit
		if err := w.move(op.Kind == WriteRandom, off, b); err != nil || w.left <= 0 {
			return err
		}
	}
	return nil
}

// file chooses a file that there is, or to make one a place that is free, if
// any is. The last file is not deleted but written anew by whoever creates.
func (w *worker) file(k Kind) int64 {
	free := len(w.slots) - w.alive
	switch {
	case (k == Create || k == CreateFlush) && free > 0:
		i := w.alive + w.rnd.IntN(free)
		w.slots[i], w.slots[w.alive] = w.slots[w.alive], w.slots[i]
		w.alive++
		return w.slots[w.alive-1]
	case k == Delete && w.alive > 1:
		i := w.rnd.IntN(w.alive)
		w.alive--
		w.slots[i], w.slots[w.alive] = w.slots[w.alive], w.slots[i]
		return w.slots[w.alive]
	}
	return w.slots[w.rnd.IntN(w.alive)]
}

func (w *worker) pick() Op {
	sum := 0
	for _, o := range w.c.Profile.Ops {
		sum += o.Weight
	}
	at := w.rnd.IntN(sum)
	for _, o := range w.c.Profile.Ops {
		if at -= o.Weight; at < 0 {
			return o
		}
	}
	panic("workload: weights do not add up")
}

// fileLen is the length of a file: a mail's is drawn.
func (w *worker) fileLen() int64 {
	if w.c.Profile.Size != 0 {
		return w.size
	}
	at := w.rnd.IntN(100)
	for _, m := range mailSizes {
		if at -= m.weight; at < 0 {
			return int64(m.kib) << 10
		}
	}
	panic("workload: sizes do not add up to 100")
}

// whole moves a file by blocks, the last of which may be short.
func (w *worker) whole(write bool, at, n int64) error {
	for pos := int64(0); pos < n && w.left > 0; pos += int64(w.c.Profile.Block) {
		if err := w.move(write, at+pos, min(int64(w.c.Profile.Block), n-pos)); err != nil {
			return err
		}
	}
	return nil
}

// move is one read or write.
func (w *worker) move(write bool, off, n int64) error {
	v := w.shapes[0]
	if len(w.shapes) > 1 {
		v = w.shapes[w.rnd.IntN(len(w.shapes))]
	}
	w.part = v.AppendRange(w.part[:0], 0, n)
	w.left -= n
	if done := w.moved.Add(n); w.c.Progress != nil {
		w.c.Progress(done, w.c.total()*int64(w.c.Threads))
	}
	if write {
		w.write += n
		return w.do(block.OpWrite, n, func(rq *block.Req) error { return w.child.Pwritev(rq, off, w.part, 0) })
	}
	w.read += n
	return w.do(block.OpRead, n, func(rq *block.Req) error { return w.child.Preadv(rq, off, w.part, 0) })
}

func (w *worker) do(op block.Op, n int64, f func(rq *block.Req) error) error {
	w.other++
	rq := w.queue.Begin()
	err := f(rq)
	w.queue.End(rq, op, n, err)
	return err
}

// count takes over what the edge counted, and compares.
func (r *Result) count(s *block.Stats) error {
	if int64(s.Bytes[block.OpRead]) != r.Read || int64(s.Bytes[block.OpWrite]) != r.Written {
		return fmt.Errorf("%d bytes were read and %d written, but %d and %d counted: the figures cannot be trusted", r.Read, r.Written, s.Bytes[block.OpRead], s.Bytes[block.OpWrite])
	}
	r.Linearised, r.Pieces = s.Path(block.PathLinearised), s.NodeSegments
	for i := range s.Hist[block.OpRead] {
		s.Hist[block.OpRead][i] += s.Hist[block.OpWrite][i]
	}
	r.P50, r.P99, r.P999 = s.Quantile(block.OpRead, 0.5), s.Quantile(block.OpRead, 0.99), s.Quantile(block.OpRead, 0.999)
	var sum, total uint64
	for _, n := range s.Hist[block.OpRead] {
		total += n
	}
	for i, n := range s.Hist[block.OpRead] {
		if sum += n; n > 0 {
			r.Histogram = append(r.Histogram, Point{block.HistUpper(i), float64(sum) / float64(total)})
		}
	}
	return nil
}

// Fill writes data over the part of the disk that a run reads, so that it does
// not read holes.
func Fill(ctx context.Context, child *block.Child, n int64, progress func(done, total int64)) error {
	q := block.NewQueue(child.Instance().Env(), block.NewQueueGroup())
	defer q.Close()
	mem, mapping, err := sys.MapAligned(1<<20, block.MaxAlign)
	if err != nil {
		return err
	}
	defer sys.Unmap(mapping)
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range mem {
		mem[i] = byte(rnd.Uint32())
	}
	for at := int64(0); at < n; at += int64(len(mem)) {
		if err := ctx.Err(); err != nil {
			return err
		}
		k := min(int64(len(mem)), n-at)
		rq := q.Begin()
		err := child.Pwritev(rq, at, block.Vec{mem[:k]}, 0)
		q.End(rq, block.OpWrite, k, err)
		if err != nil {
			return err
		}
		if progress != nil {
			progress(at+k, n)
		}
	}
	return nil
}
