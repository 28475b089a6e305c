// Package throttle is the filter that limits a disk: so many requests, so many
// bytes a second, with bursts. Disks of one group share their limits.
//
// Reads, writes, write zeroes and discards are counted, the latter two as
// writes; flushes pass. A request that the limits hold back sleeps here, and who
// drains the disk waits for it: an export that can leave requests with its
// client does better with a limiter of its own (internal/ratelimit).
package throttle

import (
	"context"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/ratelimit"
)

func init() {
	block.Register(&block.Driver{
		Name: "throttle", Kind: block.KindFilter, Doc: "limits requests and bytes a second", Options: options(), Open: open,
	})
}

func options() []block.Option {
	file := block.Option{Name: "file", Type: block.OptNode, Required: true, Help: "the disk that is to be limited"}
	return append([]block.Option{file}, ratelimit.Spec.Options...)
}

// node is the filter.
type node struct {
	info    block.Info
	file    *block.Child
	setting ratelimit.Setting
	bucket  *ratelimit.Bucket
	now     func() int64
}

func open(_ context.Context, a *block.OpenArgs) (block.Node, error) {
	setting, err := ratelimit.Read(a.Options)
	if err != nil {
		return nil, err
	}
	perm, shared := block.PermRead, block.PermAll
	if !a.ReadOnly {
		perm, shared = block.PermRead|block.PermWrite|block.PermResize, block.PermRead|block.PermWriteUnchanged
	}
	n := &node{setting: setting, now: a.Env.Now}
	if n.file, err = a.Child("file", block.RoleFiltered, perm, shared); err != nil {
		return nil, err
	}
	if n.bucket, err = ratelimit.Join(setting); err != nil {
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
	now := ratelimit.Setting{Limits: n.bucket.Limits(), Group: n.setting.Group}
	return []string{"throttle: " + now.String()}
}

// wait holds a request back until it may begin. Nobody keeps it a place: others
// may come before it.
func (n *node) wait(rq *block.Req, op block.Op, length int64) error {
	if l := n.file.Limits(); l != n.info.Limits() {
		n.info.SetLimits(l)
	}
	for {
		ns := n.bucket.Admit(op, length, n.now())
		if ns == 0 {
			return nil
		}
		if err := rq.Sleep(ns); err != nil {
			return err
		}
	}
}

func (n *node) Preadv(rq *block.Req, off int64, v block.Vec, fl block.Flags) error {
	if err := n.wait(rq, block.OpRead, v.Len()); err != nil {
		return err
	}
	return n.file.Preadv(rq, off, v, fl)
}

func (n *node) Pwritev(rq *block.Req, off int64, v block.Vec, fl block.Flags) error {
	if err := n.wait(rq, block.OpWrite, v.Len()); err != nil {
		return err
	}
	return n.file.Pwritev(rq, off, v, fl)
}

func (n *node) WriteZeroes(rq *block.Req, off, length int64, fl block.Flags) error {
	if err := n.wait(rq, block.OpZero, length); err != nil {
		return err
	}
	return n.file.WriteZeroes(rq, off, length, fl)
}

func (n *node) Discard(rq *block.Req, off, length int64) error {
	if err := n.wait(rq, block.OpDiscard, length); err != nil {
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
	ratelimit.Leave(n.setting.Group)
	return nil
}

// Map passes on what may begin at once; the rest waits in the slow lane. What
// the node below declines is counted when it comes back there.
func (n *node) Map(rq *block.Req, op block.Op, off int64, v block.Vec, fl block.Flags) (block.Mapping, bool) {
	length := v.Len()
	if n.bucket.Admit(op, length, n.now()) != 0 {
		return block.Mapping{}, false
	}
	m, ok := n.file.Map(rq, op, off, v, fl)
	if !ok {
		n.bucket.Return(op, length)
	}
	return m, ok
}

// Done: nothing was held here. What ends short is counted once more in the slow
// lane: that is rare.
func (n *node) Done(block.Op, uint64, error) {}
