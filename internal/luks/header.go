// Package luks knows LUKS version 1, "LUKS On-Disk Format Specification" 1.2:
// the header with its eight key slots, how a password unlocks one, and how
// sectors are encrypted. It does no I/O: what it needs of an image it is given.
package luks

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"syscall"
)

// Sizes and numbers of the specification, chapter 2.
const (
	SectorSize = 512
	HeaderSize = 592
	Slots      = 8
	Stripes    = 4000

	digestSize = 20
	saltSize   = 32
	slotSize   = 48

	slotActive   = 0x00ac71f3
	slotInactive = 0x0000dead

	// slotAlign is where key material begins, in bytes, in what is made here:
	// the specification's recommendation.
	slotAlign = 4096
)

// Offsets of the header's fields in bytes, section 2.3.
const (
	atVersion    = 6
	atCipher     = 8
	atMode       = 40
	atHash       = 72
	atPayload    = 104
	atKeyBytes   = 108
	atDigest     = 112
	atDigestSalt = 132
	atDigestIter = 164
	atUUID       = 168
	atSlots      = 208
)

// Bounds of what a header may ask for: a hostile one costs this much and no more.
const (
	// MaxIterations of one derivation of a key. A machine does some million
	// in a second, so that this is about a minute.
	MaxIterations = 1 << 27
	// MaxStripes bounds the key material of a slot, to MaxStripes*maxKey bytes.
	MaxStripes = 16384
	maxKey     = 64
)

var magic = []byte("LUKS\xba\xbe")

// Slot is one key slot.
type Slot struct {
	Active     bool
	Iterations uint32
	Salt       [saltSize]byte
	Offset     uint32 // of the key material, in sectors
	Stripes    uint32
}

// Header is what the first HeaderSize bytes say.
type Header struct {
	Cipher, Mode, Hash string
	Payload            uint32 // where the disk begins, in sectors
	KeyBytes           uint32
	Digest             [digestSize]byte
	DigestSalt         [saltSize]byte
	DigestIterations   uint32
	UUID               string
	Slots              [Slots]Slot
}

// IsHeader reports whether head begins like a LUKS header of any version.
func IsHeader(head []byte) bool { return bytes.HasPrefix(head, magic) }

// fault is an error about the header's byte at.
func fault(at int, format string, a ...any) error {
	return refuse(syscall.EINVAL, "the LUKS header at byte %d: %s", at, fmt.Sprintf(format, a...))
}

// Parse reads a header and checks each field against its bounds.
func Parse(b []byte) (*Header, error) {
	if len(b) < HeaderSize {
		return nil, fault(0, "it has %d bytes, and %d are needed", len(b), HeaderSize)
	}
	if !IsHeader(b) {
		return nil, fault(0, "there is no LUKS magic: this is no LUKS image")
	}
	if v := binary.BigEndian.Uint16(b[atVersion:]); v != 1 {
		return nil, refuse(syscall.ENOTSUP, "the LUKS header is of version %d, and only version 1 is supported: cryptsetup can convert some of version 2", v)
	}
	h := &Header{
		Payload:          binary.BigEndian.Uint32(b[atPayload:]),
		KeyBytes:         binary.BigEndian.Uint32(b[atKeyBytes:]),
		DigestIterations: binary.BigEndian.Uint32(b[atDigestIter:]),
	}
	copy(h.Digest[:], b[atDigest:])
	copy(h.DigestSalt[:], b[atDigestSalt:])
	for _, f := range []struct {
		to     *string
		at, n  int
		needed bool
	}{{&h.Cipher, atCipher, 32, true}, {&h.Mode, atMode, 32, true}, {&h.Hash, atHash, 32, true}, {&h.UUID, atUUID, 40, false}} {
		text, ok := parseText(b[f.at : f.at+f.n])
		if !ok || f.needed && text == "" {
			return nil, fault(f.at, "%q is no name that ends within %d bytes", b[f.at:f.at+f.n], f.n)
		}
		*f.to = text
	}
	for i := range h.Slots {
		if err := h.parseSlot(b, i); err != nil {
			return nil, err
		}
	}
	return h, h.check()
}

// parseText is a name with zeroes behind it; printable, so that messages can
// show it.
func parseText(b []byte) (string, bool) {
	i := bytes.IndexByte(b, 0)
	if i < 0 {
		return "", false
	}
	printable := !strings.ContainsFunc(string(b[:i]), func(r rune) bool { return r < ' ' || r > '~' })
	return string(b[:i]), printable
}

