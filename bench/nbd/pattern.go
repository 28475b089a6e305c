package main

import "encoding/binary"

// zeroes is the content of a disk that reads as zeroes.
func zeroes(b []byte, _ int64) { clear(b) }

// pattern is a content of 8-byte words, each a mix of its own position and
// salt, so that a byte from elsewhere or of another time shows.
func pattern(salt uint64) content {
	return func(b []byte, off int64) {
		word := uint64(off)/8 + salt<<60
		if skip := int(off % 8); skip > 0 {
			var w [8]byte
			binary.LittleEndian.PutUint64(w[:], mix(word))
			b = b[copy(b, w[skip:]):]
			word++
		}
		for ; len(b) >= 8; b = b[8:] {
			binary.LittleEndian.PutUint64(b, mix(word))
			word++
		}
		if len(b) > 0 {
			var w [8]byte
			binary.LittleEndian.PutUint64(w[:], mix(word))
			copy(b, w[:])
		}
	}
}

// mix spreads x over 64 bits, one to one.
func mix(x uint64) uint64 {
	x = (x + 1) * 0x9e3779b97f4a7c15
	x ^= x >> 32
	x *= 0xd6e8feb86659fd93
	return x ^ x>>32
}
