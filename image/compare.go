package image

import (
	"bytes"
	"context"
	"errors"

	"github.com/platter-storage/platter/block"
)

// Difference is the result of Compare.
type Difference struct {
	// Same content; Sizes that differ are no difference where the rest of
	// the larger is zeroes.
	Same, Sizes bool
	// At is the offset of the first that differs, -1 where none does, and
	// State says that it is the allocation that does.
	At    int64
	State bool
	// Rest says that what both have is the same, and their sizes differ.
	Rest bool
}

// Errors of Compare by what failed.
var (
	ErrOpen   = errors.New("opening failed")
	ErrStatus = errors.New("block status failed")
	ErrRead   = errors.New("reading failed")
)

// Compare finds the first byte in which two images differ. strict also wants
// equal sizes and equal allocation.
func Compare(ctx context.Context, a, b Source, strict bool, p block.Progress) (d Difference, err error) {
	x, err := Open(ctx, a, true)
	if err != nil {
		return d, errors.Join(ErrOpen, err)
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	y, err := Open(ctx, b, true)
	if err != nil {
		return d, errors.Join(ErrOpen, err)
	}
	defer func() { err = errors.Join(err, y.Close()) }()
	d = Difference{At: -1, Sizes: x.Size() != y.Size()}
	if strict && d.Sizes {
		return d, nil
	}
	if err := d.both(x, y, strict, p); err != nil || d.At >= 0 {
		return d, err
	}
	d.Rest = d.Sizes
	larger, from := x, y.Size()
	if y.Size() > x.Size() {
		larger, from = y, x.Size()
	}
	err = d.rest(larger, from)
	d.Same = err == nil && d.At < 0
	return d, err
}

// both compares what the two have in common.
func (d *Difference) both(x, y *Image, strict bool, p block.Progress) error {
	u, v := make([]byte, copyPiece), make([]byte, copyPiece)
	end := min(x.Size(), y.Size())
	for off := int64(0); off < end; {
		e, err := x.Status(off, min(statusPiece, end-off))
		f, ferr := y.Status(off, min(statusPiece, end-off))
		if err = errors.Join(err, ferr); err != nil {
			return errors.Join(ErrStatus, err)
		}
		n := min(e.Len, f.Len)
		if strict && state(e) != state(f) {
			d.At, d.State = off, true
			return nil
		}
		if !e.Zero || !f.Zero {
			n = min(n, copyPiece)
			if err := d.bytes(x, y, off, u[:n], v[:n], e.Zero, f.Zero); err != nil || d.At >= 0 {
				return err
			}
		}
		off += n
		if p != nil {
			p(off, end)
		}
	}
	return nil
}

// state is what must be equal in strict mode, whatever layer it comes from.
func state(e block.Extent) [3]bool {
	r := runOf(0, e)
	return [3]bool{r.Present, r.Data, r.Zero}
}

func (d *Difference) bytes(x, y *Image, off int64, u, v []byte, xZero, yZero bool) error {
	if err := errors.Join(load(x, u, off, xZero), load(y, v, off, yZero)); err != nil {
		return errors.Join(ErrRead, err)
	}
	if bytes.Equal(u, v) {
		return nil
	}
	for i := range u {
		if u[i] != v[i] {
			d.At = off + int64(i)
			return nil
		}
	}
	return nil
}

func load(im *Image, b []byte, off int64, zero bool) error {
	if zero {
		clear(b)
		return nil
	}
	return im.Read(b, off)
}

// rest looks whether what the larger image has more is zeroes.
func (d *Difference) rest(im *Image, off int64) error {
	b := make([]byte, copyPiece)
	for off < im.Size() {
		e, err := im.Status(off, min(statusPiece, im.Size()-off))
		if err != nil {
			return errors.Join(ErrStatus, err)
		}
		if e.Zero {
			off += e.Len
			continue
		}
		n := min(e.Len, copyPiece)
		if err := im.Read(b[:n], off); err != nil {
			return errors.Join(ErrRead, err)
		}
		for i, x := range b[:n] {
			if x != 0 {
				d.At = off + int64(i)
				return nil
			}
		}
		off += n
	}
	return nil
}
