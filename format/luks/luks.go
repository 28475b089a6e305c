// Package luks is the format of LUKS version 1: a header with key slots, and the
// disk behind it, encrypted sector by sector.
package luks

import (
	"context"
	"fmt"
	"sync"
	"syscall"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/bufpool"
	"github.com/platter-storage/platter/internal/luks"
)

var options = []block.Option{
	{Name: "file", Type: block.OptNode, Required: true, Help: "the image"},
	{Name: "password-file", Type: block.OptString, Help: "a file whose bytes, all of them, are the password"},
}

func init() {
	block.Register(&block.Driver{
		Name: "luks", Kind: block.KindFormat, Doc: "disks encrypted as LUKS version 1",
		Options: options, CreateOptions: createOptions, Open: open, Create: create, Probe: probe,
	})
}

// probe is certain of the magic.
func probe(head []byte, _ string) int {
	if luks.IsHeader(head) {
		return 100
	}
	return 0
}

// node is the disk: its byte 0 is byte payload of file, and its sectors are
// numbered from there.
type node struct {
	info    block.Info
	env     *block.Env
	file    *block.Child
	payload int64
	sectors luks.Sectors
	// vecs are vectors of one element for requests below: a literal would be
	// allocated for each.
	vecs sync.Pool

	// What follows is read and changed by amend alone, which is alone.
	header *luks.Header
	key    []byte
}

func open(ctx context.Context, a *block.OpenArgs) (block.Node, error) {
	n := &node{env: a.Env}
	n.vecs.New = func() any { v := make(block.Vec, 1); return &v }
	perm, shared := block.PermRead, block.PermAll&^block.PermWrite&^block.PermResize
	if !a.ReadOnly {
		perm |= block.PermWrite | block.PermResize
		shared = block.PermRead
	}
	var err error
	if n.file, err = a.Child("file", block.RoleData, perm, shared); err != nil {
		return nil, err
	}
	below := n.file.Info()
	n.info = block.Info{Driver: "luks", Filename: below.Filename, ReadOnly: a.ReadOnly,
		WriteFlags: below.WriteFlags & block.FUA, Cached: below.Cached, MultiConn: below.MultiConn}
	q := block.NewQueue(a.Env, block.NewQueueGroup())
	rq := q.Begin()
	rq.SetContext(ctx)
	err = n.start(ctx, rq, a.Options.String("password-file"))
	q.End(rq, block.OpRead, 0, err)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", below.Filename, err)
	}
	return n, nil
}

// start reads the header and finds the key.
func (n *node) start(ctx context.Context, rq *block.Req, passwordFile string) error {
	head := make([]byte, min(luks.HeaderSize, n.file.Size()))
	if err := n.file.Preadv(rq, 0, block.Vec{head}, 0); err != nil {
		return err
	}
	var err error
	if n.header, err = luks.Parse(head); err != nil {
		return err
	}
	n.payload = int64(n.header.Payload) * luks.SectorSize
	if n.payload == 0 || n.payload > n.file.Size() {
		return block.Errorf(syscall.EINVAL, "the LUKS header at byte 104 puts the disk at byte %d of %d: the file is cut short, or the header is a detached one, which is not supported", n.payload, n.file.Size())
	}
	password, err := readPassword(passwordFile)
	if err != nil {
		return err
	}
	read := func(off int64, b []byte) error {
		if off+int64(len(b)) > n.file.Size() {
			return block.Errorf(syscall.EINVAL, "bytes %d to %d are beyond the end of the file", off, off+int64(len(b)))
		}
		return n.file.Preadv(rq, off, block.Vec{b}, 0)
	}
	if n.key, _, err = n.header.Unlock(ctx, read, password); err != nil {
		return err
	}
	if n.sectors, err = luks.NewSectors(n.header.Cipher, n.header.Mode, n.key); err != nil {
		return err
	}
	n.info.SetSize((n.file.Size() - n.payload) &^ (luks.SectorSize - 1))
	n.info.SetLimits(limits(n.file.Limits()))
	n.info.Abilities.Explain = n.explain
	n.info.Abilities.Describe = n.describe
	n.info.Abilities.Amend = &block.AmendAbility{Options: amendOptions, Amend: n.amend}
	return nil
}

