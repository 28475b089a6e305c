package scenario

import "encoding/binary"

// Sector is the unit in which a pattern repeats: the smallest a disk may have.
const Sector = 512

// Fill writes the content that the range of a disk beginning at off has by a
// seed. Each eight bytes tell both, so that what is missing, old or misplaced
// shows. Offset and length are multiples of eight.
func Fill(p []byte, seed uint64, off int64) {
	for i := 0; i+8 <= len(p); i += 8 {
		binary.LittleEndian.PutUint64(p[i:], mix(seed^mix(uint64(off)+uint64(i))))
	}
}

// mix is the finaliser of SplitMix64: a bijection that spreads every bit.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Stamp is the content of a block for a version: each sector begins with the
// version and the block's number, the rest follows from them and the seed.
func Stamp(p []byte, seed, block, version uint64) {
	for at := 0; at+Sector <= len(p); at += Sector {
		s := p[at : at+Sector]
		Fill(s, seed^mix(version), int64(block)<<32+int64(at))
		binary.LittleEndian.PutUint64(s, version)
		binary.LittleEndian.PutUint64(s[8:], block)
	}
}

// Stamped reads the version that a sector claims.
func Stamped(sector []byte) uint64 { return binary.LittleEndian.Uint64(sector) }
