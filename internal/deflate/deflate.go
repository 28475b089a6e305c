// Package deflate compresses pieces of memory to raw deflate streams (RFC 1951)
// that refer at most 4 KiB back, which is what compressed clusters of qcow2 are.
// A stream is written into memory that its caller has; one that does not fit is
// given up.
package deflate

// Window is how far a match may lie back, in bytes.
const Window = 4096

// MaxInput is the most that one stream may hold, in bytes: the largest cluster.
const MaxInput = 2 << 20

// blockTokens is how many literals and matches share their codes.
const blockTokens = 1 << 14

// Encoder has the state of one stream at a time, some 230 KiB, and is for any
// number of streams, one after the other. The zero Encoder is ready.
type Encoder struct {
	finder finder
	out    bitWriter
	src    []byte

	// The block that is being collected: what it is made of, where it begins in
	// src, and how often each symbol is in it.
	tokens   [blockTokens]token
	n        int
	from     int
	literals code // literals, the end of the block, lengths
	dists    code
	head     header
}

// token is a literal byte, or a match: its length less 3 in bits 16 to 23, its
// distance less 1 below.
type token uint32

const tokenMatch token = 1 << 31

// Encode writes src as one stream to dst and gives the stream's length in bytes.
// ok is false where it does not fit into dst, or src is longer than MaxInput; then
// dst has nothing of use, as what follows a stream in dst has not. Nothing is
// allocated. The two do not overlap.
func (e *Encoder) Encode(dst, src []byte) (n int, ok bool) {
	if len(src) > MaxInput {
		return 0, false
	}
	e.out = bitWriter{b: dst}
	e.src = src
	e.from = 0
	e.finder.begin(src)
	ok = e.compress()
	n = e.out.end()
	e.out.b, e.src, e.finder.src = nil, nil, nil
	return n, ok
}

// compress is Encode without what goes before and after it.
func (e *Encoder) compress() bool {
	e.beginBlock()
	f, src := &e.finder, e.src
	for at := 0; at < len(src); {
		if e.n >= blockTokens-lazyTokens {
			if !e.endBlock(at, false) {
				return false
			}
		}
		length, dist := f.find(at, minMatch-1)
		if length < minMatch {
			e.literal(src[at])
			at++
			continue
		}
		// A longer match one byte on is worth a literal. Several in turn are
		// looked at, as far as the block has room.
		for length < lazyMatch && e.n < blockTokens-1 {
			longer, d := f.find(at+1, length)
			if longer <= length {
				break
			}
			e.literal(src[at])
			at, length, dist = at+1, longer, d
		}
		e.match(length, dist)
		at += length
		f.skipTo(at)
	}
	return e.endBlock(len(src), true)
}

// lazyTokens is the least room with which a match is begun: itself and a literal
// before it.
const lazyTokens = 2

func (e *Encoder) literal(b byte) {
	e.tokens[e.n] = token(b)
	e.n++
	e.literals.freq[b]++
}

func (e *Encoder) match(length, dist int) {
	l, d := uint32(length-minMatch), uint32(dist-1)
	e.tokens[e.n] = tokenMatch | token(l<<16|d)
	e.n++
	e.literals.freq[firstLength+int(lengthSymbol[l&0xff])]++
	e.dists.freq[distSymbol(d)]++
}

func (e *Encoder) beginBlock() {
	e.n = 0
	e.literals.begin(286)
	e.dists.begin(30)
	e.literals.freq[endOfBlock] = 1
}

// endBlock writes what was collected, src up to end, in the shortest of the three
// ways, and begins the next; false where it does not fit.
func (e *Encoder) endBlock(end int, last bool) bool {
	part := e.src[e.from:end]
	extra := extraBits(&e.literals, &e.dists)
	fixed := 3 + extra + e.literals.cost(&fixedLiterals) + e.dists.cost(&fixedDists)
	e.literals.build(15)
	e.dists.build(15)
	dynamic := 3 + extra + e.head.build(&e.literals, &e.dists) +
		e.literals.cost(&e.literals) + e.dists.cost(&e.dists)
	stored := e.out.storedBits(len(part))
	if !e.out.room(min(fixed, dynamic, stored)) {
		return false
	}
	final := uint64(0)
	if last {
		final = 1
	}
	switch {
	case stored <= min(fixed, dynamic):
		e.out.stored(part, final)
	case fixed <= dynamic:
		e.out.put(final|1<<1, 3)
		e.body(&fixedLiterals, &fixedDists)
	default:
		e.out.put(final|2<<1, 3)
		e.head.write(&e.out)
		e.body(&e.literals, &e.dists)
	}
	e.from = end
	e.beginBlock()
	return true
}

// body writes the block's tokens and its end.
func (e *Encoder) body(literals, dists *code) {
	w := e.out
	for _, t := range e.tokens[:e.n] {
		if t&tokenMatch == 0 {
			w.putCode(literals.word[t&0xff])
			continue
		}
		l, d := uint32(t>>16)&0xff, uint32(t)&(Window-1)
		s := lengthSymbol[l]
		w.add(literals.word[firstLength+int(s)])
		w.addBits(l&(1<<lengthExtra[s]-1), uint(lengthExtra[s]))
		ds := distSymbol(d)
		n := distExtra(ds)
		w.add(dists.word[ds])
		w.addBits(d&(1<<n-1), n)
		w.flush()
	}
	w.putCode(literals.word[endOfBlock])
	e.out = w
}