// limits are whole sectors, of any memory: what goes below is memory of ours.
func limits(below *block.Limits) *block.Limits {
	l := *below
	l.ReadAlign, l.WriteAlign = max(l.ReadAlign, luks.SectorSize), max(l.WriteAlign, luks.SectorSize)
	l.SegmentAlign, l.MinMem, l.MaxSegments = luks.SectorSize, 1, block.MaxElements
	l.MaxTransfer = bufpool.MaxBuf
	l.OptTransfer = min(l.OptTransfer, l.MaxTransfer)
	l.ZeroAlign, l.DiscardAlign, l.MaxZero, l.MaxDiscard = l.WriteAlign, l.WriteAlign, 0, 0
	l.Generation++
	return &l
}

func (n *node) explain() []string {
	return []string{fmt.Sprintf("encrypted with %s-%s, a key of %d bits: every request is copied once, and none takes the fast lane",
		n.header.Cipher, n.header.Mode, n.header.KeyBytes*8)}
}

func (n *node) Info() *block.Info { return &n.info }

// Preadv reads into memory of ours and decrypts from there: a guest that changed
// its memory meanwhile would have the key used on bytes of its choice.
func (n *node) Preadv(rq *block.Req, off int64, v block.Vec, fl block.Flags) error {
	b, err := rq.Buffer(int(v.Len()))
	if err != nil {
		return err
	}
	defer rq.Release(b)
	if err := n.below(rq, (*block.Child).Preadv, off, b, fl); err != nil {
		return err
	}
	sector := uint64(off) / luks.SectorSize
	for _, e := range v {
		n.sectors.Decrypt(e, b[:len(e)], sector)
		b, sector = b[len(e):], sector+uint64(len(e))/luks.SectorSize
	}
	return nil
}

// Pwritev copies first, so that each byte of a guest's is read once.
func (n *node) Pwritev(rq *block.Req, off int64, v block.Vec, fl block.Flags) error {
	b, err := rq.Buffer(int(v.Len()))
	if err != nil {
		return err
	}
	defer rq.Release(b)
	v.CopyOut(b, 0)
	n.sectors.Encrypt(b, b, uint64(off)/luks.SectorSize)
	return n.below(rq, (*block.Child).Pwritev, off, b, fl)
}

// below asks the file for what lies at off of the disk, in the memory b.
func (n *node) below(rq *block.Req, do func(*block.Child, *block.Req, int64, block.Vec, block.Flags) error, off int64, b []byte, fl block.Flags) error {
	v := n.vecs.Get().(*block.Vec)
	(*v)[0] = b
	err := do(n.file, rq, n.payload+off, *v, fl)
	(*v)[0] = nil
	n.vecs.Put(v)
	return err
}

// WriteZeroes is not there: zeroes are encrypted as all else.
func (n *node) WriteZeroes(*block.Req, int64, int64, block.Flags) error { return block.ErrNotSupported }

// Discard is not there: a hole would read as noise, and tell what is unused.
func (n *node) Discard(*block.Req, int64, int64) error { return block.ErrNotSupported }

// Flush is the file's.
func (n *node) Flush(rq *block.Req) error { return n.file.Flush(rq) }

// BlockStatus is data everywhere: where the file has a hole there is noise.
func (n *node) BlockStatus(_ *block.Req, off, length int64) (block.Extent, error) {
	return block.Extent{Len: length, Data: true, Allocated: true, EOF: off+length == n.info.Size(), Host: -1}, nil
}

// Truncate writes encrypted zeroes to what the disk grows by: a hole would read
// as noise.
func (n *node) Truncate(rq *block.Req, size int64, pre block.Prealloc) error {
	old := n.info.Size()
	switch {
	case size%luks.SectorSize != 0:
		return block.Errorf(syscall.EINVAL, "an encrypted disk has whole sectors of %d bytes, and %d is no multiple", luks.SectorSize, size)
	case size > block.MaxSize-n.payload:
		return block.Errorf(syscall.EFBIG, "with the header's %d bytes that is more than %d bytes of file", n.payload, int64(block.MaxSize))
	}
	if err := n.file.Truncate(rq, n.payload+size, pre); err != nil {
		return err
	}
	for off := old; off < size; off += bufpool.MaxBuf {
		if err := n.writeZeroes(rq, off, min(size-off, bufpool.MaxBuf)); err != nil {
			return err
		}
	}
	n.info.SetSize(size)
	return nil
}

func (n *node) writeZeroes(rq *block.Req, off, length int64) error {
	b, err := rq.Buffer(int(length))
	if err != nil {
		return err
	}
	defer rq.Release(b)
	clear(b)
	n.sectors.Encrypt(b, b, uint64(off)/luks.SectorSize)
	return n.below(rq, (*block.Child).Pwritev, off, b, 0)
}

// Close forgets the key, as far as this can be done.
func (n *node) Close() error {
	clear(n.key)
	return nil
}
