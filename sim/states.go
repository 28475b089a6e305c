package sim

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"strings"

	"github.com/platter-storage/platter/block"
)

// State is what a power cut can leave.
type State struct {
	// At is the time of the cut. Content is what each disk holds; it is
	// valid until the next state and may be changed.
	At      uint64
	Content [][]byte

	kept []*event
	how  []fate
	left int // events that were durable
}

// fate says how much of a request that was not durable is there.
type fate uint8

const (
	absent fate = iota
	present
	torn
)

// String lists the requests that were not durable, and what became of them:
// what a person needs who looks for the missing order.
func (s *State) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "power cut at %d, %d requests durable", s.At, s.left)
	for i, e := range s.kept {
		fmt.Fprintf(&b, "\n  %s of disk %d at %d, %d bytes, issued %d, done %d: %s", e.op, e.disk, e.off, e.n, e.issue, e.done, [...]string{"absent", "present", "torn"}[s.how[i]])
	}
	return b.String()
}

// maker makes states, in the order of time.
type maker struct {
	*State
	rng    *rand.Rand
	events []*event
	// base is each disk with the first events, which are durable.
	base  [][]byte
	first int
	// durableAt is when each event became durable; 0 never.
	durableAt []uint64
}

// States calls f with states that a power cut can leave: at each time of the
// log's clock, each choice of what was not durable where there are at most
// perMoment, and else as many as that, drawn with seed. One of four
// drawn states has torn requests. It returns the number of states.
func (l *Log) States(seed uint64, perMoment int, f func(s *State) error) (int, error) {
	m := &maker{State: &State{}, rng: rand.New(rand.NewPCG(seed, 7)), events: l.events}
	for _, d := range l.disks {
		m.base = append(m.base, append([]byte(nil), d.base...))
		m.Content = append(m.Content, nil)
	}
	m.whenDurable()
	count := 0
	for t := uint64(1); t <= l.now; t++ {
		m.moment(t)
		n := perMoment
		all := len(m.kept) < bits.Len(uint(perMoment))
		if all {
			n = 1 << len(m.kept)
		}
		for i := range n {
			m.choose(i, all)
			m.build()
			count++
			if err := f(m.State); err != nil {
				return count, err
			}
		}
	}
	return count, nil
}

// whenDurable finds when each event became durable: when the first flush
// completed that was issued after the event's completion, or with its own
// completion where it had FUA.
func (m *maker) whenDurable() {
	m.durableAt = make([]uint64, len(m.events))
	for i, e := range m.events {
		if e.op == block.OpFlush || e.done == 0 {
			continue
		}
		if e.fua {
			m.durableAt[i] = e.done
		}
		for _, x := range m.events[i+1:] {
			if x.op == block.OpFlush && x.disk == e.disk && x.issue > e.done && x.done != 0 && (m.durableAt[i] == 0 || x.done < m.durableAt[i]) {
				m.durableAt[i] = x.done
			}
		}
	}
}

// moment sets the time of the cut.
func (m *maker) moment(t uint64) {
	m.At, m.kept, m.how, m.left = t, m.kept[:0], m.how[:0], 0
	for ; m.first < len(m.events) && (m.events[m.first].op == block.OpFlush || m.durable(m.first)); m.first++ {
		e := m.events[m.first]
		m.base[e.disk] = apply(m.base[e.disk], e, nil)
	}
	m.left = m.first
	for i := m.first; i < len(m.events) && m.events[i].issue <= t; i++ {
		switch e := m.events[i]; {
		case e.op == block.OpFlush:
		case m.durable(i):
			m.left++
		default:
			m.kept, m.how = append(m.kept, e), append(m.how, absent)
		}
	}
}

func (m *maker) durable(i int) bool { return m.durableAt[i] != 0 && m.durableAt[i] <= m.At }

// choose decides what became of the requests that were not durable: choice i of
// all, or one at random.
func (m *maker) choose(i int, all bool) {
	way := m.rng.IntN(6)
	at := m.rng.IntN(len(m.how) + 1)
	for k := range m.how {
		keep := false
		switch {
		case all:
			keep = i>>k&1 != 0
		case way == 0: // what came first is there
			keep = k < at
		case way == 1: // what came last is there
			keep = k >= at
		case way == 2: // one is missing
			keep = k != at
		case way == 3: // one is there
			keep = k == at
		default:
			keep = m.rng.IntN(2) == 0
		}
		m.how[k] = absent
		if keep {
			m.how[k] = present
		}
		if !all && m.kept[k].op != block.OpTruncate && (way == 5 || m.rng.IntN(16) == 0) {
			m.how[k] = torn
		}
	}
}

// build makes the content, in the order of issue.
func (m *maker) build() {
	for d := range m.base {
		m.Content[d] = append(m.Content[d][:0], m.base[d]...)
	}
	k := 0
	for i := m.first; i < len(m.events) && m.events[i].issue <= m.At; i++ {
		e := m.events[i]
		if e.op == block.OpFlush {
			continue
		}
		how := present
		if k < len(m.kept) && m.kept[k] == e {
			how = m.how[k]
			k++
		}
		switch how {
		case present:
			m.Content[e.disk] = apply(m.Content[e.disk], e, nil)
		case torn:
			m.Content[e.disk] = apply(m.Content[e.disk], e, m.rng)
		}
	}
}

// apply does to b what e did: with rng only to some sectors, at random or up to
// one of them.
func apply(b []byte, e *event, rng *rand.Rand) []byte {
	if e.op == block.OpTruncate {
		return resize(b, e.n)
	}
	end, from := e.off+e.n, e.off
	stop, random := end, false
	if rng != nil {
		stop, random = e.off+rng.Int64N(e.n+1), rng.IntN(2) == 0
	}
	for from < end {
		to := min(end, (from/Sector+1)*Sector)
		if rng == nil {
			to = end
		}
		if rng == nil || random && rng.IntN(2) == 0 || !random && to <= stop {
			if to > int64(len(b)) {
				b = resize(b, to)
			}
			if e.op == block.OpWrite {
				copy(b[from:to], e.data[from-e.off:to-e.off])
			} else {
				clear(b[from:to])
			}
		}
		from = to
	}
	return b
}
