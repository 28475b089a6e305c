// Package throttle is the filter that limits a disk: so many requests, so many
// bytes a second, with bursts. Disks of one group share their limits.
//
// Reads, writes, write zeroes and discards are counted, the latter two as
// writes; flushes pass. Requests that the limits hold back wait their turn in
// the order in which they came. A request longer than a whole burst begins when
// all of that is saved up, and what comes after it waits the longer.
package throttle

import (
	"context"
	"fmt"

	"github.com/platter-storage/platter/block"
)

func init() {
	block.Register(&block.Driver{
		Name: "throttle", Kind: block.KindFilter, Doc: "limits requests and bytes a second", Options: options, Open: open,
	})
}

// node is the filter.
type node struct {
	info   block.Info
	file   *block.Child
	group  string
	bucket *Bucket
	now    func() int64
}

func open(_ context.Context, a *block.OpenArgs) (block.Node, error) {
	limits, err := readLimits(a.Options)
	if err != nil {
		return nil, err
	}
	perm, shared := block.PermRead, block.PermAll
	if !a.ReadOnly {
		perm, shared = block.PermRead|block.PermWrite|block.PermResize, block.PermRead|block.PermWriteUnchanged
	}
	n := &node{group: a.Options.String("group"), now: a.Env.Now}
	if n.file, err = a.Child("file", block.RoleFiltered, perm, shared); err != nil {
		return nil, err
	}
	if n.bucket, err = join(n.group, limits, limits.any()); err != nil {
		return nil, err
	}
	below := n.file.Info()
	n.info = block.Info{
		Driver: "throttle", Filename: below.Filename, ReadOnly: a.ReadOnly,
		WriteFlags: below.WriteFlags, ZeroFlags: below.ZeroFlags, MultiConn: below.MultiConn,
	}
	n.info.Abilities.Mapper = n
	n.info.Abilities.Explain = n.explain
	n.info.FollowSize(below, 0)
	n.info.SetLimits(n.file.Limits())
	return n, nil
}

func (n *node) Info() *block.Info { return &n.info }

// explain names the limits.
func (n *node) explain() []string {
	s := "throttle: " + n.bucket.Limits().String()
	if n.group != "" {
		s += fmt.Sprintf(", shared by the group %q", n.group)
	}
	return []string{s}
}

// wait holds a request back until it may begin.
func (n *node) wait(rq *block.Req, dir int, length int64) error {
	if l := n.file.Limits(); l != n.info.Limits() {
		n.info.SetLimits(l)
	}
	ns := n.bucket.Take(dir, length, n.now())
	if ns <= 0 {
		return nil
	}
	if err := rq.Sleep(ns); err != nil {
		n.bucket.Refund(dir, length)
		return err
	}
	return nil
}

func (n *node) Preadv(rq *block.Req, off int64, v block.Vec, fl block.Flags) error {
	if err := n.wait(rq, Reads, v.Len()); err != nil {
		return err
	}
	return n.file.Preadv(rq, off, v, fl)
}

func (n *node) Pwritev(rq *block.Req, off int64, v block.Vec, fl block.Flags) error {
	if err := n.wait(rq, Writes, v.Len()); err != nil {
		return err
	}
	return n.file.Pwritev(rq, off, v, fl)
}

func (n *node) WriteZeroes(rq *block.Req, off, length int64, fl block.Flags) error {
	if err := n.wait(rq, Writes, length); err != nil {
		return err
	}
	return n.file.WriteZeroes(rq, off, length, fl)
}

func (n *node) Discard(rq *block.Req, off, length int64) error {
	if err := n.wait(rq, Writes, length); err != nil {
		return err
	}
	return n.file.Discard(rq, off, length)
}

func (n *node) Flush(rq *block.Req) error { return n.file.Flush(rq) }

func (n *node) BlockStatus(rq *block.Req, off, length int64) (block.Extent, error) {
	return n.file.BlockStatus(rq, off, length)
}

func (n *node) Truncate(rq *block.Req, size int64, pre block.Prealloc) error {
	return n.file.Truncate(rq, size, pre)
}

// Close leaves the edge to whoever gave it.
func (n *node) Close() error {
	leave(n.group)
	return nil
}

// Map passes on what may begin at once; the rest waits in the slow lane. It is
// counted when the node below has it: what that declines comes back there.
func (n *node) Map(rq *block.Req, op block.Op, off int64, v block.Vec, fl block.Flags) (block.Mapping, bool) {
	dir := Reads
	if op == block.OpWrite {
		dir = Writes
	}
	length := v.Len()
	if !n.bucket.TryTake(dir, length, n.now()) {
		return block.Mapping{}, false
	}
	m, ok := n.file.Map(rq, op, off, v, fl)
	if !ok {
		n.bucket.Refund(dir, length)
	}
	return m, ok
}

// Done: nothing was held here. What ends short is counted once more in the slow
// lane: that is rare.
func (n *node) Done(block.Op, uint64, error) {}
