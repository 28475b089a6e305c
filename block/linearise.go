package block

import (
	"context"
	"fmt"
	"log/slog"
	"math/bits"
	"sync/atomic"
)

// LineariseMode is the option linearise of a node.
type LineariseMode uint8

// The modes.
const (
	LineariseAuto   LineariseMode = iota // by what was measured
	LineariseAlways                      // every request of several pieces is copied
	LineariseNever
)

// LineariseConfig is what a Lineariser begins with.
type LineariseConfig struct {
	Mode LineariseMode
	// Name is the node in the log; Log nil: nobody listens.
	Name string
	Log  *slog.Logger
	// MaxRead and MaxWrite are the most bytes of one request to a server of
	// which it is known that it gets one request for each page-joined run
	// (NFS): what is not measured yet is predicted by that. 0: unknown.
	MaxRead, MaxWrite int64
	// Whole: pieces are known to reach the storage as one request, as they do
	// a block device of this machine. Then requests begin as they are, trials
	// of copies are rare, and only a copy in half the time changes that: a
	// smaller difference there is the disk's own unrest, and a copy costs
	// processor time that a request's duration does not show.
	Whole bool
}

// Lineariser decides for one node whether a request of several pieces goes down
// as it is or through one buffer. It measures both, per direction, size and
// kind of fragments, and keeps to what is cheaper; now and then it tries the
// other, the more seldom the more that costs. A driver offers one in its Info
// where vectored requests can be slow; where they cannot, there is none and
// nothing is spent. It neither locks nor allocates, but to log a change.
type Lineariser struct {
	mode  LineariseMode
	whole bool
	name  string
	log   *slog.Logger
	max   [2]atomic.Int64 // by direction
	cells [2][lineSizes][lineKinds][linePieces]lineCell
}

const (
	lineSizes  = 13 // up to 1 KiB, 2 KiB, … 2 MiB, and above
	lineKinds  = 2  // all pieces join at pages, or not
	linePieces = 11 // 2, 3–4, 5–8, … 1024 pieces
	lineFrac   = 4  // fraction bits of a cost

	lineWarmUp   = 8       // requests that alternate where nothing is predicted,
	lineMaxWarm  = 64      // and as many where the two ways are near each other
	lineWeight   = 32      // samples that an average is of
	lineGap      = 64      // requests between two trials of the other way, at least
	lineMaxGap   = 1 << 14 // and at most
	lineWholeGap = 1 << 10 // before the first, where pieces are known to stay together
	lineHurry    = 4       // that number while a change is in the air
	lineStreak   = 12      // points that the other way needs
	lineMaxFlips = 7       // flips that count towards hysteresis
)

// lineCell is what is known of one class of requests. Way 0 is as it is, way 1
// through one buffer. Concurrent updates may lose a sample, never more.
type lineCell struct {
	cost    [2]atomic.Int64 // moving average, ns for 4 KiB << lineFrac
	samples [2]atomic.Uint32
	seen    atomic.Uint32 // requests while undecided
	decided atomic.Bool
	way     atomic.Uint32
	left    atomic.Int64  // requests until the other way is tried
	gap     atomic.Int64  // its last value
	base    atomic.Int64  // cost of the way when the other was last judged
	calm    atomic.Int64  // requests since the cost last changed at once
	streak  atomic.Uint32 // points of the other way
	flips   atomic.Uint32
}

// lineChoice is how one request goes, and since when. cell is nil where
// nothing is to be learnt from it.
type lineChoice struct {
	in     *Lineariser
	cell   *lineCell
	linear bool
	began  int64
}

// NewLineariser makes one.
func NewLineariser(c LineariseConfig) *Lineariser {
	l := &Lineariser{mode: c.Mode, whole: c.Whole, name: c.Name, log: c.Log}
	l.max[0].Store(c.MaxRead)
	l.max[1].Store(c.MaxWrite)
	return l
}

// Reset forgets all that was measured: the storage is another, or is reached
// in another way, with these sizes.
func (l *Lineariser) Reset(maxRead, maxWrite int64) {
	l.max[0].Store(maxRead)
	l.max[1].Store(maxWrite)
	l.each(func(_ LineariseClass, c *lineCell) {
		c.decided.Store(false)
		c.seen.Store(0)
		for way := range 2 {
			c.samples[way].Store(0)
			c.cost[way].Store(0)
		}
		c.streak.Store(0)
		c.flips.Store(0)
		c.base.Store(0)
	})
}

