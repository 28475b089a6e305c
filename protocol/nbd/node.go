package nbd

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/logpace"
	wire "github.com/platter-storage/platter/wire/nbd"
)

const logBurst = 5 // lines

// node is the disk.
type node struct {
	info   block.Info
	cfg    config
	env    *block.Env
	pace   *logpace.Pace // of lines that the server can cause
	places []place
	turn   atomic.Uint32

	// acked counts changes that the server acknowledged and that are durable
	// by a flush only; flushed is what acked was when the last flush that
	// succeeded began.
	acked, flushed atomic.Uint64

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	keep   sync.WaitGroup // who keeps the places

	mu     sync.Mutex // guards what follows
	space  space      // as the last connection found it
	up     int        // places with a connection
	failed error      // for good
	last   error      // why the last try to connect failed, or the last connection ended
	// downSince is when requests began to wait, on the clock of env.
	downSince int64
	changed   chan struct{} // closed, and made anew, when one of these changes
}

// place is where a connection is, or will be again.
type place struct{ conn atomic.Pointer[conn] }

// conn is one connection on which the handshake is over.
type conn struct {
	client *wire.Client
	place  *place
	status bool // it answers block status
	size   uint64
	// use is held for reading by requests: who has it for writing, once the
	// connection has ended, knows that all acknowledgements are counted.
	use sync.RWMutex
	// began and ended count requests.
	began, ended atomic.Uint64
	// since is acked when the connection was made.
	since uint64
}

func open(ctx context.Context, a *block.OpenArgs) (block.Node, error) {
	cfg, err := configOf(a)
	if err != nil {
		return nil, err
	}
	n := &node{cfg: cfg, env: a.Env, pace: logpace.New(logBurst), changed: make(chan struct{})}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	client, err := n.firstDial(ctx)
	if err != nil {
		n.cancel()
		return nil, err
	}
	n.space = spaceOf(client.Session())
	if err := n.suits(&n.space); err != nil {
		n.cancel()
		_ = client.Disconnect() // nothing is in flight; what it says changes nothing
		return nil, err
	}
	n.describe(a.ReadOnly)
	places := 1
	if n.space.has(wire.FlagCanMultiConn) {
		places = cfg.connections
	}
	n.places = make([]place, places)
	n.start(0, n.use(&n.places[0], client))
	for i := 1; i < places; i++ {
		n.start(i, nil) // these come as they can
	}
	return n, nil
}

// start has the place at i kept, where c is now.
func (n *node) start(i int, c *conn) {
	n.keep.Add(1)
	n.env.Go(func() {
		defer n.keep.Done()
		n.keepPlace(&n.places[i], c)
	})
}

// suits reports what keeps the disk from being opened.
func (n *node) suits(s *space) error {
	switch {
	case s.has(wire.FlagReadOnly) && !n.cfg.readOnly:
		return block.Errorf(syscall.EROFS, "%s: the server offers it read-only: open it read-only", filename(n.cfg.uri))
	case n.cfg.own && !s.context:
		return block.Errorf(syscall.EINVAL, "%s: the server has no metadata context %q (x-dirty-bitmap)", filename(n.cfg.uri), n.cfg.context)
	}
	return nil
}

// describe says of the node what the server said.
func (n *node) describe(readOnly bool) {
	s := &n.space
	n.info = block.Info{Driver: "nbd", Filename: filename(n.cfg.uri), ReadOnly: readOnly, MultiConn: true}
	if s.has(wire.FlagSendFUA) {
		n.info.WriteFlags = block.FUA
	}
	if s.has(wire.FlagSendWriteZeroes) {
		n.info.ZeroFlags = s.zeroFlags()
	}
	n.info.Abilities = block.Abilities{Explain: n.explain}
	n.info.SetLimits(s.limits(1))
	n.info.SetSize(s.size)
}

func (n *node) Info() *block.Info { return &n.info }

// wireFlags are fl in the protocol's words, as far as they are the same.
func wireFlags(fl block.Flags) wire.CmdFlags {
	if fl&block.FUA != 0 {
		return wire.CmdFlagFUA
	}
	return 0
}

func (n *node) Preadv(rq *block.Req, off int64, v block.Vec, _ block.Flags) error {
	return n.do(rq, &request{cmd: wire.CmdRead, off: uint64(off), vec: v})
}

func (n *node) Pwritev(rq *block.Req, off int64, v block.Vec, fl block.Flags) error {
	return n.do(rq, &request{cmd: wire.CmdWrite, fl: wireFlags(fl), off: uint64(off), vec: v})
}

