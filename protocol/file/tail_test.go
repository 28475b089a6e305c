package file

import (
	"bytes"
	"testing"
)

// TestF7NoPageIsWrittenBothWays: what reaches the storage when a file of
// unaligned size is written around its end.
func TestF7NoPageIsWrittenBothWays(t *testing.T) {
	for _, c := range []struct {
		size, from int64
		needs      needs
	}{
		{100000, 98304, needs{512, 512, 512, 512}},
		{98304 + 512, noTail, needs{512, 512, 512, 512}},
		{98304 + 512, 98304, needs{4096, 4096, 512, 512}},
		{98304, noTail, needs{4096, 4096, 512, 512}},
		{100000, noTail, needs{1, 1, 1, 1}},
		{3000, 0, needs{512, 512, 512, 512}},
		{100000, 65536, needs{65536, 65536, 512, 512}},
	} {
		f := newFake(c.needs, pattern(make([]byte, c.size), 3))
		f.dio = said(c.needs.mem, c.needs.write, c.needs.read)
		if c.needs.write == 1 {
			f.fs.magic = 0x6969
		}
		e := fakeEdge(t, f, config{})
		if from := e.n.tailFrom.Load(); from != c.from {
			t.Errorf("size %d, alignment %d: the tail begins at %d, want %d", c.size, c.needs.write, from, c.from)
		}
		model := bytes.Clone(f.content)
		for i, back := range []int64{1, 100, 511, 1000, 2999, 8192, 70000} {
			n := min(back, c.size)
			b := pattern(aligned(t, int(n), 0), i)
			copy(model[c.size-n:], b)
			if err := e.write(c.size-n, b); err != nil {
				t.Errorf("size %d, the last %d bytes: %v", c.size, n, err)
			}
		}
		if !bytes.Equal(f.content, model) || f.grown || int64(len(f.content)) != c.size {
			t.Errorf("size %d: other content, or a longer file: %d bytes", c.size, len(f.content))
		}
		for _, w := range f.writes {
			if w.cached && w.off < c.from || !w.cached && w.off+w.n > c.from && c.from != noTail {
				t.Errorf("size %d, tail from %d: a write of %d at %d, by the page cache %v", c.size, c.from, w.n, w.off, w.cached)
			}
		}
	}
}
