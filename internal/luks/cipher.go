package luks

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/binary"
	"hash"
	"math"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/crypto/xts"
)

// hashes by the specification's names (section 3) and those that are in use.
var hashes = map[string]func() hash.Hash{
	"sha1": sha1.New, "sha224": sha256.New224, "sha256": sha256.New, "sha384": sha512.New384, "sha512": sha512.New,
}

func hashByName(name string) (func() hash.Hash, error) {
	if h := hashes[name]; h != nil {
		return h, nil
	}
	return nil, refuse(syscall.ENOTSUP, "the hash %q is not supported; sha1, sha224, sha256, sha384 and sha512 are", name)
}

// Sectors encrypts and decrypts whole sectors of SectorSize bytes, numbered from
// sector on. dst and src are of one length, and are the same memory or apart.
// Many goroutines may use one at once; nothing is allocated.
type Sectors interface {
	Encrypt(dst, src []byte, sector uint64)
	Decrypt(dst, src []byte, sector uint64)
}

// NewSectors makes the cipher that name and mode say, as "aes" and
// "xts-plain64", or "cbc-essiv:sha256".
func NewSectors(name, mode string, key []byte) (Sectors, error) {
	chain, iv, _ := strings.Cut(mode, "-")
	generator, hashName, _ := strings.Cut(iv, ":")
	if name != "aes" {
		return nil, refuse(syscall.ENOTSUP, "the cipher %q is not supported; aes is", name)
	}
	mask := uint64(math.MaxUint64)
	if generator == "plain" {
		mask = math.MaxUint32
	}
	switch {
	case chain == "xts" && (iv == "plain" || iv == "plain64") && (len(key) == 32 || len(key) == 64):
		c, err := xts.NewCipher(aes.NewCipher, key)
		if err != nil {
			return nil, err
		}
		return &xtsSectors{c, mask}, nil
	case chain == "cbc" && (iv == "plain" || iv == "plain64") && aesKey(len(key)):
		return newCBC(key, nil, mask)
	case chain == "cbc" && generator == "essiv" && aesKey(len(key)):
		salt, err := essiv(key, hashName)
		if err != nil {
			return nil, err
		}
		return newCBC(key, salt, mask)
	}
	return nil, refuse(syscall.ENOTSUP, "the mode %q with a key of %d bytes is not supported; xts-plain64, xts-plain (32 or 64 bytes), cbc-plain64, cbc-plain and cbc-essiv:HASH (16, 24 or 32) are", mode, len(key))
}

func aesKey(n int) bool { return n == 16 || n == 24 || n == 32 }

// essiv is the cipher that makes initialisation vectors of sector numbers: its
// key is the hash of the data's.
func essiv(key []byte, hashName string) (cipher.Block, error) {
	h, err := hashByName(hashName)
	if err != nil {
		return nil, err
	}
	if !aesKey(h().Size()) {
		return nil, refuse(syscall.ENOTSUP, "the mode essiv:%s needs a cipher with keys of %d bytes, which aes has not: use essiv:sha256", hashName, h().Size())
	}
	w := h()
	w.Write(key)
	return aes.NewCipher(w.Sum(nil))
}

type xtsSectors struct {
	c    *xts.Cipher
	mask uint64
}

func (s *xtsSectors) Encrypt(dst, src []byte, sector uint64) {
	for ; len(src) > 0; dst, src, sector = dst[SectorSize:], src[SectorSize:], sector+1 {
		s.c.Encrypt(dst[:SectorSize], src[:SectorSize], sector&s.mask)
	}
}

func (s *xtsSectors) Decrypt(dst, src []byte, sector uint64) {
	for ; len(src) > 0; dst, src, sector = dst[SectorSize:], src[SectorSize:], sector+1 {
		s.c.Decrypt(dst[:SectorSize], src[:SectorSize], sector&s.mask)
	}
}

// chained is what a mode of the standard library is that starts anew with each
// sector.
type chained interface {
	cipher.BlockMode
	SetIV(iv []byte)
}

// cbcState is one user's: modes have state.
type cbcState struct {
	iv       [aes.BlockSize]byte
	enc, dec chained
}

type cbcSectors struct {
	salt   cipher.Block // nil: the number itself is the vector
	mask   uint64
	states sync.Pool
}

func newCBC(key []byte, salt cipher.Block, mask uint64) (Sectors, error) {
	b, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	s := &cbcSectors{salt: salt, mask: mask}
	s.states.New = func() any {
		st := &cbcState{}
		st.enc = cipher.NewCBCEncrypter(b, st.iv[:]).(chained)
		st.dec = cipher.NewCBCDecrypter(b, st.iv[:]).(chained)
		return st
	}
	return s, nil
}

// start is the vector of a sector.
func (s *cbcSectors) start(iv *[aes.BlockSize]byte, sector uint64) {
	binary.LittleEndian.PutUint64(iv[:], sector&s.mask)
	binary.LittleEndian.PutUint64(iv[8:], 0)
	if s.salt != nil {
		s.salt.Encrypt(iv[:], iv[:])
	}
}

func (s *cbcSectors) Encrypt(dst, src []byte, sector uint64) {
	st := s.states.Get().(*cbcState)
	defer s.states.Put(st)
	for ; len(src) > 0; dst, src, sector = dst[SectorSize:], src[SectorSize:], sector+1 {
		s.start(&st.iv, sector)
		st.enc.SetIV(st.iv[:])
		st.enc.CryptBlocks(dst[:SectorSize], src[:SectorSize])
	}
}

func (s *cbcSectors) Decrypt(dst, src []byte, sector uint64) {
	st := s.states.Get().(*cbcState)
	defer s.states.Put(st)
	for ; len(src) > 0; dst, src, sector = dst[SectorSize:], src[SectorSize:], sector+1 {
		s.start(&st.iv, sector)
		st.dec.SetIV(st.iv[:])
		st.dec.CryptBlocks(dst[:SectorSize], src[:SectorSize])
	}
}