// Sizes are MaxRead and MaxWrite as they are now.
func (l *Lineariser) Sizes() (maxRead, maxWrite int64) { return l.max[0].Load(), l.max[1].Load() }

// shape counts the pieces of v that do not touch in memory, and the runs that
// are left where pieces also join that meet between two pages.
func (v Vec) shape() (pieces, runs int) {
	page := uintptr(pageSize) - 1
	var end uintptr
	for _, e := range v {
		if len(e) == 0 {
			continue
		}
		at := addrOf(e)
		if pieces == 0 || at != end {
			if pieces == 0 || (at|end)&page != 0 {
				runs++
			}
			pieces++
		}
		end = at + uintptr(len(e))
	}
	return pieces, runs
}

// PageJoinedRequests is the number of requests that a server gets for v from
// a client that joins pieces only between two pages or where they touch in
// memory, and makes no request longer than most bytes: Linux's NFS client.
func PageJoinedRequests(v Vec, most int64) int64 {
	page := uintptr(pageSize) - 1
	var total, run int64
	var end uintptr
	for _, e := range v {
		if len(e) == 0 {
			continue
		}
		if at := addrOf(e); run > 0 && at != end && (at|end)&page != 0 {
			total += (run + most - 1) / most
			run = 0
		}
		run += int64(len(e))
		end = addrOf(e) + uintptr(len(e))
	}
	return total + (run+most-1)/most
}

// joined is v with pieces made one that follow each other in the same memory,
// in dst's memory. It costs no copy. Pieces of different allocations stay
// apart even where they touch.
func (v Vec) joined(dst Vec) Vec {
	dst = dst[:0]
	for _, e := range v {
		if len(e) == 0 {
			continue
		}
		if k := len(dst) - 1; k >= 0 {
			a := dst[k]
			if cap(a)-len(a) >= len(e) && addrOf(a)+uintptr(len(a)) == addrOf(e) {
				dst[k] = a[:len(a)+len(e)]
				continue
			}
		}
		dst = append(dst, e)
	}
	return dst
}

// join is v with what touches made one, where there is any.
func (f *frame) join(v Vec) Vec {
	if pieces, _ := v.shape(); pieces == len(v) {
		return v
	}
	f.joined = v.joined(f.joined)
	return f.joined
}

// choose says how n bytes in v go; now is asked only if that is to be measured.
func (l *Lineariser) choose(op Op, v Vec, n int64, now func() int64) lineChoice {
	pieces, runs := v.shape()
	if pieces < 2 || l.mode == LineariseNever {
		return lineChoice{}
	}
	if l.mode == LineariseAlways {
		return lineChoice{in: l, linear: true}
	}
	c := l.cell(op, n, pieces, runs)
	return lineChoice{l, c, c.next(l, op, v, n), now()}
}

// cell finds the class of a request.
func (l *Lineariser) cell(op Op, n int64, pieces, runs int) *lineCell {
	size := min(max(bits.Len64(uint64(n-1))-10, 0), lineSizes-1)
	kind, count := 0, pieces
	if runs > 1 {
		kind, count = 1, runs
	}
	return &l.cells[lineDir(op)][size][kind][min(bits.Len(uint(count-1)), linePieces)-1]
}

func lineDir(op Op) int {
	if op == OpWrite {
		return 1
	}
	return 0
}

// next is the way of the next request: the cheaper, but for trials.
func (c *lineCell) next(l *Lineariser, op Op, v Vec, n int64) bool {
	if !c.decided.Load() {
		return c.undecided(l, op, v, n)
	}
	way := c.way.Load()
	if c.left.Add(-1) == 0 {
		c.left.Store(c.gap.Load()) // should the trial never be heard of
		way ^= 1
	}
	return way == 1
}

// undecided alternates until both ways are known, unless one is predicted.
func (c *lineCell) undecided(l *Lineariser, op Op, v Vec, n int64) bool {
	if most := l.max[lineDir(op)].Load(); most > 0 {
		linear := PageJoinedRequests(v, most) > (n+most-1)/most
		c.settle(linear, lineGap/2)
		return linear
	}
	if l.whole {
		c.settle(false, lineWholeGap)
		return false
	}
	seen := c.seen.Add(1)
	a, b := c.cost[0].Load(), c.cost[1].Load()
	near := a < b+b/4 && b < a+a/4
	if seen <= lineWarmUp || near && seen <= lineMaxWarm {
		return seen&1 == 0
	}
	if c.samples[0].Load() < 2 || c.samples[1].Load() < 2 {
		return false // the first are still under way
	}
	linear := b < a
	c.settle(linear, lineGap)
	if linear {
		l.say(c, "first measured")
	}
	return linear
}