func (h *Header) parseSlot(b []byte, i int) error {
	at := atSlots + i*slotSize
	s, f := &h.Slots[i], b[at:]
	switch state := binary.BigEndian.Uint32(f); state {
	case slotActive:
		s.Active = true
	case slotInactive:
	default:
		return fault(at, "slot %d has state %#x, which is neither active nor inactive", i, state)
	}
	s.Iterations = binary.BigEndian.Uint32(f[4:])
	copy(s.Salt[:], f[8:])
	s.Offset = binary.BigEndian.Uint32(f[40:])
	s.Stripes = binary.BigEndian.Uint32(f[44:])
	return nil
}

// check holds the fields against each other: the key material of no slot lies
// in the header, in that of another, or in the disk.
func (h *Header) check() error {
	if h.KeyBytes == 0 || h.KeyBytes > maxKey {
		return fault(atKeyBytes, "the key has %d bytes, where 1 to %d are possible", h.KeyBytes, maxKey)
	}
	if h.DigestIterations == 0 || h.DigestIterations > MaxIterations {
		return fault(atDigestIter, "%d iterations, where 1 to %d are possible", h.DigestIterations, MaxIterations)
	}
	for i := range h.Slots {
		s, at := &h.Slots[i], atSlots+i*slotSize
		begin, end := h.material(i)
		switch {
		case s.Stripes == 0 || s.Stripes > MaxStripes:
			return fault(at+44, "slot %d has %d stripes, where 1 to %d are possible", i, s.Stripes, MaxStripes)
		case s.Active && (s.Iterations == 0 || s.Iterations > MaxIterations):
			return fault(at+4, "slot %d has %d iterations, where 1 to %d are possible", i, s.Iterations, MaxIterations)
		case begin < HeaderSize:
			return fault(at+40, "slot %d has its key material in the header, at sector %d", i, s.Offset)
		case h.Payload != 0 && end > int64(h.Payload)*SectorSize:
			return fault(at+40, "slot %d has its key material at sector %d, which reaches into the disk at sector %d", i, s.Offset, h.Payload)
		}
		for j := range i {
			if b, e := h.material(j); begin < e && b < end {
				return fault(at+40, "slots %d and %d have their key material in the same place", j, i)
			}
		}
	}
	return nil
}

// material is where in the image slot i has its key material: whole sectors.
func (h *Header) material(i int) (begin, end int64) {
	s := &h.Slots[i]
	begin = int64(s.Offset) * SectorSize
	return begin, begin + roundUp(int64(s.Stripes)*int64(h.KeyBytes), SectorSize)
}

func roundUp(n, to int64) int64 { return (n + to - 1) / to * to }

// Bytes is the header as it lies in an image.
func (h *Header) Bytes() []byte {
	b := make([]byte, HeaderSize)
	copy(b, magic)
	binary.BigEndian.PutUint16(b[atVersion:], 1)
	copy(b[atCipher:atMode-1], h.Cipher)
	copy(b[atMode:atHash-1], h.Mode)
	copy(b[atHash:atPayload-1], h.Hash)
	binary.BigEndian.PutUint32(b[atPayload:], h.Payload)
	binary.BigEndian.PutUint32(b[atKeyBytes:], h.KeyBytes)
	copy(b[atDigest:], h.Digest[:])
	copy(b[atDigestSalt:], h.DigestSalt[:])
	binary.BigEndian.PutUint32(b[atDigestIter:], h.DigestIterations)
	copy(b[atUUID:atSlots-1], h.UUID)
	for i := range h.Slots {
		s, f := &h.Slots[i], b[atSlots+i*slotSize:]
		state := uint32(slotInactive)
		if s.Active {
			state = slotActive
		}
		binary.BigEndian.PutUint32(f, state)
		binary.BigEndian.PutUint32(f[4:], s.Iterations)
		copy(f[8:], s.Salt[:])
		binary.BigEndian.PutUint32(f[40:], s.Offset)
		binary.BigEndian.PutUint32(f[44:], s.Stripes)
	}
	return b
}

// AnyActive reports whether any password opens the image.
func (h *Header) AnyActive() bool {
	for i := range h.Slots {
		if h.Slots[i].Active {
			return true
		}
	}
	return false
}
