package qcow2

import (
	"encoding/binary"
	"math/bits"
	"sync/atomic"
)

// bitmapBits are the bits of a dirty bitmap in memory. Any number of requests
// mark in it at once, without a lock. Memory is made for what is marked, by
// pages, and counted against a budget; where that is spent a page is marked
// whole: marks may be too many, never too few.
type bitmapBits struct {
	granBits uint
	n        int64 // of bits
	pages    []atomic.Pointer[bitPage]
	budget   *atomic.Int64
	marked   atomic.Bool // something was marked since it was cleared
}

// bitPage is a part of the bits, in the order of the file when its words are
// written in little endian.
type bitPage [pageWords]atomic.Uint64

const (
	pageWords = 512
	pageBits  = pageWords * 64
	pageBytes = pageWords * 8
	// maxBitmapMemory is the budget of all bitmaps of a node in bytes.
	maxBitmapMemory = 128 << 20
)

// fullPage is the page of everything that is marked whole.
var fullPage = func() *bitPage {
	p := new(bitPage)
	for i := range p {
		p[i].Store(^uint64(0))
	}
	return p
}()

// newBits makes unmarked bits for a disk; ok is false where not even their
// table finds room in the budget.
func newBits(size uint64, granBits byte, budget *atomic.Int64) (b *bitmapBits, ok bool) {
	n := int64((size + 1<<granBits - 1) >> granBits)
	pages := (n + pageBits - 1) / pageBits
	if budget.Add(-pages*8) < 0 {
		budget.Add(pages * 8)
		return nil, false
	}
	return &bitmapBits{granBits: uint(granBits), n: n, pages: make([]atomic.Pointer[bitPage], pages), budget: budget}, true
}

// mark marks what [off, off+n) of the disk touches.
func (b *bitmapBits) mark(off, n int64) {
	if n <= 0 {
		return
	}
	first, last := off>>b.granBits, min((off+n-1)>>b.granBits, b.n-1)
	for i := first; i <= last; {
		p := b.page(i / pageBits)
		end := min(last+1, (i/pageBits+1)*pageBits)
		if p == fullPage {
			i = end
			continue
		}
		for i < end {
			w := &p[i%pageBits/64]
			k := min(64-i%64, end-i)
			mask := (^uint64(0) >> (64 - k)) << (i % 64)
			if w.Load()&mask != mask {
				w.Or(mask)
			}
			i += k
		}
	}
	if !b.marked.Load() {
		b.marked.Store(true)
	}
}

// page finds or makes one.
func (b *bitmapBits) page(i int64) *bitPage {
	if p := b.pages[i].Load(); p != nil {
		return p
	}
	p := fullPage
	if b.budget.Add(-pageBytes) >= 0 {
		p = new(bitPage)
	} else {
		b.budget.Add(pageBytes)
	}
	if b.pages[i].CompareAndSwap(nil, p) {
		return p
	}
	if p != fullPage {
		b.budget.Add(pageBytes)
	}
	return b.pages[i].Load()
}

// word is the word that holds bit i, without bits beyond the end.
func (b *bitmapBits) word(i int64) uint64 {
	p := b.pages[i/pageBits].Load()
	if p == nil {
		return 0
	}
	w := p[i%pageBits/64].Load()
	if left := b.n - i&^63; left < 64 {
		w &= 1<<left - 1
	}
	return w
}

// runs calls f with each run of marked bits, as bytes of the disk.
func (b *bitmapBits) runs(size int64, f func(off, n int64) error) error {
	start := int64(-1)
	flush := func(end int64) error {
		if start < 0 {
			return nil
		}
		off := start << b.granBits
		start = -1
		return f(off, min(end<<b.granBits, size)-off)
	}
	for i := int64(0); i < b.n; {
		if b.pages[i/pageBits].Load() == nil {
			if err := flush(i); err != nil {
				return err
			}
			i = (i/pageBits + 1) * pageBits
			continue
		}
		w := b.word(i) >> (i % 64)
		if start < 0 {
			if w == 0 {
				i = i&^63 + 64
				continue
			}
			i += int64(bits.TrailingZeros64(w))
			start = i
			continue
		}
		k := int64(bits.TrailingZeros64(^w))
		if k >= 64-i%64 {
			i = i&^63 + 64
			continue
		}
		i += k
		if err := flush(i); err != nil {
			return err
		}
	}
	return flush(b.n)
}

// fill gives part of the bits as they lie in the file, from byte at on.
func (b *bitmapBits) fill(at int64, out []byte) {
	clear(out)
	for k := 0; k < len(out); k += 8 {
		if i := (at + int64(k)) * 8; i < b.n {
			binary.LittleEndian.PutUint64(out[k:], b.word(i))
		}
	}
}

// take marks what the bytes of the file say, which lie at byte at.
func (b *bitmapBits) take(at int64, in []byte) {
	for k := 0; k < len(in); k += 8 {
		w, i := binary.LittleEndian.Uint64(in[k:]), (at+int64(k))*8
		if w == 0 || i >= b.n {
			continue
		}
		if p := b.page(i / pageBits); p != fullPage {
			p[i%pageBits/64].Or(w)
		}
	}
}

// count is how many bits are marked.
func (b *bitmapBits) count() (n int64) {
	for i := int64(0); i < b.n; i += 64 {
		if b.pages[i/pageBits].Load() == nil {
			i = (i/pageBits+1)*pageBits - 64
			continue
		}
		n += int64(bits.OnesCount64(b.word(i)))
	}
	return n
}
