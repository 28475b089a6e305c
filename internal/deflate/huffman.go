package deflate

import (
	"math/bits"
	"slices"
)

// code is a prefix code of n symbols: how often each is used, the lengths of their
// codes in bits, and what is written for each: the code, its first bit lowest, and
// its length from bit wordLength on.
type code struct {
	n      int
	freq   [288]uint32
	length [288]uint8
	word   [288]uint32

	// Of build: the symbols in use, least used first, and the tree above them.
	order [288]uint32 // use<<symbolBits | symbol
	tree  [288]node
}

// node is an inner node of the tree: how often what is below it is used, what is
// above it, and how deep it lies.
type node struct {
	freq  uint32
	above uint16
	depth uint8
}

const (
	wordLength = 16
	symbolBits = 9
	maxBits    = 15
)

// begin makes a code of n symbols with none used.
func (c *code) begin(n int) {
	c.n = n
	clear(c.freq[:n])
}

// cost counts the bits of what is counted in c, written by other.
func (c *code) cost(other *code) int {
	sum := 0
	for s, f := range c.freq[:c.n] {
		sum += int(f) * int(other.length[s])
	}
	return sum
}

// build makes the code from how often its symbols are used; no code is longer than
// limit bits. It has two symbols at least, used or not: decoders differ on less.
func (c *code) build(limit int) {
	clear(c.length[:c.n])
	n := 0
	for s, f := range c.freq[:c.n] {
		if f != 0 {
			c.order[n] = f<<symbolBits | uint32(s)
			n++
		}
	}
	for s := uint32(0); n < 2; s++ {
		if c.freq[s] == 0 {
			c.order[n] = s
			n++
		}
	}
	order := c.order[:n]
	slices.Sort(order)
	depths := c.depths(order, limit)
	fit(&depths, limit)
	at := 0
	for l := limit; l > 0; l-- {
		for range depths[l] {
			c.length[order[at]&(1<<symbolBits-1)] = uint8(l)
			at++
		}
	}
	c.number()
}

// depths builds the tree over the sorted symbols and counts how many of them lie at
// each depth; what is deeper than limit counts as there. Inner nodes come into being
// in the order of their use, so the two least used of all are always at the heads
// of two queues.
func (c *code) depths(order []uint32, limit int) (count [maxBits + 1]int) {
	var leaf, inner int
	inners := len(order) - 1
	var leafAbove [288]uint16
	for made := range inners {
		sum := uint32(0)
		for range 2 {
			if inner == made || leaf < len(order) && order[leaf]>>symbolBits <= c.tree[inner].freq {
				sum += order[leaf] >> symbolBits
				leafAbove[leaf] = uint16(made)
				leaf++
			} else {
				sum += c.tree[inner].freq
				c.tree[inner].above = uint16(made)
				inner++
			}
		}
		c.tree[made].freq = sum
	}
	c.tree[inners-1].depth = 0
	for i := inners - 2; i >= 0; i-- {
		c.tree[i].depth = c.tree[c.tree[i].above].depth + 1
	}
	for i := range order {
		count[min(int(c.tree[leafAbove[i]].depth)+1, limit)]++
	}
	return count
}

// fit makes the numbers of codes of each length those of a complete code: where
// codes were cut to limit bits, there are too many. Each step makes one of the
// longest that are shorter than limit a bit longer; what that frees too much, codes
// of limit bits take that become one shorter.
func fit(count *[maxBits + 1]int, limit int) {
	over := -(1 << limit)
	for l := 1; l <= limit; l++ {
		over += count[l] << (limit - l)
	}
	for l := limit - 1; over > 0; {
		for count[l] == 0 {
			l--
		}
		count[l]--
		count[l+1]++
		over -= 1 << (limit - l - 1)
		l = min(l+1, limit-1)
	}
	for ; over < 0; over++ {
		count[limit]--
		count[limit-1]++
	}
}

// number gives the symbols their codes by the lengths (section 3.2.2).
func (c *code) number() {
	var count, next [maxBits + 1]uint32
	for _, l := range c.length[:c.n] {
		count[l]++
	}
	count[0] = 0
	for l := 1; l <= maxBits; l++ {
		next[l] = (next[l-1] + count[l-1]) << 1
	}
	for s, l := range c.length[:c.n] {
		if l == 0 {
			continue
		}
		c.word[s] = uint32(bits.Reverse16(uint16(next[l]))>>(16-l)) | uint32(l)<<wordLength
		next[l]++
	}
}

// header describes the two codes of a block (section 3.2.7): their lengths, with
// runs written short, in a code of its own.
type header struct {
	code     code
	lengths  [286 + 30]uint8
	items    [286 + 30]uint16 // symbol, and from bit 8 on what follows it
	n        int
	literals int
	dists    int
	lens     int
}

// The symbols for runs: the last length again, three to six times; zeroes, 3 to 10
// and 11 to 138.
const (
	lengthAgain = 16
	zeroesFew   = 17
	zeroesMany  = 18
)

var (
	headerOrder = [19]uint8{16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15}
	headerExtra = [19]uint8{lengthAgain: 2, zeroesFew: 3, zeroesMany: 7}
)

// build describes the codes and gives the number of bits of that.
func (h *header) build(literals, dists *code) int {
	h.literals, h.dists = used(literals, firstLength), used(dists, 1)
	n := copy(h.lengths[:], literals.length[:h.literals])
	n += copy(h.lengths[n:], dists.length[:h.dists])
	h.n = 0
	h.code.begin(19)
	for i := 0; i < n; {
		l, run := h.lengths[i], 1
		for i+run < n && h.lengths[i+run] == l {
			run++
		}
		i += run
		h.run(l, run)
	}
	h.code.build(7)
	h.lens = 19
	for h.lens > 4 && h.code.length[headerOrder[h.lens-1]] == 0 {
		h.lens--
	}
	size := 5 + 5 + 4 + 3*h.lens + h.code.cost(&h.code)
	for s, extra := range headerExtra {
		size += int(h.code.freq[s]) * int(extra)
	}
	return size
}

// used is how many symbols are described, at least so many.
func used(c *code, least int) int {
	n := c.n
	for n > least && c.length[n-1] == 0 {
		n--
	}
	return n
}

// run describes count symbols with codes of l bits.
func (h *header) run(l uint8, count int) {
	if l != 0 {
		h.item(uint16(l), 0)
		count--
	}
	for count >= 3 {
		switch {
		case l != 0:
			n := min(count, 6)
			if count == 7 || count == 8 {
				n = 4 // then there are three or four more: two runs and nothing single
			}
			h.item(lengthAgain, n-3)
			count -= n
		case count > 10:
			n := min(count, 138)
			h.item(zeroesMany, n-11)
			count -= n
		default:
			h.item(zeroesFew, count-3)
			count = 0
		}
	}
	for range count {
		h.item(uint16(l), 0)
	}
}

func (h *header) item(symbol uint16, follows int) {
	h.items[h.n] = symbol | uint16(follows)<<8
	h.n++
	h.code.freq[symbol]++
}

func (h *header) write(w *bitWriter) {
	w.put(uint64(h.literals-firstLength)|uint64(h.dists-1)<<5|uint64(h.lens-4)<<10, 14)
	for _, s := range headerOrder[:h.lens] {
		w.put(uint64(h.code.length[s]), 3)
	}
	for _, it := range h.items[:h.n] {
		w.putCode(h.code.word[it&0xff])
		w.put(uint64(it>>8), uint(headerExtra[it&0xff]))
	}
}
