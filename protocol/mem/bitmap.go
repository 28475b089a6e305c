package mem

import (
	"math/bits"
	"sync/atomic"
)

// bitmap has one bit for each chunk. All its methods take ranges of bytes and
// may be called at the same time.
type bitmap []atomic.Uint64

func newBitmap(chunks int) bitmap { return make(bitmap, (chunks+63)/64) }

// grown is a copy with room for more chunks. Nothing else is in flight.
func (b bitmap) grown(chunks int) bitmap {
	g := newBitmap(max(chunks, 64*len(b)))
	for i := range b {
		g[i].Store(b[i].Load())
	}
	return g
}

// mask has the bits of word w that stand for chunks first to last.
func mask(w, first, last int64) uint64 {
	m := ^uint64(0)
	if w == first>>6 {
		m &= ^uint64(0) << (first & 63)
	}
	if w == last>>6 {
		m &= ^uint64(0) >> (63 - last&63)
	}
	return m
}

// set sets the bits of all chunks that [off, end) touches, and writes to
// nothing where they are set already: the usual case, on every write.
func (b bitmap) set(off, end int64) {
	if off >= end {
		return
	}
	first, last := off>>chunkBits, (end-1)>>chunkBits
	for w := first >> 6; w <= last>>6; w++ {
		if m := mask(w, first, last); b[w].Load()&m != m {
			b[w].Or(m)
		}
	}
}

// clear clears the bits of all chunks that [off, end) touches.
func (b bitmap) clear(off, end int64) {
	if off >= end {
		return
	}
	first, last := off>>chunkBits, (end-1)>>chunkBits
	for w := first >> 6; w <= last>>6; w++ {
		b[w].And(^mask(w, first, last))
	}
}

// any reports whether a chunk that [off, end) touches has its bit set.
func (b bitmap) any(off, end int64) bool {
	if off >= end {
		return false
	}
	first, last := off>>chunkBits, (end-1)>>chunkBits
	for w := first >> 6; w <= last>>6; w++ {
		if b[w].Load()&mask(w, first, last) != 0 {
			return true
		}
	}
	return false
}

// run is the length of the part of [off, end), not empty, from its beginning
// that lies in chunks whose bits are the same, and that bit.
func (b bitmap) run(off, end int64) (n int64, set bool) {
	first, last := off>>chunkBits, (end-1)>>chunkBits
	set = b[first>>6].Load()>>(first&63)&1 != 0
	for w := first >> 6; w <= last>>6; w++ {
		x := b[w].Load()
		if set {
			x = ^x
		}
		if x &= mask(w, first, last); x != 0 {
			// At least one chunk: the first bit may have changed since.
			stop := max(w<<6+int64(bits.TrailingZeros64(x)), first+1)
			return min(stop<<chunkBits, end) - off, set
		}
	}
	return end - off, set
}
