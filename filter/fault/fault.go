// Package fault is the filter that makes a disk fail: requests of some
// operations, in some range, from some time on, more or less often, end with an
// error, after a delay, or half done. What is above it shows what it survives.
//
// One filter has one rule; several are stacked.
package fault

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"syscall"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/inject"
)

// MaxDelay bounds delay-ns: an hour.
const MaxDelay = 3600e9

var ops = map[string]uint32{
	"any": 0, "read": 1 << block.OpRead, "write": 1 << block.OpWrite, "zero": 1 << block.OpZero, "discard": 1 << block.OpDiscard,
	"flush": 1 << block.OpFlush, "status": 1 << block.OpStatus, "truncate": 1 << block.OpTruncate,
	"change": 1<<block.OpWrite | 1<<block.OpZero | 1<<block.OpDiscard,
}

var errnos = map[string]syscall.Errno{
	"none": 0, "EIO": syscall.EIO, "ENOSPC": syscall.ENOSPC, "EDQUOT": syscall.EDQUOT, "EINVAL": syscall.EINVAL, "EAGAIN": syscall.EAGAIN,
	"EROFS": syscall.EROFS, "EPERM": syscall.EPERM, "ENODEV": syscall.ENODEV, "ETIMEDOUT": syscall.ETIMEDOUT, "ENOTSUP": syscall.ENOTSUP,
}

var options = []block.Option{
	{Name: "file", Type: block.OptNode, Required: true, Help: "the disk that is to fail"},
	{Name: "op", Type: block.OptEnum, Default: "any", Enum: []string{"any", "read", "write", "zero", "discard", "change", "flush", "status", "truncate"},
		Help: "which operations; change is write, zero and discard"},
	{Name: "offset", Type: block.OptSize, Default: "0", Help: "where the range begins that a request must touch"},
	{Name: "length", Type: block.OptSize, Default: "0", Help: "its length in bytes; 0 is to the end"},
	{Name: "nth", Type: block.OptInt, Default: "1", Help: "the first of the matching requests to fail"},
	{Name: "times", Type: block.OptInt, Default: "0", Help: "how many fail; 0 is all"},
	{Name: "probability", Default: "1", Help: "how likely each of them fails, above 0 and up to 1"},
	{Name: "seed", Type: block.OptInt, Default: "0", Help: "makes what probability decides the same each time; 0 does not"},
	{Name: "errno", Type: block.OptEnum, Default: "EIO", Enum: []string{"none", "EIO", "ENOSPC", "EDQUOT", "EINVAL", "EAGAIN", "EROFS", "EPERM", "ENODEV", "ETIMEDOUT", "ENOTSUP"},
		Help: "the error; none only delays"},
	{Name: "delay-ns", Type: block.OptInt, Default: "0", Help: "nanoseconds before the answer, up to an hour"},
	{Name: "torn", Type: block.OptSize, Default: "0", Help: "bytes of a failing write or write zeroes that are stored all the same"},
}

func init() {
	block.Register(&block.Driver{
		Name: "fault", Kind: block.KindFilter, Doc: "makes requests fail, late or half done, on order", Options: options, Open: open,
	})
}

// node is the filter.
type node struct {
	info    block.Info
	file    *block.Child
	rule    inject.Rule
	rand    func() uint64
	errno   syscall.Errno
	delayNs int64
	torn    int64
}

func open(_ context.Context, a *block.OpenArgs) (block.Node, error) {
	n := &node{rand: a.Env.Rand}
	if err := n.configure(a.Options); err != nil {
		return nil, err
	}
	perm, shared := block.PermRead, block.PermAll
	if !a.ReadOnly {
		perm, shared = block.PermRead|block.PermWrite|block.PermResize, block.PermRead|block.PermWriteUnchanged
	}
	var err error
	if n.file, err = a.Child("file", block.RoleFiltered, perm, shared); err != nil {
		return nil, err
	}
	below := n.file.Info()
	n.info = block.Info{
		Driver: "fault", Filename: below.Filename, ReadOnly: a.ReadOnly,
		WriteFlags: below.WriteFlags, ZeroFlags: below.ZeroFlags, MultiConn: below.MultiConn,
		Inline: below.Inline && n.delayNs == 0,
	}
	n.info.Abilities.Mapper = n
	n.info.FollowSize(below, 0)
	n.info.SetLimits(n.file.Limits())
	return n, nil
}

