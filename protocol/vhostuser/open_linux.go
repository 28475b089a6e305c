package vhostuser

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/logpace"
	"github.com/platter-storage/platter/virtio"
	wire "github.com/platter-storage/platter/wire/vhostuser"
)

const logBurst = 5 // lines

// node is the disk.
type node struct {
	info   block.Info
	cfg    config
	env    *block.Env
	shape  shape
	leaf   leaf
	pace   *logpace.Pace // of lines that the server can cause
	queues []*queue
	turn   atomic.Uint32

	spareMu sync.Mutex
	spare   requests // not in use

	mu     sync.Mutex // guards what follows; before a queue's
	link   *link      // nil while there is none
	closed bool
	failed error
	// downSince is when requests began to wait for a server, on the clock of
	// env.
	downSince int64
	stop      chan struct{}  // closed by Close
	back      sync.WaitGroup // who brings the connection back
}

func open(ctx context.Context, a *block.OpenArgs) (block.Node, error) {
	cfg, err := configOf(a)
	if err != nil {
		return nil, err
	}
	l, err := dial(ctx, &cfg)
	if err != nil {
		return nil, explain(cfg.path, err)
	}
	n := &node{cfg: cfg, env: a.Env, shape: l.shape, stop: make(chan struct{}), pace: logpace.New(logBurst)}
	n.leaf.n = n
	n.info = block.Info{Driver: "vhostuser", Filename: "vhost-user:" + cfg.path, ReadOnly: a.ReadOnly, MultiConn: true}
	if !l.shape.flush {
		n.info.WriteFlags, n.info.ZeroFlags = block.FUA, block.FUA
	}
	if l.shape.zeroUnmap {
		n.info.ZeroFlags |= block.MayUnmap
	}
	n.info.Abilities = block.Abilities{Mapper: n, Explain: n.explain, Refresh: n.refresh}
	n.info.SetLimits(l.shape.limits())
	n.info.SetSize(l.capacity)
	for i := range l.queues {
		n.queues = append(n.queues, newQueue(n, i, &l.shape))
	}
	n.use(l)
	return n, nil
}

// explain says in one line what failed, where, and what to do.
func explain(path string, err error) error {
	advice := ""
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED):
		advice = "; start the server, or look whether it has another path"
	case errors.Is(err, os.ErrDeadlineExceeded):
		advice = "; does another front end use it?"
	}
	return block.Errorf(block.Errno(err), "vhost-user:%s: %v%s", path, err, advice)
}

func (n *node) Info() *block.Info { return &n.info }

// queue is the one for the next request, in turns.
func (n *node) queue() *queue {
	if len(n.queues) == 1 {
		return n.queues[0]
	}
	return n.queues[n.turn.Add(1)%uint32(len(n.queues))]
}

func (n *node) Preadv(_ *block.Req, off int64, v block.Vec, _ block.Flags) error {
	return n.do(virtio.BlkIn, off, v.Len(), v, 0)
}

func (n *node) Pwritev(_ *block.Req, off int64, v block.Vec, _ block.Flags) error {
	return n.do(virtio.BlkOut, off, v.Len(), v, 0)
}

// unmapFlag is in the flags of a range. (5.2.6)
const unmapFlag = 1

// WriteZeroes cannot promise to be quick: a server may write.
func (n *node) WriteZeroes(_ *block.Req, off, length int64, fl block.Flags) error {
	if n.shape.zero == 0 || fl&block.NoFallback != 0 {
		return block.ErrNotSupported
	}
	flags := uint32(0)
	if fl&block.MayUnmap != 0 && n.shape.zeroUnmap {
		flags = unmapFlag
	}
	return n.do(virtio.BlkWriteZeroes, off, length, nil, flags)
}

func (n *node) Discard(_ *block.Req, off, length int64) error {
	if n.shape.discard == 0 {
		return block.ErrNotSupported
	}
	return n.do(virtio.BlkDiscard, off, length, nil, 0)
}

