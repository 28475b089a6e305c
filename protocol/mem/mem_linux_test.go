package mem

import (
	"encoding/binary"
	"os"
	"testing"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/sys"
)

// resident is how many bytes of b are backed by memory. It looks at the pages
// of b alone: the system shows neighbouring mappings of one kind as one.
// See proc_pid_pagemap(5): 8 bytes a page, bit 63 present, bit 62 swapped.
func resident(t *testing.T, b []byte) int64 {
	t.Helper()
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	page := int64(sys.PageSize())
	entries := make([]byte, int64(len(b))/page*8)
	if _, err := f.ReadAt(entries, int64(sys.Addr(b))/page*8); err != nil {
		t.Fatal(err)
	}
	var n int64
	for ; len(entries) > 0; entries = entries[8:] {
		if binary.NativeEndian.Uint64(entries)>>62 != 0 {
			n += page
		}
	}
	return n
}

// Memory that was discarded, or zeroed with leave to unmap, goes back to the
// system; reading what was never written takes none.
func TestMemoryIsGivenBack(t *testing.T) {
	cl := openMem(t, "64M")
	b := make([]byte, 16<<20)
	for i := range b {
		b[i] = 1
	}
	fill := func() {
		t.Helper()
		for off := int64(0); off < 64<<20; off += int64(len(b)) {
			if err := cl.Write(off, 0, b); err != nil {
				t.Fatal(err)
			}
		}
	}
	m := memOf(cl.Child.Instance())
	if err := cl.Read(0, b[:1<<20]); err != nil || resident(t, m) != 0 {
		t.Errorf("reading holes made %d bytes resident (%v)", resident(t, m), err)
	}
	b[0] = 1
	for name, f := range map[string]func() error{
		"discard":  func() error { return cl.Discard(0, 64<<20) },
		"zero":     func() error { return cl.Zero(0, 64<<20, block.MayUnmap) },
		"truncate": func() error { return cl.Truncate(0) },
	} {
		if err := cl.Truncate(64 << 20); err != nil {
			t.Fatal(err)
		}
		fill()
		if n := resident(t, m); n < 64<<20 {
			t.Fatalf("after filling 64 MiB %d bytes are resident", n)
		}
		if err := f(); err != nil || resident(t, m) != 0 {
			t.Errorf("%s: %d bytes are still resident (%v)", name, resident(t, m), err)
		}
	}
}
