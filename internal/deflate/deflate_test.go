package deflate

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/klauspost/compress/flate"
)

// sources is this repository's Go files one after the other, at most limit bytes.
func sources(t testing.TB, limit int) []byte {
	t.Helper()
	var all []byte
	for _, pattern := range []string{"../../block/*.go", "../../format/*/*.go", "../../engine/*.go", "../../serve/*.go"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, b...)
		}
	}
	if len(all) < 512<<10 {
		t.Fatalf("there are only %d bytes of sources", len(all))
	}
	return all[:min(limit, len(all))]
}

// inputs are what streams are made of in the tests, by name.
func inputs(t testing.TB) map[string][]byte {
	rnd := rand.New(rand.NewPCG(1, 2))
	random := make([]byte, 200<<10)
	for i := range random {
		random[i] = byte(rnd.Uint32())
	}
	skewed := make([]byte, 1<<20) // codes as deep as they come, and cut
	for i := range skewed {
		skewed[i] = byte(min(rnd.ExpFloat64()*2, 255))
	}
	far := append(bytes.Clone(random[:Window]), random[:Window]...)
	beyond := append(bytes.Clone(random[:Window+1]), random[:Window]...)
	in := map[string][]byte{
		"random": random, "zeroes": make([]byte, MaxInput), "skewed": skewed,
		"far": far, "beyond": beyond, "sources": sources(t, MaxInput),
		"zeroes, then random": append(make([]byte, 70<<10), random...),
		"deep":                fibonacci(),
	}
	for n := range 12 {
		in[fmt.Sprintf("%d random", n)] = random[:n]
		in[fmt.Sprintf("%d zeroes", n)] = make([]byte, n)
	}
	for _, n := range []int{257, 258, 259, 260, 511, 512, 4095, 4096, 4097, 65535, 65536, 65537} {
		in[fmt.Sprintf("%d random", n)] = random[:n]
		in[fmt.Sprintf("%d zeroes", n)] = make([]byte, n)
		in[fmt.Sprintf("%d sources", n)] = in["sources"][:n]
	}
	return in
}

