package image

import (
	"bytes"
	"context"
	"errors"
	"syscall"

	"github.com/platter-storage/platter/block"
)

// ResizeOptions say how Resize works.
type ResizeOptions struct {
	// Size is in bytes; with Relative it is added to what there is.
	Size     int64
	Relative bool
	// Shrink allows to make the disk smaller: what is beyond is lost.
	Shrink        bool
	Preallocation block.Prealloc
}

// ErrShrink is the cause of a refusal to make a disk smaller.
var ErrShrink = errors.New("the disk would lose what is beyond its new end; allow it with --shrink")

// Resize sets the size of a disk.
func Resize(ctx context.Context, s Source, o ResizeOptions) error {
	return with(ctx, s, false, func(im *Image) error {
		size, old := o.Size, im.Size()
		if o.Relative {
			size += old
		}
		if size < 0 || o.Relative && size == 0 {
			return block.Errorf(syscall.EINVAL, "%s: a size of %d bytes is not possible", s, size)
		}
		if im.Format() == "raw" || im.Format() == "qcow2" {
			size = (size + 511) &^ 511
		}
		if size < old && !o.Shrink {
			return ErrShrink
		}
		if size <= old && o.Preallocation != block.PreallocOff {
			return block.Errorf(syscall.EINVAL, "%s: preallocation is for what is added, and nothing is", s)
		}
		return im.Truncate(size, o.Preallocation)
	})
}

// RebaseOptions say how Rebase works.
type RebaseOptions struct {
	// Backing is the name as it is to stand in the image; empty is none.
	Backing, BackingFormat string
	// Unsafe changes the name only: the caller says that both show the same.
	Unsafe   bool
	Progress block.Progress
}

// Rebase changes what an image stands on, so that its content stays the same.
func Rebase(ctx context.Context, s Source, o RebaseOptions) error {
	s.NoBacking = o.Unsafe
	return with(ctx, s, false, func(im *Image) error {
		if im.child.Info().Abilities.Amend == nil {
			return im.lacks("backing files")
		}
		if !o.Unsafe {
			if err := im.keep(ctx, o); err != nil {
				return err
			}
		}
		vals := block.Values{"backing_file": o.Backing}
		if o.Backing != "" && o.BackingFormat != "" {
			vals["backing_fmt"] = o.BackingFormat
		}
		if err := im.Flush(); err != nil {
			return err
		}
		return im.Amend(vals, nil)
	})
}

// keep writes into im what the new backing file shows otherwise than the old.
func (im *Image) keep(ctx context.Context, o RebaseOptions) error {
	if o.Backing == "" {
		return im.keepFrom(nil, o.Progress)
	}
	s := Source{Name: beside(im.Source.String(), o.Backing), Format: o.BackingFormat, Trust: im.Source.Trust, Shared: true}
	return with(ctx, s, true, func(below *Image) error { return im.keepFrom(below, o.Progress) })
}

func (im *Image) keepFrom(below *Image, p block.Progress) error {
	old, now := make([]byte, copyPiece), make([]byte, copyPiece)
	for off := int64(0); off < im.Size(); {
		e, err := im.Status(off, im.Size()-off)
		if err != nil {
			return err
		}
		n := e.Len
		if e.Depth > 0 || !e.Allocated {
			n = min(n, copyPiece)
			if err := im.keepPiece(below, off, old[:n], now[:n]); err != nil {
				return err
			}
		}
		off += n
		if p != nil {
			p(off, im.Size())
		}
	}
	return nil
}

// keepPiece compares in clusters, so that as little as possible is written.
func (im *Image) keepPiece(below *Image, off int64, old, now []byte) error {
	if err := im.Read(old, off); err != nil {
		return err
	}
	clear(now)
	if below != nil && off < below.Size() {
		if err := below.Read(now[:min(int64(len(now)), below.Size()-off)], off); err != nil {
			return err
		}
	}
	step := max(int(im.Cluster()), 512)
	for len(old) > 0 {
		n := min(step-int(off%int64(step)), len(old))
		if !bytes.Equal(old[:n], now[:n]) {
			if err := im.Write(old[:n], off, 0); err != nil {
				return err
			}
		}
		old, now, off = old[n:], now[n:], off+int64(n)
	}
	return nil
}

// CommitOptions say how Commit works.
type CommitOptions struct {
	Progress block.Progress
}

// Commit writes what an image has itself into the file that backs it. The image
// keeps its clusters, which then say the same as the backing file.
func Commit(ctx context.Context, s Source, o CommitOptions) error {
	all, err := Describe(ctx, s, false)
	if err != nil {
		return err
	}
	in := all[0]
	if in.BackingFilename == "" {
		return block.Errorf(syscall.EINVAL, "%s has no backing file that could be written to", s)
	}
	s.NoBacking = true
	below := Source{Name: in.FullBackingFilename, Format: in.BackingFilenameFormat, Trust: s.Trust, Cache: s.Cache}
	return with(ctx, s, true, func(im *Image) error {
		return with(ctx, below, false, func(dst *Image) error { return im.commitTo(dst, o.Progress) })
	})
}

func (im *Image) commitTo(dst *Image, p block.Progress) error {
	if dst.Size() < im.Size() {
		if err := dst.Truncate(im.Size(), block.PreallocOff); err != nil {
			return err
		}
	}
	b := make([]byte, copyPiece)
	for off := int64(0); off < im.Size(); {
		e, err := im.Status(off, im.Size()-off)
		if err != nil {
			return err
		}
		n := e.Len
		switch {
		case !e.Allocated:
		case e.Zero:
			err = dst.Zero(off, n, block.MayUnmap)
		default:
			n = min(n, copyPiece)
			if err = im.Read(b[:n], off); err == nil {
				err = dst.Write(b[:n], off, 0)
			}
		}
		if err != nil {
			return err
		}
		off += n
		if p != nil {
			p(off, im.Size())
		}
	}
	return nil
}