// Flush has nothing to do where the server says that each write is durable.
func (n *node) Flush(*block.Req) error {
	if !n.shape.flush {
		return nil
	}
	return n.do(virtio.BlkFlush, 0, 0, nil, 0)
}

// BlockStatus knows nothing: the protocol has no question for it.
func (n *node) BlockStatus(_ *block.Req, off, length int64) (block.Extent, error) {
	return block.Extent{Len: length, Data: true, Allocated: true, EOF: off+length == n.info.Size(), Host: -1}, nil
}

func (n *node) Truncate(*block.Req, int64, block.Prealloc) error {
	return block.Errorf(syscall.ENOTSUP, "driver vhostuser: the server alone can resize the disk")
}

// Map hands every read and write to the queues as it is.
func (n *node) Map(_ *block.Req, _ block.Op, off int64, _ block.Vec, _ block.Flags) (block.Mapping, bool) {
	return block.Mapping{Kind: block.MapFile, Leaf: &n.leaf, Off: off}, true
}

// Done has nothing to keep.
func (n *node) Done(block.Op, uint64, error) {}

// Close ends the connection. Nothing is in flight.
func (n *node) Close() error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil
	}
	n.closed = true
	close(n.stop)
	n.mu.Unlock()
	n.back.Wait()
	n.mu.Lock()
	l := n.link
	n.link = nil
	n.mu.Unlock()
	if l != nil {
		n.detach()
		l.close()
		l.running.Wait()
		l.free()
	}
	return nil
}

// refresh asks for the size anew.
func (n *node) refresh() error {
	n.mu.Lock()
	l, failed := n.link, n.failed
	n.mu.Unlock()
	switch {
	case failed != nil:
		return failed
	case l == nil:
		return block.Errorf(syscall.ENOTCONN, "vhost-user:%s: the server has gone", n.cfg.path)
	}
	space, err := readSpace(l.fe)
	if err != nil {
		return fmt.Errorf("vhost-user:%s: %w", n.cfg.path, err)
	}
	size, err := capacity(&space)
	if err != nil {
		return fmt.Errorf("vhost-user:%s: %w", n.cfg.path, err)
	}
	n.info.SetSize(size)
	return nil
}

// explain says what was agreed with the server.
func (n *node) explain() []string {
	n.mu.Lock()
	l, failed := n.link, n.failed
	n.mu.Unlock()
	lines := []string{"vhost-user: " + n.shape.String()}
	switch {
	case failed != nil:
		lines = append(lines, "vhost-user: "+failed.Error())
	case l == nil:
		lines = append(lines, "vhost-user: the server has gone; requests wait until it is back")
	default:
		lines = append(lines, fmt.Sprintf("vhost-user: queues: %d of %d descriptors, %s, %s of shared memory, protocol features %v",
			l.queues, l.plan.size, ringNames(l.plan.features), block.FormatSize(int64(len(l.memory.mem))), l.protocol))
	}
	return lines
}

// ringNames says what kind of rings features are.
func ringNames(features uint64) string {
	text := "split rings"
	if features&virtio.FeatureRingPacked != 0 {
		text = "packed rings"
	}
	for _, x := range []struct {
		feature uint64
		name    string
	}{{virtio.FeatureIndirectDesc, "indirect"}, {virtio.FeatureEventIdx, "event indexes"}, {virtio.FeatureInOrder, "in order"}} {
		if features&x.feature != 0 {
			text += ", " + x.name
		}
	}
	return text
}

// listen obeys the server's requests until the connection ends: there is one
// that means something to us.
func (n *node) listen(l *link) {
	var m wire.Message
	for l.channel.Read(&m) == nil {
		m.Fds.Close()
		// First the answer: a server may wait for it before it says more.
		if m.NeedReply() && l.channel.Ack(&m, 0) != nil {
			return
		}
		if wire.BackendRequest(m.Request) != wire.BackendConfigChange {
			continue
		}
		if err := n.refresh(); err != nil {
			n.pace.Warn(n.env.Log, "the server said that its configuration has changed, and did not say to what", "disk", n.info.Filename, "error", err)
		}
	}
}
