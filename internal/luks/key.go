package luks

import (
	"context"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/subtle"
	"encoding/binary"
	"fmt"
	"hash"
	"syscall"
)

// ErrPassword is that no key slot opens with a password.
var ErrPassword = refuse(syscall.EACCES, "no key slot opens with this password; a password file is taken to its last byte, a line feed as well")

// ReadAt reads all of b from off of an image, and WriteAt writes it.
type (
	ReadAt  func(off int64, b []byte) error
	WriteAt func(off int64, b []byte) error
)

// Unlock finds the master key: it tries the active slots in order, and ends
// between two of them when ctx does.
func (h *Header) Unlock(ctx context.Context, read ReadAt, password []byte) (key []byte, slot int, err error) {
	// A cipher that there is not is said before a minute is spent on a key.
	if _, err := NewSectors(h.Cipher, h.Mode, make([]byte, h.KeyBytes)); err != nil {
		return nil, 0, err
	}
	for i := range h.Slots {
		if !h.Slots[i].Active {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, 0, err
		}
		key, err := h.open(i, read, password)
		if err != nil {
			return nil, 0, err
		}
		if h.isKey(key) {
			return key, i, nil
		}
	}
	return nil, 0, ErrPassword
}

// open is the key that slot i has if the password is its own, and else noise.
func (h *Header) open(i int, read ReadAt, password []byte) ([]byte, error) {
	s := &h.Slots[i]
	begin, end := h.material(i)
	b := make([]byte, end-begin)
	if err := read(begin, b); err != nil {
		return nil, fmt.Errorf("the key material of slot %d: %w", i, err)
	}
	c, f, err := h.slotCipher(s, password)
	if err != nil {
		return nil, err
	}
	c.Decrypt(b, b, 0)
	return merge(b[:s.Stripes*h.KeyBytes], int(h.KeyBytes), f), nil
}

// slotCipher is what a slot's key material is encrypted with, and its hash.
func (h *Header) slotCipher(s *Slot, password []byte) (Sectors, func() hash.Hash, error) {
	f, err := hashByName(h.Hash)
	if err != nil {
		return nil, nil, err
	}
	k, err := pbkdf2.Key(f, string(password), s.Salt[:], int(s.Iterations), int(h.KeyBytes))
	if err != nil {
		return nil, nil, err
	}
	c, err := NewSectors(h.Cipher, h.Mode, k)
	return c, f, err
}

// digest is what the header remembers of the master key, section 2.3.
func (h *Header) digest(key []byte) []byte {
	f, err := hashByName(h.Hash)
	if err != nil {
		return nil
	}
	d, err := pbkdf2.Key(f, string(key), h.DigestSalt[:], int(h.DigestIterations), digestSize)
	if err != nil {
		return nil
	}
	return d
}

func (h *Header) isKey(key []byte) bool {
	return subtle.ConstantTimeCompare(h.digest(key), h.Digest[:]) == 1
}

// Seal puts the master key into slot i under a password. The slot's key material
// is written; the header, which makes it count, is the caller's to write after.
func (h *Header) Seal(i int, write WriteAt, key, password []byte, iterations uint32) error {
	s := &h.Slots[i]
	s.Iterations = iterations
	rand.Read(s.Salt[:])
	c, f, err := h.slotCipher(s, password)
	if err != nil {
		return err
	}
	begin, end := h.material(i)
	b := make([]byte, end-begin)
	split(b[:s.Stripes*h.KeyBytes], key, f)
	c.Encrypt(b, b, 0)
	if err := write(begin, b); err != nil {
		return fmt.Errorf("the key material of slot %d: %w", i, err)
	}
	s.Active = true
	return nil
}

// Erase overwrites the key material of slot i. The header is the caller's to
// write before: a slot that counts must have its material.
func (h *Header) Erase(i int, write WriteAt) error {
	begin, end := h.material(i)
	b := make([]byte, end-begin)
	rand.Read(b)
	return write(begin, b)
}

// New is a header for a new image, with its master key and no slot in use.
func New(cipher, mode, hashName string, keyBytes int, digestIterations uint32) (*Header, []byte, error) {
	h := &Header{Cipher: cipher, Mode: mode, Hash: hashName, KeyBytes: uint32(keyBytes), DigestIterations: digestIterations}
	if _, err := NewSectors(cipher, mode, make([]byte, keyBytes)); err != nil {
		return nil, nil, err
	}
	if _, err := hashByName(hashName); err != nil {
		return nil, nil, err
	}
	key := make([]byte, keyBytes)
	rand.Read(key)
	rand.Read(h.DigestSalt[:])
	copy(h.Digest[:], h.digest(key))
	var u [16]byte
	rand.Read(u[:])
	u[6], u[8] = u[6]&0x0f|0x40, u[8]&0x3f|0x80 // RFC 9562, section 5.4
	h.UUID = fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
	at := int64(slotAlign)
	for i := range h.Slots {
		h.Slots[i] = Slot{Offset: uint32(at / SectorSize), Stripes: Stripes}
		at = roundUp(at+Stripes*int64(keyBytes), slotAlign)
	}
	h.Payload = uint32(at / SectorSize)
	return h, key, h.check()
}

// The anti-forensic splitter, section 2.4: the key is the last stripe xor what
// diffusing all others gives, so that losing any part loses it.

// split fills b, stripes of the key's length, from the key and chance.
func split(b, key []byte, f func() hash.Hash) {
	last := len(b) - len(key)
	rand.Read(b[:last])
	d := mix(b[:last], len(key), f)
	subtle.XORBytes(b[last:], d, key)
}

// merge is the key of n bytes that b was split from.
func merge(b []byte, n int, f func() hash.Hash) []byte {
	last := len(b) - n
	d := mix(b[:last], n, f)
	subtle.XORBytes(d, d, b[last:])
	return d
}

// mix is all stripes of b, one after the other, xored and diffused.
func mix(b []byte, n int, f func() hash.Hash) []byte {
	d, h := make([]byte, n), f()
	for ; len(b) > 0; b = b[n:] {
		subtle.XORBytes(d, d, b[:n])
		diffuse(d, h)
	}
	return d
}

// diffuse replaces each part of d, as long as the hash, by the hash of its number
// and itself; the last one is cut.
func diffuse(d []byte, h hash.Hash) {
	var number [4]byte
	var sum [64]byte
	for i := 0; i*h.Size() < len(d); i++ {
		part := d[i*h.Size() : min((i+1)*h.Size(), len(d))]
		binary.BigEndian.PutUint32(number[:], uint32(i))
		h.Reset()
		h.Write(number[:])
		h.Write(part)
		copy(part, h.Sum(sum[:0]))
	}
}

// Iterations measures how many take ms milliseconds on this machine, for a key
// of keyBytes; now is a clock in nanoseconds. At least 1000, as the specification
// asks for.
func Iterations(hashName string, keyBytes int, ms int64, now func() int64) (uint32, error) {
	f, err := hashByName(hashName)
	if err != nil {
		return 0, err
	}
	const least, probe = 1000, 50_000_000
	n := int64(1 << 12)
	for {
		begin := now()
		if _, err := pbkdf2.Key(f, "password", make([]byte, saltSize), int(n), keyBytes); err != nil {
			return 0, err
		}
		// A clock that stands still, as a simulation's may, ends at the bound.
		if took := now() - begin; took >= probe || n >= 1<<20 {
			per := max(float64(took)/float64(n), 100) // no machine is faster
			return uint32(min(max(float64(ms)*1e6/per, least), MaxIterations)), nil
		}
		n *= 4
	}
}
