package deflate

import "math/bits"

// The alphabet of literals and lengths, and that of distances (section 3.2.5).
const (
	endOfBlock  = 256
	firstLength = 257
	minMatch    = 3
	maxMatch    = 258
)

// lengthSymbol gives for a length less 3 its symbol, counted from firstLength, and
// lengthExtra for such a symbol the number of bits that follow it.
var lengthSymbol, lengthExtra = func() (symbol [256]uint8, extra [32]uint8) {
	for l := range uint32(maxMatch - minMatch) {
		if l < 8 {
			symbol[l] = uint8(l)
			continue
		}
		top := uint(bits.Len32(l)) - 1
		symbol[l] = uint8(4*(top-1) + uint(l>>(top-2)&3))
		extra[symbol[l]] = uint8(top - 2)
	}
	symbol[maxMatch-minMatch] = 28 // has a symbol of its own, without bits
	return symbol, extra
}()

// distSymbol gives the symbol of a distance less 1.
func distSymbol(d uint32) uint32 {
	if d < 4 {
		return d
	}
	top := uint32(bits.Len32(d)) - 1
	return 2*top + d>>(top-1)&1
}

// distExtra is the number of bits that follow the symbol of a distance. The bits
// are the lowest of the distance less 1.
func distExtra(symbol uint32) uint {
	if symbol < 4 {
		return 0
	}
	return uint(symbol/2 - 1)
}

// extraBits counts the bits that follow the symbols of a block.
func extraBits(literals, dists *code) int {
	n := 0
	for s := range 29 {
		n += int(literals.freq[firstLength+s]) * int(lengthExtra[s])
	}
	for s := range uint32(30) {
		n += int(dists.freq[s]) * int(distExtra(s))
	}
	return n
}

// The codes of a block with fixed codes (section 3.2.6).
var fixedLiterals, fixedDists = func() (literals, dists code) {
	literals.n, dists.n = 288, 30
	for s := range 288 {
		switch {
		case s < 144:
			literals.length[s] = 8
		case s < 256:
			literals.length[s] = 9
		case s < 280:
			literals.length[s] = 7
		default:
			literals.length[s] = 8
		}
	}
	for s := range 30 {
		dists.length[s] = 5
	}
	literals.number()
	dists.number()
	return literals, dists
}()