// configure reads the options that make the rule.
func (n *node) configure(o *block.Options) error {
	chance, err := strconv.ParseFloat(o.String("probability"), 64)
	nth, times, delay := o.Int("nth"), o.Int("times"), o.Int("delay-ns")
	switch {
	case err != nil || !(chance > 0 && chance <= 1):
		return block.Errorf(syscall.EINVAL, "driver fault: probability %q is not a number above 0 and up to 1", o.String("probability"))
	case nth < 0 || times < 0:
		return block.Errorf(syscall.EINVAL, "driver fault: nth %d and times %d must not be negative", nth, times)
	case delay < 0 || delay > MaxDelay:
		return block.Errorf(syscall.EINVAL, "driver fault: delay-ns %d is not in 0..%d", delay, int64(MaxDelay))
	}
	n.errno, n.delayNs, n.torn = errnos[o.String("errno")], delay, o.Size("torn")
	if chance == 1 {
		chance = 0 // always: asks nobody
	}
	n.rule.Ops, n.rule.Off, n.rule.Len = ops[o.String("op")], o.Size("offset"), o.Size("length")
	n.rule.Nth, n.rule.Times, n.rule.Chance = uint64(nth), uint64(times), chance
	if seed := o.Int("seed"); seed != 0 {
		n.rand = seeded(uint64(seed))
	}
	return nil
}

// seeded is a random source for several goroutines.
func seeded(seed uint64) func() uint64 {
	var mu sync.Mutex
	src := rand.NewPCG(seed, 0)
	return func() uint64 {
		mu.Lock()
		defer mu.Unlock()
		return src.Uint64()
	}
}

func (n *node) Info() *block.Info { return &n.info }

// strike delays and fails a request that is due; before is what of it happens
// all the same.
func (n *node) strike(rq *block.Req, op block.Op, off, length int64, before func() error) error {
	if l := n.file.Limits(); l != n.info.Limits() {
		n.info.SetLimits(l)
	}
	if !n.rule.Strikes(uint8(op), off, length, n.rand) {
		return nil
	}
	if n.delayNs > 0 {
		if err := rq.Sleep(n.delayNs); err != nil {
			return err
		}
	}
	if n.errno == 0 {
		return nil
	}
	if before != nil {
		if err := before(); err != nil {
			return err
		}
	}
	return block.Errorf(n.errno, "driver fault ordered it: %v", n.errno)
}

func (n *node) Preadv(rq *block.Req, off int64, v block.Vec, fl block.Flags) error {
	if err := n.strike(rq, block.OpRead, off, v.Len(), nil); err != nil {
		return err
	}
	return n.file.Preadv(rq, off, v, fl)
}

func (n *node) Pwritev(rq *block.Req, off int64, v block.Vec, fl block.Flags) error {
	length := v.Len()
	if err := n.strike(rq, block.OpWrite, off, length, func() error {
		return n.file.Pwritev(rq, off, v.AppendRange(nil, 0, min(n.torn, length)), fl)
	}); err != nil {
		return err
	}
	return n.file.Pwritev(rq, off, v, fl)
}

func (n *node) WriteZeroes(rq *block.Req, off, length int64, fl block.Flags) error {
	if err := n.strike(rq, block.OpZero, off, length, func() error {
		return n.file.WriteZeroes(rq, off, min(n.torn, length), fl&^block.NoFallback)
	}); err != nil {
		return err
	}
	return n.file.WriteZeroes(rq, off, length, fl)
}

func (n *node) Discard(rq *block.Req, off, length int64) error {
	if err := n.strike(rq, block.OpDiscard, off, length, nil); err != nil {
		return err
	}
	return n.file.Discard(rq, off, length)
}

func (n *node) Flush(rq *block.Req) error {
	if err := n.strike(rq, block.OpFlush, 0, 0, nil); err != nil {
		return err
	}
	return n.file.Flush(rq)
}

func (n *node) BlockStatus(rq *block.Req, off, length int64) (block.Extent, error) {
	if err := n.strike(rq, block.OpStatus, off, length, nil); err != nil {
		return block.Extent{}, err
	}
	return n.file.BlockStatus(rq, off, length)
}

func (n *node) Truncate(rq *block.Req, size int64, pre block.Prealloc) error {
	if err := n.strike(rq, block.OpTruncate, 0, 0, nil); err != nil {
		return err
	}
	return n.file.Truncate(rq, size, pre)
}

// Close leaves the edge to whoever gave it.
func (n *node) Close() error { return nil }

// Map passes on what the rule cannot strike; the rest goes the slow way, which
// fails it.
func (n *node) Map(rq *block.Req, op block.Op, off int64, v block.Vec, fl block.Flags) (block.Mapping, bool) {
	if n.rule.Concerns(uint8(op), off, v.Len()) {
		return block.Mapping{}, false
	}
	return n.file.Map(rq, op, off, v, fl)
}

// Done: nothing was held here.
func (n *node) Done(block.Op, uint64, error) {}