func (c *lineCell) settle(linear bool, gap int64) {
	way := uint32(0)
	if linear {
		way = 1
	}
	c.way.Store(way)
	c.base.Store(c.cost[way].Load())
	c.gap.Store(gap)
	c.left.Store(gap)
	c.decided.Store(true)
}

// learn notes that a request of n bytes that went as ch ended at now.
func (ch *lineChoice) learn(n, now int64) {
	if ch.cell == nil {
		return
	}
	c, way := ch.cell, uint32(0)
	if ch.linear {
		way = 1
	}
	ns := max(now-ch.began, 1)
	c.average(way, int64(float64(ns)*(4096<<lineFrac)/float64(n)))
	switch {
	case !c.decided.Load():
	case way == c.way.Load():
		c.watch(way)
	default:
		c.judge(ch.in, way)
	}
}

// average adds a sample: the mean of the first few, then a moving average. The
// very first, which may have had memory touched for it, gives way to the
// second, and one that is far out counts as twice the average: a disk that now and
// then takes a hundred times as long says nothing of either way.
func (c *lineCell) average(way uint32, cost int64) {
	cost = max(cost, 1)
	k := int64(c.samples[way].Load())
	if k < 2 {
		c.cost[way].Store(cost)
		c.samples[way].Store(uint32(k + 1))
		return
	}
	old := c.cost[way].Load()
	cost = min(cost, 2*old)
	c.cost[way].Store(max(old+(cost-old)/min(k, lineWeight), 1))
	c.samples[way].Store(uint32(min(k+1, 1<<30)))
}

// watch looks whether the cost of the way in use has changed by half: then
// what is known is old, and the other is tried soon.
func (c *lineCell) watch(way uint32) {
	cost, base := c.cost[way].Load(), c.base.Load()
	calm := c.calm.Add(1)
	switch {
	case base == 0:
		c.base.Store(cost)
	case calm >= 2*lineGap && (2*cost > 3*base || 3*cost < 2*base):
		c.calm.Store(0)
		c.base.Store(cost)
		c.samples[0].Store(0) // both averages begin anew
		c.samples[1].Store(0)
		c.streak.Store(0)
		c.gap.Store(lineGap)
		c.left.Store(lineHurry)
	}
}

// judge compares a trial of the other way. It takes over when it has been
// cheaper in several trials more than not: few where it is much cheaper, more where it is
// not, and the more the more often they have changed places.
func (c *lineCell) judge(l *Lineariser, other uint32) {
	mine, its := c.cost[other^1].Load(), c.cost[other].Load()
	if l.whole && other == 1 {
		mine /= 2
	} else if l.whole {
		its /= 2
	}
	need := lineStreak * (1 + min(c.flips.Load(), lineMaxFlips))
	switch {
	case its+its/4 < mine:
		c.streak.Add(need / 4)
	case its+its/64 < mine:
		c.streak.Add(1)
	case c.streak.Load() > 2: // one trial that was unlucky proves nothing
		c.streak.Add(^uint32(1))
	default:
		c.streak.Store(0)
		c.rest(mine, its, l.whole)
		return
	}
	if c.streak.Load() < need {
		c.left.Store(lineHurry)
		return
	}
	c.streak.Store(0)
	c.flips.Add(1)
	c.settle(other == 1, lineGap)
	l.say(c, "changed")
}

// rest puts the next trial off: unless the other way looks cheaper, twice as far
// as the last, and far enough that
// trials cost less than a hundredth of the time.
func (c *lineCell) rest(mine, its int64, whole bool) {
	far := min(100*max(its-mine, 0)/max(mine, 1), lineMaxGap)
	gap := int64(lineGap)
	if whole {
		gap = lineWholeGap
	}
	if its >= mine {
		gap = min(max(2*c.gap.Load(), far, gap), lineMaxGap)
	}
	c.gap.Store(gap)
	c.left.Store(gap)
	c.base.Store(c.cost[c.way.Load()].Load())
}

