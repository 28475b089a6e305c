package deflate

import (
	"encoding/binary"
	"math/bits"
)

// How much is tried for a longer match: how many places of equal hash are looked
// at; a match of goodMatch bytes makes them fewer, one of niceMatch is taken at
// once; and one of lazyMatch is not compared with one that begins a byte later.
const (
	chainLength = 128
	goodMatch   = 8
	niceMatch   = 128
	lazyMatch   = 16
)

const hashBits = 15

// minLoad is what a hash reads, in bytes: the last three bytes begin no match.
const minLoad = 4

// finder finds earlier places with the same bytes. Positions count on from stream
// to stream, so that places of an earlier stream lie too far back and nothing need
// be cleared.
type finder struct {
	src  []byte
	base int32 // position of src[0]
	past int32 // positions given out
	next int   // the first offset in src that is not in the tables
	// The last position with each hash, and for each position of the window the one
	// before it with the same hash.
	head  [1 << hashBits]int32
	chain [Window]int32
}

// maxPosition is where positions begin anew.
const maxPosition = 1 << 30

func (f *finder) begin(src []byte) {
	if f.past > maxPosition {
		clear(f.head[:])
		f.past = 0
	}
	f.src, f.next = src, 0
	f.base = f.past + Window + 1
	f.past = f.base + int32(len(src))
}

func load32(b []byte, i int) uint32 { return binary.LittleEndian.Uint32(b[i:]) }

// insert puts the place at into the tables and gives the one before it.
func (f *finder) insert(at int, v uint32) int32 {
	h := (v & 0xffffff) * 0x9e3779b1 >> (32 - hashBits)
	p := f.base + int32(at)
	before := f.head[h]
	f.head[h] = p
	f.chain[p&(Window-1)] = before
	return before
}

// skipTo puts what lies before at into the tables.
func (f *finder) skipTo(at int) {
	end := min(at, len(f.src)-minLoad+1)
	for ; f.next < end; f.next++ {
		f.insert(f.next, load32(f.src, f.next))
	}
	f.next = at
}

// find gives the longest match at at that is longer than have, or have. It puts at
// into the tables: it is the first that is not there.
func (f *finder) find(at, have int) (length, dist int) {
	f.next = at + 1
	rest := f.src[at:]
	if len(rest) < minLoad || len(rest) <= have {
		return have, 0
	}
	v := load32(rest, 0)
	place := int(f.insert(at, v) - f.base)
	most := min(len(rest), maxMatch)
	tries := chainLength
	if have >= goodMatch {
		tries /= 4
	}
	// A place is worth a look if the four bytes agree that end one beyond the best
	// match so far; for the first, if it is a match at all.
	from, mask := max(have-3, 0), ^uint32(0)
	if have < minMatch {
		mask = 0xffffff
	}
	want := load32(rest, from) & mask
	least := at - Window
	for ; place >= least && tries > 0; tries-- {
		if load32(f.src, place+from)&mask == want {
			n := equal(f.src[place:], rest[:most])
			if n > have {
				have, dist = n, at-place
				if n >= min(niceMatch, most) {
					return have, dist
				}
				from, mask = n-3, ^uint32(0)
				want = load32(rest, from)
			}
		}
		p := int(f.chain[(f.base+int32(place))&(Window-1)] - f.base)
		if p >= place {
			break // the window's last place: its link is at's
		}
		place = p
	}
	return have, dist
}

// equal is how many bytes at the beginning are the same; a is not shorter than b.
func equal(a, b []byte) int {
	n := 0
	for n+8 <= len(b) {
		if x := binary.LittleEndian.Uint64(a[n:]) ^ binary.LittleEndian.Uint64(b[n:]); x != 0 {
			return n + bits.TrailingZeros64(x)/8
		}
		n += 8
	}
	for n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}
