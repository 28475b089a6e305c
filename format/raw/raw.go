// Package raw is the format without a format: the child's bytes as they are,
// or a window of them. What it adds is a node of its own to name, export and
// resize.
//
// It is never guessed: a guest writes its content, and could write what looks
// like another format.
package raw

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/platter-storage/platter/block"
)

var options = []block.Option{
	{Name: "file", Type: block.OptNode, Required: true, Help: "where the bytes are"},
	{Name: "offset", Type: block.OptSize, Default: "0", Help: "where in the file the disk begins, in bytes"},
	{Name: "size", Type: block.OptSize, Help: "the disk's size in bytes, then fixed; without it the disk ends where the file does"},
}

func init() {
	block.Register(&block.Driver{
		Name: "raw", Kind: block.KindFormat, Doc: "the bytes of a file or device as they are, or a part of them",
		Options: options, Open: open,
	})
}

// node is the disk: byte 0 of it is byte off of file.
type node struct {
	info  block.Info
	file  *block.Child
	off   int64
	fixed bool // by the option size
	// seen is the child's set from which the published limits were made. It
	// changes, with them, under following.
	seen      atomic.Pointer[block.Limits]
	following sync.Mutex
}

func open(_ context.Context, a *block.OpenArgs) (block.Node, error) {
	n := &node{off: a.Options.Size("offset"), fixed: a.Options.Has("size")}
	perm, shared := n.permissions(a.ReadOnly)
	var err error
	if n.file, err = a.Child("file", block.RoleData, perm, shared); err != nil {
		return nil, err
	}
	below := n.file.Info()
	n.info = block.Info{
		Driver: "raw", Filename: below.Filename, ReadOnly: a.ReadOnly,
		WriteFlags: below.WriteFlags, ZeroFlags: below.ZeroFlags,
		Inline: below.Inline, Cached: below.Cached, MultiConn: below.MultiConn,
	}
	n.info.Abilities.Mapper = n
	n.info.Abilities.Explain = n.explain
	if err := n.place(a.Options.Size("size")); err != nil {
		return nil, err
	}
	n.followLimits(n.file.Limits())
	return n, nil
}

// permissions are what the edge to the file needs and allows. The whole file
// is nobody else's to write; a window leaves the rest of it to others, other
// windows above all, but not its size.
func (n *node) permissions(readOnly bool) (perm, shared block.Perm) {
	perm, shared = block.PermRead, block.PermAll
	if n.fixed {
		shared &^= block.PermResize
	}
	if readOnly {
		return perm, shared
	}
	perm |= block.PermWrite
	if !n.fixed {
		perm |= block.PermResize
		shared = block.PermRead | block.PermWriteUnchanged
	}
	return perm, shared
}

// place sets the size: the option, or what the file has behind the offset.
func (n *node) place(size int64) error {
	have := n.file.Size()
	if n.off > have {
		return block.Errorf(syscall.EINVAL, "offset %d is beyond the end of %s, which has %d bytes", n.off, n.file.Info().Filename, have)
	}
	if !n.fixed {
		n.info.FollowSize(n.file.Info(), n.off)
		return nil
	}
	if size > have-n.off {
		return block.Errorf(syscall.EINVAL, "offset %d and size %d are %d bytes more than %s has (%d): reduce size, or leave it out to end where the file does",
			n.off, size, n.off-have+size, n.file.Info().Filename, have)
	}
	n.info.SetSize(size)
	return nil
}

func (n *node) explain() []string {
	if n.off == 0 && !n.fixed {
		return nil
	}
	s := fmt.Sprintf("window of %d bytes at offset %d of %s", n.info.Size(), n.off, n.file.Info().Filename)
	if unaligned(n.off, n.file.Limits()) {
		s += fmt.Sprintf("; the offset is not a multiple of the file's alignment (reads %d, writes %d), so its edge pads almost every request: move the window",
			n.file.Limits().ReadAlign, n.file.Limits().WriteAlign)
	}
	return []string{s}
}

func (n *node) Info() *block.Info { return &n.info }

// current is the edge to the file, after a look at whether its limits are
// still those that ours were made from.
func (n *node) current() *block.Child {
	if l := n.file.Limits(); l != n.seen.Load() {
		n.followLimits(l)
	}
	return n.file
}

func (n *node) Preadv(rq *block.Req, off int64, v block.Vec, fl block.Flags) error {
	return n.current().Preadv(rq, n.off+off, v, fl)
}

func (n *node) Pwritev(rq *block.Req, off int64, v block.Vec, fl block.Flags) error {
	return n.current().Pwritev(rq, n.off+off, v, fl)
}

func (n *node) WriteZeroes(rq *block.Req, off, length int64, fl block.Flags) error {
	return n.current().WriteZeroes(rq, n.off+off, length, fl)
}

func (n *node) Discard(rq *block.Req, off, length int64) error {
	return n.current().Discard(rq, n.off+off, length)
}

func (n *node) Flush(rq *block.Req) error { return n.file.Flush(rq) }

func (n *node) BlockStatus(rq *block.Req, off, length int64) (block.Extent, error) {
	e, err := n.current().BlockStatus(rq, n.off+off, length)
	e.EOF = off+e.Len == n.info.Size()
	return e, err
}

func (n *node) Truncate(rq *block.Req, size int64, pre block.Prealloc) error {
	if n.fixed {
		return block.Errorf(syscall.ENOTSUP, "the option size fixes the disk at %d bytes; open it without that option to resize it", n.info.Size())
	}
	if size > block.MaxSize-n.off {
		return block.Errorf(syscall.EFBIG, "with offset %d that is more than %d bytes of file", n.off, int64(block.MaxSize))
	}
	return n.file.Truncate(rq, n.off+size, pre)
}

// Close leaves the edge to whoever gave it.
func (n *node) Close() error { return nil }

// Map passes the question on; the answer is the child's.
func (n *node) Map(rq *block.Req, op block.Op, off int64, v block.Vec, fl block.Flags) (block.Mapping, bool) {
	return n.current().Map(rq, op, n.off+off, v, fl)
}

// Done: nothing was held here.
func (n *node) Done(block.Op, uint64, error) {}
