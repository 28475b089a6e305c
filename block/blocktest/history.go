package blocktest

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/platter-storage/platter/block"
)

// change is one write, write zeroes or discard, or what a read found, as the
// history knows it. Times are numbers that count beginnings and ends.
type change struct {
	id         int
	op         block.Op
	off, end   int64
	begin      uint64
	done       uint64 // forever while it is in flight
	certain    bool   // it happened, whole; else it may have
	durable    bool
	anything   bool   // it may have stored any bytes
	base       []byte // what it stored, from off on, where neither pattern nor zeroes
	observedAt uint64 // for what a read found: the beginning of the change it found
}

const forever = math.MaxUint64

// fill makes b what the change stores from pos on.
func (c *change) fill(b []byte, pos int64) {
	switch {
	case c.base != nil:
		copy(b, c.base[pos-c.off:])
	case c.op == block.OpWrite:
		fillPattern(b, uint64(c.id), pos)
	default:
		clear(b)
	}
}

// at is the byte that the change stores at pos.
func (c *change) at(pos int64) byte {
	var b [1]byte
	c.fill(b[:], pos)
	return b[0]
}

// bucketSize is the range of one list of changes, and pruneAt the length at
// which one is gone through for what no read can see any more.
const (
	bucketSize = 4096
	pruneAt    = 24
)

// history knows, of each byte, which values a read may see: that of every
// change that is in flight, or that ended after the newest change began which
// was over when the read began.
type history struct {
	mu      sync.Mutex
	now     uint64
	from    int64 // the first byte that it knows
	buckets [][]*change
	reads   map[uint64]bool // beginnings of reads in flight
	// keepVolatile: what is superseded but may be what a power cut leaves
	// is kept.
	keepVolatile bool
	flushed      uint64 // changes that ended before are durable
}

// newHistory knows the content at the beginning, base from byte from on.
func newHistory(from int64, base []byte, keepVolatile bool) *history {
	h := &history{now: 2, from: from, reads: map[uint64]bool{}, keepVolatile: keepVolatile}
	h.buckets = make([][]*change, (len(base)+bucketSize-1)/bucketSize)
	c := &change{id: -1, off: from, end: from + int64(len(base)), begin: 1, done: 2, certain: true, durable: true, base: base}
	h.enter(c)
	return h
}

func (h *history) enter(c *change) {
	for b := (c.off - h.from) / bucketSize; b <= (c.end-1-h.from)/bucketSize; b++ {
		h.buckets[b] = append(h.buckets[b], c)
		if len(h.buckets[b]) >= pruneAt && len(h.buckets[b])%8 == 0 {
			h.prune(int(b))
		}
	}
}

func (h *history) tick() uint64 { h.now++; return h.now }

// begin enters a change: from now on reads may see it.
func (h *history) begin(c *change) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c.begin, c.done = h.tick(), forever
	if c.off < c.end {
		h.enter(c)
	}
}

// end: the change is over. Where it is certain, what it replaced is gone.
func (h *history) end(c *change, certain, durable bool) {
	h.mu.Lock()
	c.done, c.certain, c.durable = h.tick(), certain, certain && durable
	h.mu.Unlock()
}

// beginRead notes when a read, or a flush, began.
func (h *history) beginRead() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.tick()
	h.reads[t] = true
	return t
}

// endFlush: what was over when the flush began is durable.
func (h *history) endFlush(began uint64, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.reads, began)
	if ok {
		h.flushed = max(h.flushed, began)
	}
}

// endRead checks what a read that began then found at off, and learns from it
// where nothing was in flight.
func (h *history) endRead(began uint64, off int64, got []byte) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.reads, began)
	return h.each(off, off+int64(len(got)), func(from, to int64, cs []*change) error {
		possible := visible(cs, began)
		if err := match(possible, from, got[from-off:to-off]); err != nil {
			return err
		}
		h.learn(possible, began, from, got[from-off:to-off])
		return nil
	})
}

// endZero checks a status that says that a range is zeroes.
func (h *history) endZero(began uint64, off, n int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.reads, began)
	return h.each(off, off+n, func(from, to int64, cs []*change) error {
		return match(visible(cs, began), from, make([]byte, to-from))
	})
}

// forget ends a read that is not to be checked.
func (h *history) forget(began uint64) {
	h.mu.Lock()
	delete(h.reads, began)
	h.mu.Unlock()
}

