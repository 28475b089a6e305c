package blocktest

import (
	"encoding/binary"
	"testing"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/sys"
)

// Memory is n bytes at an address that is a multiple of 64 KiB, outside the Go
// heap: like a guest's, it may change under a request.
func Memory(t testing.TB, n int) []byte {
	t.Helper()
	b, mapping, err := sys.MapAligned(n, block.MaxAlign)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sys.Unmap(mapping); err != nil {
			t.Error(err)
		}
	})
	return b
}

// AtAddress is n bytes whose address is odd times align: a multiple of align
// and of nothing larger.
func AtAddress(t testing.TB, n, align int) []byte {
	t.Helper()
	if align >= block.MaxAlign {
		return Memory(t, n)
	}
	return Memory(t, n+align)[align : align+n : align+n]
}

// Address is that of b's first byte.
func Address(b []byte) uintptr { return sys.Addr(b) }

// Cut cuts b into elements of the given lengths; what is left is the last.
func Cut(b []byte, lens ...int) block.Vec {
	var v block.Vec
	for _, n := range lens {
		v = append(v, b[:n:n])
		b = b[n:]
	}
	if len(b) > 0 {
		v = append(v, b)
	}
	return v
}

// Pattern fills b with bytes that differ by seed and position.
func Pattern(b []byte, seed uint64) []byte {
	fillPattern(b, seed, 0)
	return b
}

// fillPattern makes b what the write called id stores from position pos on:
// each 8 bytes are a hash of both.
func fillPattern(b []byte, id uint64, pos int64) {
	var word [8]byte
	for len(b) > 0 {
		x := id*0x9e3779b97f4a7c15 ^ uint64(pos>>3)*0xbf58476d1ce4e5b9
		x ^= x >> 29
		x *= 0x94d049bb133111eb
		x ^= x >> 32
		binary.LittleEndian.PutUint64(word[:], x)
		n := copy(b, word[pos&7:])
		b, pos = b[n:], pos+int64(n)
	}
}
