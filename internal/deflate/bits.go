package deflate

import "encoding/binary"

// bitWriter writes bits, the lowest first (section 3.1.1). What is written has been
// found to fit before: see room.
type bitWriter struct {
	b  []byte
	at int // whole bytes written
	// The bits that are not yet in b: at most 7 between two calls of flush.
	acc uint64
	n   uint
}

// room says whether so many bits fit.
func (w *bitWriter) room(bits int) bool {
	return (int(w.n)+bits+7)/8 <= len(w.b)-w.at
}

// add takes a word of a code, and addBits n bits; flush is due before there are
// more than 64.
func (w *bitWriter) add(word uint32) {
	w.acc |= uint64(word&(1<<wordLength-1)) << (w.n & 63)
	w.n += uint(word >> wordLength)
}

func (w *bitWriter) addBits(v uint32, n uint) {
	w.acc |= uint64(v) << (w.n & 63)
	w.n += n
}

// flush moves whole bytes to b, eight at once where there is room: those that are
// not yet whole are written again later.
func (w *bitWriter) flush() {
	if w.at+8 <= len(w.b) {
		binary.LittleEndian.PutUint64(w.b[w.at:], w.acc)
		w.at += int(w.n >> 3)
		w.acc >>= w.n &^ 7 & 63
		w.n &= 7
		return
	}
	for ; w.n >= 8; w.n -= 8 {
		w.b[w.at] = byte(w.acc)
		w.at++
		w.acc >>= 8
	}
}

func (w *bitWriter) putCode(word uint32) {
	w.add(word)
	w.flush()
}

// put writes n bits, at most 32.
func (w *bitWriter) put(v uint64, n uint) {
	w.addBits(uint32(v), n)
	w.flush()
}

// maxStored is what a stored block holds at most, in bytes (section 3.2.4).
const maxStored = 1<<16 - 1

// storedBits is how many bits stored takes for so many bytes.
func (w *bitWriter) storedBits(length int) int {
	blocks := max(1, (length+maxStored-1)/maxStored)
	first := int(-(w.n + 3) & 7)
	return 3 + first + (blocks-1)*8 + blocks*32 + length*8
}

// stored writes p as it is; final is 1 where the stream ends with it.
func (w *bitWriter) stored(p []byte, final uint64) {
	for {
		part := p[:min(len(p), maxStored)]
		p = p[len(part):]
		last := final
		if len(p) > 0 {
			last = 0
		}
		w.put(last, 3)
		w.put(0, -w.n&7)
		w.put(uint64(len(part))|uint64(^uint16(len(part)))<<16, 32)
		w.at += copy(w.b[w.at:], part)
		if len(p) == 0 {
			return
		}
	}
}

// end fills the last byte and gives the length in bytes.
func (w *bitWriter) end() int {
	w.put(0, -w.n&7)
	return w.at
}