// WriteZeroes promises to be quick only where the server does.
func (n *node) WriteZeroes(rq *block.Req, off, length int64, fl block.Flags) error {
	if n.info.ZeroFlags == 0 {
		return block.ErrNotSupported
	}
	wfl := wireFlags(fl)
	if fl&block.MayUnmap == 0 {
		wfl |= wire.CmdFlagNoHole
	}
	if fl&block.NoFallback != 0 {
		if !n.offers(wire.FlagSendFastZero) {
			return block.ErrNotSupported
		}
		wfl |= wire.CmdFlagFastZero
	}
	return n.do(rq, &request{cmd: wire.CmdWriteZeroes, fl: wfl, off: uint64(off), n: uint64(length)})
}

func (n *node) Discard(rq *block.Req, off, length int64) error {
	if !n.offers(wire.FlagSendTrim) {
		return block.ErrNotSupported
	}
	return n.do(rq, &request{cmd: wire.CmdTrim, off: uint64(off), n: uint64(length)})
}

// Flush has nothing to send where the server has no such command: then there is
// nothing that it would make durable. ("Transmission flags")
func (n *node) Flush(rq *block.Req) error {
	if !n.offers(wire.FlagSendFlush) {
		return nil
	}
	mark := n.acked.Load()
	if err := n.do(rq, &request{cmd: wire.CmdFlush}); err != nil {
		return err
	}
	for {
		old := n.flushed.Load()
		if old >= mark || n.flushed.CompareAndSwap(old, mark) {
			return nil
		}
	}
}

// offers reports whether the server has what.
func (n *node) offers(what wire.TransmissionFlags) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.space.has(what)
}

// BlockStatus asks for one extent at a time, as the block layer does.
func (n *node) BlockStatus(rq *block.Req, off, length int64) (block.Extent, error) {
	r := request{cmd: wire.CmdBlockStatus, fl: wire.CmdFlagReqOne, off: uint64(off)}
	length = min(length, maxLong)
	if !n.extended() {
		length = min(length, maxDiscard)
	}
	r.n = uint64(length)
	if err := n.do(rq, &r); err != nil {
		return block.Extent{}, err
	}
	e := block.Extent{Len: length, Data: true, Allocated: true, Host: -1}
	if len(r.status) > 0 {
		n.extent(&e, r.status[0].Extents[0])
	}
	e.EOF = off+e.Len == n.info.Size()
	return e, nil
}

// extent takes over what the server says, cut to what requests can reach.
func (n *node) extent(e *block.Extent, x wire.Extent) {
	k := int64(min(x.Length, uint64(e.Len)))
	if k < e.Len {
		k &^= int64(n.info.Limits().ReadAlign) - 1
	}
	if k == 0 {
		e.Len = int64(n.info.Limits().ReadAlign) // finer than it may be
		return
	}
	hole := x.Flags&wire.StateHole != 0
	e.Len, e.Zero = k, !n.cfg.own && x.Flags&wire.StateZero != 0
	e.Data = !hole || !e.Zero && !n.cfg.own
}

func (n *node) extended() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.space.extended
}

// Truncate can do what is done.
func (n *node) Truncate(_ *block.Req, size int64, _ block.Prealloc) error {
	if size == n.info.Size() {
		return nil
	}
	return block.Errorf(syscall.ENOTSUP, "driver nbd: the protocol has no way to resize a disk: resize it where the server has it, and reopen")
}

// Close ends the connections. Nothing is in flight.
func (n *node) Close() error {
	n.cancel()
	n.keep.Wait()
	return nil
}

// explain says what was agreed with the server.
func (n *node) explain() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := &n.space
	replies := "simple replies"
	switch {
	case s.extended:
		replies = "extended headers"
	case s.structured:
		replies = "structured replies"
	}
	status := "no block status"
	if s.context {
		status = "block status by " + n.cfg.context
	}
	lines := []string{
		fmt.Sprintf("nbd: %s, %s, TLS %v, blocks of %d bytes, requests of up to %s", replies, status, onOff(s.tls), s.align, block.FormatSize(int64(s.longest))),
		fmt.Sprintf("nbd: %d of %d connections, to a server with %s", n.up, len(n.places), flagNames(s.flags)),
	}
	switch {
	case n.failed != nil:
		lines = append(lines, "nbd: "+n.failed.Error())
	case n.up == 0:
		lines = append(lines, fmt.Sprintf("nbd: the server has gone: %v", n.last))
	}
	return lines
}

func onOff(b bool) string {
	if b {
		return "on"
	}
	return "off"
}
