// Package mem is the driver for a disk in memory: one anonymous mapping, of
// which the system backs what was written. Its content ends with it.
//
// A bitmap of chunks that were ever written makes reads of the rest cheap,
// gives block status, and says which memory a discard can give back.
package mem

import (
	"context"
	"strings"
	"syscall"

	"github.com/platter-storage/platter/block"
)

// chunk is the unit in bytes of the bitmap and of giving memory back: a
// multiple of every page size.
const (
	chunkBits = 16
	chunk     = 1 << chunkBits
)

var options = []block.Option{
	{Name: "size", Type: block.OptSize, Required: true, Help: "the disk's size in bytes; memory is used as it is written"},
}

func init() {
	block.Register(&block.Driver{
		Name: "mem", Kind: block.KindProtocol, Doc: "a disk in memory, lost when it is closed",
		Options: options, Schemes: []string{"mem"}, ParseURI: parseURI, Open: open,
	})
}

// parseURI reads mem:1G and mem://1G.
func parseURI(uri string) (block.Values, error) {
	size := strings.TrimPrefix(strings.TrimPrefix(uri, "mem:"), "//")
	if _, err := block.ParseSize(size); err != nil {
		return nil, block.Errorf(syscall.EINVAL, "%s: %v; write it as mem:1G", uri, err)
	}
	return block.Values{"size": size}, nil
}

// node is the disk. What a completed write stored is in mem with its chunk's
// bit set: a write sets the bits after it has copied, and what gives a chunk
// back clears the bit before. So a chunk whose bit is clear reads as zeroes,
// whatever else is in flight; the other way round a write that meets a discard
// of its chunk could leave data under a clear bit.
type node struct {
	info    block.Info
	mem     []byte // whole chunks, at least the size; only Truncate changes it, alone
	touched bitmap
}

func open(_ context.Context, a *block.OpenArgs) (block.Node, error) {
	size := a.Options.Size("size")
	if err := checkSize(size); err != nil {
		return nil, err
	}
	mem, err := mapMemory(roundUp(size))
	if err != nil {
		return nil, noMemory(size, err)
	}
	n := &node{mem: mem, touched: newBitmap(len(mem) >> chunkBits)}
	n.info = block.Info{
		Driver: "mem", Filename: "mem:" + a.Options.String("size"), ReadOnly: a.ReadOnly,
		WriteFlags: block.FUA, ZeroFlags: block.FUA | block.MayUnmap,
		Inline: true, MultiConn: true,
	}
	n.info.Abilities.Mapper = n
	l := block.ByteLimits()
	l.DiscardAlign = chunk
	n.info.SetLimits(l)
	n.info.SetSize(size)
	return n, nil
}

func checkSize(size int64) error {
	if size > MaxSize {
		return block.Errorf(syscall.EFBIG, "driver mem: a disk of %s is larger than the %s that it can address on this system; use a sparse file (driver file) instead",
			block.FormatSize(size), block.FormatSize(MaxSize))
	}
	return nil
}

func noMemory(size int64, err error) error {
	return block.Errorf(syscall.ENOMEM, "driver mem: no address space for a disk of %s: %v (see ulimit -v and vm.overcommit_memory, or use a sparse file)", block.FormatSize(size), err)
}

// roundUp is the length of the mapping for a disk of size bytes: whole chunks,
// at least one, because there is no empty mapping.
func roundUp(size int64) int { return int(max((size+chunk-1)&^(chunk-1), chunk)) }

func (n *node) Info() *block.Info { return &n.info }

func (n *node) Preadv(_ *block.Req, off int64, v block.Vec, _ block.Flags) error {
	if !n.touched.any(off, off+v.Len()) {
		for _, e := range v {
			clear(e) // reading the mapping would fill the page tables with zero pages
		}
		return nil
	}
	for _, e := range v {
		off += int64(copy(e, n.mem[off:]))
	}
	return nil
}

