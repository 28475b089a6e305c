package sim

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// content is what a sector of a disk holds, as a number: 0 is zeroes, and each
// other fills the sector with bytes of its own.
type content uint64

// backed is the content of a backing file's sectors.
const backed content = 1 << 40

// fill makes b, which is one sector or several from sector on, hold c.
func (c content) fill(b []byte, sector int64) {
	if c == 0 {
		clear(b)
		return
	}
	for i := 0; i < len(b); i += 8 {
		x := uint64(c)
		if i%Sector != 0 {
			x = (x*0x9e3779b97f4a7c15 ^ uint64(sector+int64(i/Sector))*0xbf58476d1ce4e5b9) + uint64(i%Sector)
		}
		binary.LittleEndian.PutUint64(b[i:], x)
	}
}

// contentOf is the content of sector b; ok is false where it is none.
func contentOf(b []byte, sector int64) (c content, ok bool) {
	if isZero(b) {
		return 0, true
	}
	c = content(binary.LittleEndian.Uint64(b))
	var want [Sector]byte
	c.fill(want[:], sector)
	return c, bytes.Equal(b, want[:])
}

// step is one thing that a user did.
type step struct {
	what       string
	begin, end uint64
	flush, fua bool
	// durableAt is when it became durable, 0 for never.
	durableAt uint64
}

// change is what a step made of a sector. Where maybe is set, what was there
// before may be there still, whatever is durable; else is what else may be.
type change struct {
	step  int
	is    content
	or    content
	maybe bool
}

// expectation is what a user of a disk may rely on.
type expectation struct {
	steps     []*step
	sectors   [][]change
	sizes     []sized
	snapshots []*saved
}

// sized is a size that a step set, in sectors.
type sized struct {
	step int
	n    int64
}

// saved is a snapshot: from made on there may be one, and until dropped.
type saved struct {
	name          string
	made, dropped int // steps; dropped is -1 while there is one
	is            []content
}

// settle computes when each step became durable.
func (x *expectation) settle() {
	for i, s := range x.steps {
		if s.fua {
			s.durableAt = s.end
		}
		for _, f := range x.steps[i:] {
			if f.flush && f.begin >= s.end && f.end != 0 && (s.durableAt == 0 || f.end < s.durableAt) {
				s.durableAt = f.end
			}
		}
	}
}

func (x *expectation) begun(step int, t uint64) bool { return x.steps[step].begin <= t }

func (x *expectation) durable(step int, t uint64) bool {
	at := x.steps[step].durableAt
	return at != 0 && at <= t
}

// size checks a disk's size in sectors after a power cut at t.
func (x *expectation) size(t uint64, n int64) error {
	var may []int64
	for i := len(x.sizes) - 1; i >= 0; i-- {
		s := x.sizes[i]
		if !x.begun(s.step, t) {
			continue
		}
		if s.n == n {
			return nil
		}
		may = append(may, s.n)
		if x.durable(s.step, t) {
			break
		}
	}
	return fmt.Errorf("the disk has %d sectors, it may have %v", n, may)
}

// sector checks one sector after a power cut at t.
func (x *expectation) sector(t uint64, at int64, b []byte) error {
	got, ok := contentOf(b, at)
	list := x.sectors[at]
	for i := len(list) - 1; i >= 0 && ok; i-- {
		c := list[i]
		if !x.begun(c.step, t) {
			continue
		}
		if c.is == got || c.or == got {
			return nil
		}
		if x.durable(c.step, t) && !c.maybe {
			break
		}
	}
	return x.wrong(t, at, got, ok)
}

// wrong says what a sector holds and what it may hold.
func (x *expectation) wrong(t uint64, at int64, got content, whole bool) error {
	s := fmt.Sprintf("sector %d holds %d", at, got)
	if !whole {
		s = fmt.Sprintf("sector %d holds what nobody wrote (%#x first)", at, uint64(got))
	}
	s += "; it was given"
	for _, c := range x.sectors[at] {
		if x.begun(c.step, t) {
			st := x.steps[c.step]
			s += fmt.Sprintf(" %d by %q (%d to %d, durable from %d)", c.is, st.what, st.begin, st.end, st.durableAt)
		}
	}
	return fmt.Errorf("%s", s)
}

// latest is what a sector holds while nothing is cut.
func (x *expectation) latest(at int64) content { return x.sectors[at][len(x.sectors[at])-1].is }
