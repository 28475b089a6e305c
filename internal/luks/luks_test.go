package luks

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"github.com/platter-storage/platter/internal/race"
)

// image is bytes to read and write.
type image []byte

func (m image) read(off int64, b []byte) error  { copy(b, m[off:]); return nil }
func (m image) write(off int64, b []byte) error { copy(m[off:], b); return nil }

func newImage(t testing.TB, cipher, mode, hashName string, keyBytes int, passwords ...string) (*Header, []byte, image) {
	t.Helper()
	h, key, err := New(cipher, mode, hashName, keyBytes, 1000)
	if err != nil {
		t.Fatal(err)
	}
	m := make(image, int64(h.Payload)*SectorSize)
	for i, p := range passwords {
		if err := h.Seal(i, m.write, key, []byte(p), 1000); err != nil {
			t.Fatal(err)
		}
	}
	copy(m, h.Bytes())
	return h, key, m
}

// Every slot opens with its own password only, for each cipher and hash.
func TestSlots(t *testing.T) {
	for _, c := range []struct {
		mode, hash string
		key        int
	}{{"xts-plain64", "sha256", 64}, {"xts-plain64", "sha1", 32}, {"cbc-essiv:sha256", "sha512", 32}, {"cbc-plain", "sha224", 16}, {"cbc-plain64", "sha384", 24}, {"xts-plain", "sha1", 64}} {
		t.Run(c.mode+" "+c.hash, func(t *testing.T) {
			_, key, m := newImage(t, "aes", c.mode, c.hash, c.key, "one", "two", "")
			h, err := Parse(m)
			if err != nil {
				t.Fatal(err)
			}
			for i, p := range []string{"one", "two", ""} {
				got, slot, err := h.Unlock(context.Background(), m.read, []byte(p))
				if err != nil || slot != i || !bytes.Equal(got, key) {
					t.Errorf("password %q: slot %d, %v", p, slot, err)
				}
			}
			if _, _, err := h.Unlock(context.Background(), m.read, []byte("One")); !errors.Is(err, ErrPassword) {
				t.Errorf("a wrong password: %v", err)
			}
			if err := h.Erase(1, m.write); err != nil {
				t.Fatal(err)
			}
			if _, _, err := h.Unlock(context.Background(), m.read, []byte("two")); !errors.Is(err, ErrPassword) {
				t.Errorf("the password of an erased slot: %v", err)
			}
		})
	}
}

// Sectors are encrypted apart, whatever else a request covers; plain numbers have
// 32 bits; and XTS agrees with its standard's vector.
func TestSectors(t *testing.T) {
	for _, mode := range []string{"xts-plain64", "xts-plain", "cbc-plain64", "cbc-plain", "cbc-essiv:sha256"} {
		key := make([]byte, 32)
		for i := range key {
			key[i] = byte(i * 7)
		}
		c, err := NewSectors("aes", mode, key)
		if err != nil {
			t.Fatal(err)
		}
		plain := bytes.Repeat([]byte("sixteen bytes! \n"), 4*SectorSize/16)
		enc, apart, dec := make([]byte, len(plain)), make([]byte, len(plain)), make([]byte, len(plain))
		c.Encrypt(enc, plain, 1<<32-2)
		for i := range 4 {
			c.Encrypt(apart[i*SectorSize:(i+1)*SectorSize], plain[:SectorSize], 1<<32-2+uint64(i))
		}
		c.Decrypt(dec, enc, 1<<32-2)
		if !bytes.Equal(enc, apart) || !bytes.Equal(dec, plain) {
			t.Errorf("%s: sectors depend on how they are asked for", mode)
		}
		c.Encrypt(apart[:SectorSize], plain[:SectorSize], 0)
		wraps := bytes.Equal(apart[:SectorSize], enc[2*SectorSize:3*SectorSize])
		if wraps != strings.HasSuffix(mode, "plain") {
			t.Errorf("%s: sector 1<<32 equals sector 0: %v", mode, wraps)
		}
		if n := testing.AllocsPerRun(50, func() { c.Encrypt(enc, plain, 3); c.Decrypt(dec, enc, 3) }); n != 0 && !race.Enabled {
			t.Errorf("%s: %v allocations", mode, n)
		}
	}
	// IEEE 1619-2007, annex B, vector 4, of which the first block is compared.
	key, err := hex.DecodeString("2718281828459045235360287471352631415926535897932384626433832795")
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewSectors("aes", "xts-plain64", key)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, SectorSize)
	for i := range b {
		b[i] = byte(i)
	}
	c.Encrypt(b, b, 0)
	if got := hex.EncodeToString(b[:16]); got != "27a7479befa1d476489f308cd4cfa6e2" {
		t.Errorf("vector 4 begins with %s", got)
	}
}