// checkDurable checks what a power cut would leave, with nothing in flight.
func (h *history) checkDurable(off int64, got []byte) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.each(off, off+int64(len(got)), func(from, to int64, cs []*change) error {
		var floor uint64
		for _, c := range cs {
			if h.isDurable(c) {
				floor = max(floor, c.begin)
			}
		}
		return match(since(cs, floor), from, got[from-off:to-off])
	})
}

func (h *history) isDurable(c *change) bool {
	return c.certain && (c.durable || c.observedAt == 0 && c.done < h.flushed)
}

// each calls f for the parts of [off, end) that the same changes cover.
func (h *history) each(off, end int64, f func(from, to int64, cs []*change) error) error {
	for off < end {
		bucket := h.buckets[(off-h.from)/bucketSize]
		to := min(end, h.from+((off-h.from)/bucketSize+1)*bucketSize)
		for _, c := range bucket {
			if c.off > off {
				to = min(to, c.off)
			}
			if c.end > off {
				to = min(to, c.end)
			}
		}
		cs := slices.DeleteFunc(slices.Clone(bucket), func(c *change) bool { return c.off > off || c.end <= off })
		if err := f(off, to, cs); err != nil {
			return err
		}
		off = to
	}
	return nil
}

// visible are the changes of cs that a read may see that began then.
func visible(cs []*change, began uint64) []*change {
	var floor uint64
	for _, c := range cs {
		if c.certain && c.done < began {
			floor = max(floor, c.begin)
		}
	}
	return since(cs, floor)
}

// since are the changes that were not over at the time floor.
func since(cs []*change, floor uint64) (out []*change) {
	for _, c := range cs {
		if c.done > floor {
			out = append(out, c)
		}
	}
	return out
}

// match checks that each byte of got, which lies at from, is of one of the
// changes.
func match(cs []*change, from int64, got []byte) error {
	ok := make([]bool, len(got))
	want := make([]byte, len(got))
	for _, c := range cs {
		c.fill(want, from)
		if c.anything || bytes.Equal(want, got) {
			return nil
		}
		for i, x := range got {
			ok[i] = ok[i] || want[i] == x
		}
	}
	if i := slices.Index(ok, false); i >= 0 {
		return impossible(from+int64(i), got[i], cs)
	}
	return nil
}

// impossible says which byte no read may see, and why. Called with mu held.
func impossible(pos int64, got byte, want []*change) error {
	s := fmt.Sprintf("the byte at %d is %#02x; possible are", pos, got)
	for _, c := range want {
		s += fmt.Sprintf(" %#02x (%s)", c.at(pos), c)
	}
	return errors.New(s)
}

func (c *change) String() string {
	state := "over"
	if c.done == forever {
		state = "in flight"
	} else if !c.certain {
		state = "may have happened"
	}
	if c.id < 0 {
		return "content at the beginning"
	}
	return fmt.Sprintf("operation %d, %s, %s", c.id, c.op, state)
}

// learn: where several values were possible though nothing was in flight while
// the read ran, the one that it found is the one from now on.
func (h *history) learn(cs []*change, began uint64, from int64, got []byte) {
	if len(cs) < 2 || slices.ContainsFunc(cs, func(c *change) bool { return c.done > began || c.anything }) {
		return
	}
	for i := 0; i < len(got); {
		pos := from + int64(i)
		c := cs[slices.IndexFunc(cs, func(c *change) bool { return c.at(pos) == got[i] })]
		k := i + 1
		for k < len(got) && c.at(from+int64(k)) == got[k] {
			k++
		}
		seen := *c
		seen.off, seen.end = pos, from+int64(k)
		if c.base != nil {
			seen.base = c.base[pos-c.off : from+int64(k)-c.off]
		}
		seen.observedAt, seen.begin, seen.done, seen.certain, seen.durable = c.begin, began, h.tick(), true, false
		h.enter(&seen)
		i = k
	}
}

// prune drops from a bucket what nothing can see any more.
func (h *history) prune(b int) {
	oldest := h.now
	for t := range h.reads {
		oldest = min(oldest, t)
	}
	needed := map[*change]bool{}
	from := h.from + int64(b)*bucketSize
	_ = h.each(from, from+bucketSize, func(_, _ int64, cs []*change) error {
		for _, c := range visible(cs, oldest) {
			needed[c] = true
		}
		var floor uint64
		for _, c := range cs {
			if h.isDurable(c) {
				floor = max(floor, c.begin)
			}
		}
		for _, c := range since(cs, floor) {
			needed[c] = needed[c] || h.keepVolatile
		}
		return nil
	})
	h.buckets[b] = slices.DeleteFunc(h.buckets[b], func(c *change) bool { return !needed[c] })
}