// fibonacci is bytes used so often that the tree over them is as deep as can be
// with a block's number of them, in an order without matches.
func fibonacci() []byte {
	var out []byte
	a, b := 1, 1
	for s := 0; len(out)+a < blockTokens-lazyTokens; s++ {
		out = append(out, bytes.Repeat([]byte{byte(s)}, a)...)
		a, b = b, a+b
	}
	rand.New(rand.NewPCG(3, 4)).Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

// Every stream gives back what it was made of.
func TestRoundTrip(t *testing.T) {
	var e Encoder
	dst := make([]byte, MaxInput+1<<10)
	for name, src := range inputs(t) {
		n, ok := e.Encode(dst, src)
		if !ok {
			t.Errorf("%s: it does not fit", name)
			continue
		}
		in := bytes.NewReader(dst[:n])
		got, err := io.ReadAll(flate.NewReader(in))
		if err != nil || !bytes.Equal(got, src) {
			t.Errorf("%s: %d bytes of a stream of %d gave %d others (%v)", name, len(src), n, len(got), err)
		}
		if in.Len() != 0 {
			t.Errorf("%s: the last %d of %d bytes are not of the stream", name, in.Len(), n)
		}
		if most := len(src) + 5*(len(src)/16000+1); n > most {
			t.Errorf("%s: %d bytes became %d, more than %d", name, len(src), n, most)
		}
	}
}

// A stream fits into just as many bytes as it has, and is the same there; with one
// byte less it is refused, and nothing is written beyond.
func TestFit(t *testing.T) {
	var e Encoder
	buf := make([]byte, MaxInput+1<<10)
	other := make([]byte, len(buf))
	for name, src := range inputs(t) {
		n, ok := e.Encode(buf, src)
		if !ok {
			t.Fatalf("%s: it does not fit", name)
		}
		if m, ok := e.Encode(other[:n], src); !ok || !bytes.Equal(other[:m], buf[:n]) {
			t.Errorf("%s: into %d bytes: %d, %v", name, n, m, ok)
		}
		for _, less := range []int{n - 1, n / 2, 0} {
			other[less] = 0x5a
			if _, ok := e.Encode(other[:less], src); ok || other[less] != 0x5a {
				t.Errorf("%s: %d bytes into %d: ok is %v, and the byte after that %#x", name, n, less, ok, other[less])
			}
		}
	}
	if _, ok := e.Encode(buf, make([]byte, MaxInput+1)); ok {
		t.Error("more than MaxInput was taken")
	}
}

// Positions that begin anew find nothing of before.
func TestPositions(t *testing.T) {
	var e, fresh Encoder
	src := sources(t, 64<<10)
	a, b := make([]byte, len(src)), make([]byte, len(src))
	n, _ := fresh.Encode(a, src)
	for _, past := range []int32{0, 1, Window, maxPosition - 1, maxPosition, maxPosition + 1, maxPosition + MaxInput} {
		clear(e.finder.head[:]) // positions only grow
		e.finder.past = past
		for range 3 {
			if m, ok := e.Encode(b, src); !ok || !bytes.Equal(a[:n], b[:m]) {
				t.Fatalf("from position %d on: %d bytes rather than %d", past, m, n)
			}
		}
	}
}

func TestNoAllocation(t *testing.T) {
	e := new(Encoder)
	src := sources(t, 64<<10)
	dst := make([]byte, len(src))
	if n := testing.AllocsPerRun(10, func() {
		e.Encode(dst, src)
		e.Encode(dst[:100], src)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Streams are not much longer than those of an encoder that sees 32 KiB back.
func TestRatio(t *testing.T) {
	var e Encoder
	src := sources(t, MaxInput)
	dst := make([]byte, 64<<10)
	ours := 0
	var theirs bytes.Buffer
	w, err := flate.NewWriter(&theirs, 6)
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for ; len(src) >= len(dst); src = src[len(dst):] {
		n, ok := e.Encode(dst, src[:len(dst)])
		if !ok {
			t.Fatal("sources do not compress")
		}
		total += len(dst)
		ours += n
		w.Reset(&theirs)
		if _, err := w.Write(src[:len(dst)]); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d bytes of sources: %d, with a window of 32 KiB %d (%+.1f %%)", total, ours, theirs.Len(), 100*float64(ours-theirs.Len())/float64(theirs.Len()))
	if 100*ours > 115*theirs.Len() {
		t.Errorf("%d bytes of sources became %d; with a window of 32 KiB they are %d", total, ours, theirs.Len())
	}
}

// A complete code is made of any use of symbols, within its limit.
func TestCodes(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	var c code
	for round := range 3000 {
		n, limit := 286, maxBits
		if round%3 == 0 {
			n, limit = 19, 7
		}
		c.begin(n)
		for s := range rnd.IntN(n + 1) {
			switch round % 4 {
			case 0:
				c.freq[s] = 1 << min(s, 14)
			case 1:
				c.freq[s] = uint32(rnd.ExpFloat64() * 10)
			case 2:
				c.freq[s] = uint32(rnd.IntN(2))
			default:
				c.freq[s] = rnd.Uint32N(1 << rnd.UintN(14))
			}
		}
		c.build(limit)
		sum := 0
		for s, l := range c.length[:n] {
			if int(l) > limit || l == 0 && c.freq[s] != 0 {
				t.Fatalf("round %d: symbol %d, used %d times, has %d bits", round, s, c.freq[s], l)
			}
			if l != 0 {
				sum += 1 << (limit - int(l))
			}
		}
		if sum != 1<<limit {
			t.Fatalf("round %d: the code is not complete: %d of %d", round, sum, 1<<limit)
		}
	}
}

func FuzzRoundTrip(f *testing.F) {
	for _, s := range []string{"", "a", "abcabcabcabcd", "\x00\x00\x00\x00\x00\x00\x00\x00", "the one and the other, the one and the other"} {
		f.Add([]byte(s), uint16(0), uint16(1))
		f.Add([]byte(s), uint16(4096), uint16(300))
	}
	e := new(Encoder)
	f.Fuzz(func(t *testing.T, part []byte, gap, times uint16) {
		// Repeated with gaps, so that short inputs reach the window's end and
		// more than one block.
		var src []byte
		for i := range int(times%512) + 1 {
			src = append(src, part...)
			for j := range int(gap % 5000) {
				src = append(src, byte((i+j)*(j|1)>>3))
			}
			if len(src) > 256<<10 {
				break
			}
		}
		src = src[:min(len(src), MaxInput)]
		dst := make([]byte, len(src)+len(src)/1000+64)
		n, ok := e.Encode(dst, src)
		if !ok {
			t.Fatalf("%d bytes do not fit into %d", len(src), len(dst))
		}
		got, err := io.ReadAll(flate.NewReader(bytes.NewReader(dst[:n])))
		if err != nil || !bytes.Equal(got, src) {
			t.Fatalf("%d bytes gave %d others (%v)", len(src), len(got), err)
		}
		if m, ok := e.Encode(dst[:n], src); !ok || m != n {
			t.Fatalf("into its own %d bytes: %d, %v", n, m, ok)
		}
	})
}

// BenchmarkEncode compresses clusters of 64 KiB of sources.
func BenchmarkEncode(b *testing.B) {
	var e Encoder
	src := sources(b, MaxInput)
	dst := make([]byte, 64<<10)
	b.SetBytes(int64(len(src)))
	for b.Loop() {
		for at := 0; at < len(src); at += len(dst) {
			e.Encode(dst, src[at:min(at+len(dst), len(src))])
		}
	}
}
