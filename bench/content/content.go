// Package content has what disks of benchmarks hold: bytes that say where they
// belong.
package content

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

const mib = 1 << 20

// Content fills b with what a disk holds at off.
type Content func(b []byte, off int64)

// Filled is the content of disks that hold any.
var Filled = Pattern(0)

// Zeroes is the content of a disk that reads as zeroes.
func Zeroes(b []byte, _ int64) { clear(b) }

// Pattern is a content of 8-byte words, each a mix of its own position and
// salt, so that a byte from elsewhere or of another time shows.
func Pattern(salt uint64) Content {
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

// File writes a file of size bytes of the pattern, in full, to storage.
// Unless it is to be cached, its pages leave the page cache.
func File(name string, size int64, cached bool) (err error) {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	b := make([]byte, mib)
	for off := int64(0); off < size; off += int64(len(b)) {
		b = b[:min(int64(len(b)), size-off)]
		Filled(b, off)
		if _, err := f.WriteAt(b, off); err != nil {
			return err
		}
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if cached {
		return nil
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return fmt.Errorf("%s: dropping its pages from the cache: %w", name, err)
	}
	return nil
}