// What is not supported is refused by its name.
func TestRefusedByName(t *testing.T) {
	for _, c := range []struct{ cipher, mode, hash, want string }{
		{"serpent", "xts-plain64", "sha256", `"serpent"`},
		{"aes", "ecb", "sha256", `"ecb"`},
		{"aes", "cbc-essiv:sha1", "sha256", "essiv:sha1"},
		{"aes", "cbc-essiv:md9", "sha256", `"md9"`},
		{"aes", "xts-plain64", "ripemd160", `"ripemd160"`},
	} {
		if _, _, err := New(c.cipher, c.mode, c.hash, 32, 1000); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v", c, err)
		}
	}
}

// Each field is bounded: at the bound it is taken, past it the error has the
// field's place.
func TestBounds(t *testing.T) {
	good, _, _ := newImage(t, "aes", "xts-plain64", "sha256", 64, "x")
	for _, c := range []struct {
		name string
		set  func(h *Header)
		want string
	}{
		{"as made", func(*Header) {}, ""},
		{"most iterations", func(h *Header) { h.Slots[0].Iterations = MaxIterations }, ""},
		{"one more", func(h *Header) { h.Slots[0].Iterations = MaxIterations + 1 }, "byte 212"},
		{"none", func(h *Header) { h.Slots[0].Iterations = 0 }, "byte 212"},
		{"unused slot", func(h *Header) { h.Slots[7].Iterations = 1<<32 - 1 }, ""},
		{"digest iterations", func(h *Header) { h.DigestIterations = MaxIterations + 1 }, "byte 164"},
		{"no key", func(h *Header) { h.KeyBytes = 0 }, "byte 108"},
		{"long key", func(h *Header) { h.KeyBytes = maxKey + 1 }, "byte 108"},
		{"no stripes", func(h *Header) { h.Slots[3].Stripes = 0 }, "byte 396"},
		{"most stripes", func(h *Header) { h.Slots[7].Stripes, h.Payload = MaxStripes, 1<<31 }, ""},
		{"more stripes", func(h *Header) { h.Slots[7].Stripes, h.Payload = MaxStripes+1, 1<<31 }, "byte 588"},
		{"in the header", func(h *Header) { h.Slots[0].Offset = 1 }, "byte 248"},
		{"behind it", func(h *Header) { h.Slots[0].Offset = 2 }, ""},
		{"in the disk", func(h *Header) { h.Payload-- }, ""},
		{"further in the disk", func(h *Header) { h.Payload -= 5 }, "byte 584"},
		{"far away", func(h *Header) { h.Slots[7].Offset = 1<<32 - 1 }, "byte 584"},
		{"on another", func(h *Header) { h.Slots[4].Offset = h.Slots[2].Offset + 10 }, "byte 440"},
	} {
		h := *good
		c.set(&h)
		_, err := Parse(h.Bytes())
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// Whatever parses is within its bounds and comes out as it went in.
func FuzzHeader(f *testing.F) {
	h, _, err := New("aes", "cbc-essiv:sha256", "sha1", 16, 1000)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(h.Bytes())
	h.Slots[2].Active, h.Slots[2].Iterations = true, 5
	f.Add(h.Bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := Parse(b)
		if err != nil {
			return
		}
		for i := range h.Slots {
			if begin, end := h.material(i); begin < HeaderSize || end-begin > MaxStripes*maxKey {
				t.Fatalf("slot %d from %d to %d", i, begin, end)
			}
		}
		again, err := Parse(h.Bytes())
		if err != nil || *again != *h {
			t.Fatalf("written and parsed again: %v", err)
		}
	})
}

func BenchmarkSectors(b *testing.B) {
	for _, mode := range []string{"xts-plain64", "cbc-essiv:sha256"} {
		c, err := NewSectors("aes", mode, make([]byte, 32))
		if err != nil {
			b.Fatal(err)
		}
		buf := make([]byte, 64<<10)
		b.Run(mode+"/encrypt", func(b *testing.B) {
			b.SetBytes(int64(len(buf)))
			for b.Loop() {
				c.Encrypt(buf, buf, 0)
			}
		})
		b.Run(mode+"/decrypt", func(b *testing.B) {
			b.SetBytes(int64(len(buf)))
			for b.Loop() {
				c.Decrypt(buf, buf, 0)
			}
		})
	}
}