func (n *node) Pwritev(_ *block.Req, off int64, v block.Vec, _ block.Flags) error {
	end := off
	for _, e := range v {
		end += int64(copy(n.mem[end:], e))
	}
	n.touched.set(off, end)
	return nil
}

func (n *node) WriteZeroes(_ *block.Req, off, length int64, fl block.Flags) error {
	n.zero(off, off+length, fl&block.MayUnmap != 0)
	return nil
}

func (n *node) Discard(_ *block.Req, off, length int64) error {
	n.zero(off, off+length, true)
	return nil
}

// zero clears [off, end) where it was ever written; whole chunks are given
// back to the system if unmap.
func (n *node) zero(off, end int64, unmap bool) {
	for off < end {
		run, touched := n.touched.run(off, end)
		if touched {
			n.zeroTouched(off, off+run, unmap)
		}
		off += run
	}
}

func (n *node) zeroTouched(off, end int64, unmap bool) {
	from, to := (off+chunk-1)&^(chunk-1), end&^(chunk-1)
	if end == n.info.Size() {
		to = (end + chunk - 1) &^ (chunk - 1) // nothing lies behind the end
	}
	if !unmap || from >= to {
		clear(n.mem[off:end])
		return
	}
	clear(n.mem[off:from])
	n.touched.clear(from, to)
	if !giveBack(n.mem[from:to]) {
		clear(n.mem[from:to])
	}
	if to < end {
		clear(n.mem[to:end])
	}
}

// Flush has nothing to do: a write is as durable as it gets when it completes.
func (n *node) Flush(*block.Req) error { return nil }

func (n *node) BlockStatus(_ *block.Req, off, length int64) (block.Extent, error) {
	run, touched := n.touched.run(off, off+length)
	return block.Extent{
		Len: run, Data: touched, Zero: !touched, Allocated: true,
		EOF: off+run == n.info.Size(), Host: -1,
	}, nil
}

func (n *node) Truncate(_ *block.Req, size int64, pre block.Prealloc) error {
	old := n.info.Size()
	switch {
	case pre != block.PreallocOff:
		return block.Errorf(syscall.ENOTSUP, "driver mem uses memory as it is written; preallocation %s is not possible", pre)
	case size < old:
		n.zero(size, old, true)
	case roundUp(size) > len(n.mem):
		if err := n.grow(size); err != nil {
			return err
		}
	}
	n.info.SetSize(size)
	return nil
}

// grow makes the mapping long enough for size.
func (n *node) grow(size int64) error {
	if err := checkSize(size); err != nil {
		return err
	}
	mem, err := n.remap(roundUp(size))
	if err != nil {
		return noMemory(size, err)
	}
	n.mem = mem
	n.touched = n.touched.grown(len(mem) >> chunkBits)
	return nil
}

func (n *node) Close() error {
	m := n.mem
	n.mem = nil
	return unmapMemory(m)
}

// Map says where the bytes are. A mapped write keeps its range in flight until
// Finish, like a mapped read: who asks must have, or have room for, all the
// bytes, so that a peer who stalls holds up nothing here.
func (n *node) Map(_ *block.Req, op block.Op, off int64, v block.Vec, _ block.Flags) (block.Mapping, bool) {
	end := off + v.Len()
	if op == block.OpRead && !n.touched.any(off, end) {
		return block.Mapping{Kind: block.MapZero}, true
	}
	return block.Mapping{Kind: block.MapMemory, Mem: n.mem[off:end:end], Cookie: cookieOf(off, end)}, true
}

// cookieOf packs the range's first chunk and its number of chunks: a request
// is at most block.MaxRequest long.
func cookieOf(off, end int64) uint64 {
	first, last := off>>chunkBits, (end-1)>>chunkBits
	return uint64(first)<<20 | uint64(last-first+1)
}

// Done marks what a mapped write has stored; even a failed one may have stored
// a part.
func (n *node) Done(op block.Op, cookie uint64, _ error) {
	if op == block.OpWrite {
		off := int64(cookie>>20) << chunkBits
		n.touched.set(off, off+int64(cookie&(1<<20-1))<<chunkBits)
	}
}