// LineariseClass is a class of requests with what is known of it.
type LineariseClass struct {
	Op Op
	// MaxLen is the longest request of the class in bytes, 0 in the last.
	MaxLen int64
	// MaxPieces is the most pieces, of those that are counted: runs that do
	// not join at pages where Broken, else pieces apart in memory.
	MaxPieces int
	Broken    bool
	// Linear is the decision. AsIs and Copied are the costs in nanoseconds for
	// 4 KiB, 0 where not measured; their samples; how often the decision changed.
	Linear                     bool
	AsIs, Copied               int64
	AsIsSamples, CopiedSamples uint32
	Flips                      uint32
}

// String is the class and its decision in words.
func (x LineariseClass) String() string {
	size := "above " + FormatSize(1<<(lineSizes+8))
	if x.MaxLen > 0 {
		size = "up to " + FormatSize(x.MaxLen)
	}
	kind, way := "joining at pages", "as it is"
	if x.Broken {
		kind = "not joining"
	}
	if x.Linear {
		way = "through one buffer"
	}
	return fmt.Sprintf("%s %s in at most %d pieces %s: %s (4 KiB cost %s as it is, %s copied; %d and %d samples, %d changes)",
		x.Op, size, x.MaxPieces, kind, way, lineCost(x.AsIs), lineCost(x.Copied), x.AsIsSamples, x.CopiedSamples, x.Flips)
}

func lineCost(ns int64) string {
	if ns == 0 {
		return "unknown"
	}
	return fmt.Sprintf("%.1f µs", float64(ns)/1000)
}

// Mode is how decisions are made.
func (l *Lineariser) Mode() LineariseMode { return l.mode }

// Classes are those in which something has been decided.
func (l *Lineariser) Classes() []LineariseClass {
	var all []LineariseClass
	l.each(func(x LineariseClass, c *lineCell) {
		if c.decided.Load() {
			all = append(all, x)
		}
	})
	return all
}

// each calls f for every class, in order.
func (l *Lineariser) each(f func(x LineariseClass, c *lineCell)) {
	for i := range 2 * lineSizes * lineKinds * linePieces {
		c := l.at(i)
		f(c.class(i), c)
	}
}

// at is cell i in the order of directions, sizes, kinds, pieces.
func (l *Lineariser) at(i int) *lineCell {
	return &l.cells[i/(linePieces*lineKinds*lineSizes)][i/(linePieces*lineKinds)%lineSizes][i/linePieces%lineKinds][i%linePieces]
}

// class describes cell i.
func (c *lineCell) class(i int) LineariseClass {
	size := i / (linePieces * lineKinds) % lineSizes
	x := LineariseClass{Op: OpRead, MaxLen: 1 << (size + 10), MaxPieces: 2 << (i % linePieces), Broken: i/linePieces%lineKinds == 1,
		Linear: c.way.Load() == 1, AsIs: c.cost[0].Load() >> lineFrac, Copied: c.cost[1].Load() >> lineFrac,
		AsIsSamples: c.samples[0].Load(), CopiedSamples: c.samples[1].Load(), Flips: c.flips.Load()}
	if i >= linePieces*lineKinds*lineSizes {
		x.Op = OpWrite
	}
	if size == lineSizes-1 {
		x.MaxLen = 0
	}
	return x
}

// say logs what was decided for c: seldom, and so it may take its time.
func (l *Lineariser) say(c *lineCell, what string) {
	if l.log == nil || !l.log.Enabled(context.Background(), slog.LevelInfo) {
		return
	}
	for i := range 2 * lineSizes * lineKinds * linePieces {
		if l.at(i) == c {
			l.log.Info("linearise: "+what, "node", l.name, "decision", c.class(i).String())
		}
	}
}

// lineChoose decides how a request goes that the node takes as it is, unless
// the fast lane has decided already.
func (c *Child) lineChoose(rq *Req, op Op, v Vec, n int64) lineChoice {
	l := c.info.Linearise
	if l == nil || len(v) < 2 {
		return lineChoice{}
	}
	if ch := rq.choice; ch.in == l {
		rq.choice = lineChoice{}
		return ch
	}
	return l.choose(op, v, n, c.in.env.Now)
}

// lineLearn ends what lineChoose began.
func (c *Child) lineLearn(ch *lineChoice, n int64, err error) {
	if ch.cell != nil && err == nil {
		ch.learn(n, c.in.env.Now())
	}
}
