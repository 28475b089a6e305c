// Package file reaches files and block devices of this machine: the drivers
// file and host_device.
//
// What it is for is direct I/O done right: it finds out what alignment the
// storage needs and why that is to be believed (limits.go), learns when it
// changes under an open file (refused.go), never lets a file grow by a write
// to its unaligned end (tail.go), and finishes short transfers in one place
// (transfer.go). Direct I/O is told from page cache by the option cache.
package file

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/platter-storage/platter/block"
)

func init() {
	block.Register(&block.Driver{
		Name: "file", Kind: block.KindProtocol, Doc: "a file or block device of this machine",
		Options: openOptions, CreateOptions: createOptions,
		Open:    func(ctx context.Context, a *block.OpenArgs) (block.Node, error) { return open(a, false) },
		Create:  create,
		Schemes: []string{"file"}, ParseURI: parseURI,
	})
	block.Register(&block.Driver{
		Name: "host_device", Kind: block.KindProtocol, Doc: "a block device of this machine",
		Options: openOptions, CreateOptions: createOptions,
		Open:   func(ctx context.Context, a *block.OpenArgs) (block.Node, error) { return open(a, true) },
		Create: create,
	})
}

// node is one opened file.
type node struct {
	info block.Info
	env  *block.Env
	cfg  config
	sys  system
	// direct: requests go past the page cache.
	direct bool
	// reasons are sentences on how the node came to its settings.
	reasons []string

	// tailFrom is where the part begins that is served through the page
	// cache because the size is no multiple of the alignment: see tail.go.
	tailFrom atomic.Int64
	// tailMu is held shared by each write to the tail, and alone while the
	// size changes. It is taken before limits.mu.
	tailMu  sync.RWMutex
	looked  atomic.Int64 // when lookAtSize last looked, in the environment's time
	movedOn atomic.Bool  // the path leads elsewhere, which has been said

	// noDsync: a durable write is a write and a flush here.
	noDsync atomic.Bool
	leaf    block.Leaf

	limits limitsState
	space  spaceState
	status statusCache
}

// noTail is tailFrom where all is aligned.
const noTail = math.MaxInt64

// open opens what a describes.
func open(a *block.OpenArgs, mustBeDevice bool) (block.Node, error) {
	c, err := parseOptions(a.Options, a.ReadOnly)
	if err != nil {
		return nil, err
	}
	c.mustBeDevice = mustBeDevice
	return openNode(a.Env, c, openSystem)
}

func openNode(env *block.Env, c config, open opener) (*node, error) {
	ch, err := chooseCache(&c, open)
	if err != nil {
		return nil, err
	}
	if ch.warning != "" {
		env.Log.Warn(ch.warning)
	}
	c.log = env.Log
	n := &node{env: env, cfg: c, sys: ch.sys, direct: ch.direct, reasons: ch.reasons}
	if err := n.setUp(ch.res); err != nil {
		_ = ch.sys.close()
		return nil, err
	}
	return n, nil
}

// setUp locks the file and fills in the rest of the node.
func (n *node) setUp(res *resolution) error {
	locked, why, err := n.sys.lockFile(&n.cfg)
	if err != nil {
		return err
	}
	n.reasons = append(n.reasons, why)
	why, err = n.sys.startEngine(n.cfg.aio, res.fs.memory)
	if err != nil {
		return err
	}
	n.reasons = append(n.reasons, why)
	n.noDsync.Store(!n.sys.durableFlag())
	n.status.holes = locked
	n.space.slowZero = res.slowZero
	return n.describe(res)
}

// describe publishes what the node is.
func (n *node) describe(res *resolution) error {
	size, err := n.sys.size()
	if err != nil {
		return fmt.Errorf("%s: its size cannot be read: %w", n.cfg.path, err)
	}
	i := &n.info
	i.Driver, i.Filename, i.ReadOnly = "file", n.cfg.path, n.cfg.readOnly
	if n.sys.isDevice() {
		i.Driver = "host_device"
	}
	if !n.noDsync.Load() {
		i.WriteFlags = block.FUA // otherwise the edge flushes, and remembers if that fails
	}
	i.ZeroFlags = block.MayUnmap
	i.MultiConn = true
	i.Inline, i.Cached = res.fs.memory, !n.direct
	i.Abilities.Explain, i.Abilities.Refresh = n.explain, n.refresh
	if n.leaf = n.sys.newLeaf(&n.cfg); n.leaf != nil {
		i.Abilities.Mapper = n
	}
	i.SetSize(size)
	if size > block.MaxSize {
		what := fmt.Sprintf("only the first %d bytes of its %d are served: a disk has no more", int64(block.MaxSize), size)
		n.env.Log.Warn("the file is larger than a disk can be; what lies behind is out of reach", "file", n.cfg.path, "bytes", size, "served", int64(block.MaxSize))
		n.reasons = append(n.reasons, what)
	}
	i.SetLimits(res.limits)
	n.linearise(res)
	n.limits.last = res
	n.placeTail()
	return nil
}

// Info is what the node says of itself.
func (n *node) Info() *block.Info { return &n.info }

// Preadv reads; what lies past the size reads as zeroes.
func (n *node) Preadv(rq *block.Req, off int64, v block.Vec, fl block.Flags) error {
	if from := n.tailFrom.Load(); off+v.Len() > from {
		return n.readTail(rq, from, off, v)
	}
	return n.read(rq, n.sys.main(), off, v)
}

// Pwritev writes.
func (n *node) Pwritev(rq *block.Req, off int64, v block.Vec, fl block.Flags) error {
	durable := n.durable(fl)
	flag := durable && !n.noDsync.Load()
	err := n.writeWays(rq, off, v, flag)
	if flag && block.IsNotSupported(err) {
		n.noDsync.Store(true)
		flag, err = false, n.writeWays(rq, off, v, false)
	}
	n.status.wrote(off, off+v.Len())
	if err == nil && durable && !flag {
		return n.Flush(rq)
	}
	return err
}

func (n *node) writeWays(rq *block.Req, off int64, v block.Vec, durable bool) error {
	if from := n.tailFrom.Load(); off+v.Len() > from {
		return n.writeTail(rq, from, off, v, durable)
	}
	return n.write(rq, n.sys.main(), off, v, durable)
}

// durable reports whether a write with these flags must be on stable storage
// when it completes.
func (n *node) durable(fl block.Flags) bool {
	return (fl&block.FUA != 0 || n.cfg.sync) && !n.cfg.noFlush
}

// Flush makes every completed write durable, unless the cache mode says that
// nothing is.
func (n *node) Flush(rq *block.Req) error {
	if n.cfg.noFlush || n.cfg.readOnly {
		return nil
	}
	n.lookAtSize()
	r := retry{rq: rq}
	for {
		err := n.sys.sync()
		if err == nil || !r.again(err) {
			return err
		}
	}
}

// Close releases the file and its locks.
func (n *node) Close() error { return n.sys.close() }

// explain tells how the node came to its settings.
func (n *node) explain() []string {
	lines := append([]string(nil), n.reasons...)
	lines = append(lines, n.limits.explain(n.info.Limits())...)
	return append(lines, n.explainLinearise()...)
}

var errRefused = block.Errorf(syscall.EINVAL, "the storage refuses the request as misaligned, although it meets every limit that it states")
