package image

import (
	"bytes"

	"github.com/platter-storage/platter/block"
)

// Run is a piece of the disk with one state.
type Run struct {
	Start      int64  `json:"start"`
	Length     int64  `json:"length"`
	Depth      int    `json:"depth"`
	Present    bool   `json:"present"`
	Zero       bool   `json:"zero"`
	Data       bool   `json:"data"`
	Compressed bool   `json:"compressed"`
	Offset     *int64 `json:"offset,omitempty"`
	File       string `json:"-"`
}

// Map calls f with each run of [off, off+n), neighbours of one state being one
// run. Runs are bounded by the disk's size.
func (im *Image) Map(off, n int64, f func(Run) error) error {
	end := min(im.Size(), off+min(n, im.Size()-off))
	var last *Run
	for off < end {
		e, err := im.Status(off, end-off)
		if err != nil {
			return err
		}
		r := runOf(off, e)
		if last != nil && last.join(r) {
			off += e.Len
			continue
		}
		if last != nil {
			if err := f(*last); err != nil {
				return err
			}
		}
		last = &r
		off += e.Len
	}
	if last == nil {
		return nil
	}
	return f(*last)
}

func runOf(off int64, e block.Extent) Run {
	// A layer below that has the data, or a place for it, has it allocated.
	present := e.Allocated || e.Depth > 0 && (e.Data || e.Host >= 0)
	r := Run{Start: off, Length: e.Len, Depth: e.Depth, Present: present, Zero: e.Zero, Data: e.Data, Compressed: e.Compressed, File: e.HostFile}
	if e.Host >= 0 {
		r.Offset = &e.Host
	}
	return r
}

// join adds r to the run if it goes on in the same way.
func (l *Run) join(r Run) bool {
	same := l.Depth == r.Depth && l.Present == r.Present && l.Zero == r.Zero && l.Data == r.Data && l.Compressed == r.Compressed && l.File == r.File
	switch {
	case !same || (l.Offset == nil) != (r.Offset == nil):
		return false
	case l.Offset != nil && *l.Offset+l.Length != *r.Offset:
		return false
	}
	l.Length += r.Length
	return true
}

// zeroes is compared with, a piece at a time.
var zeroes [64 << 10]byte

// allZero reports whether b has zeroes only. bytes.Equal is vector code.
func allZero(b []byte) bool {
	for len(b) > 0 {
		n := min(len(b), len(zeroes))
		if !bytes.Equal(b[:n], zeroes[:n]) {
			return false
		}
		b = b[n:]
	}
	return true
}
