package nbd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/rawio"
	wire "github.com/platter-storage/platter/wire/nbd"
)

// conn is the connection of one client. Its reader goroutine reads requests
// and decides the way of each. What need not wait is done there; the rest sits
// in slots while storage or workers have it, and goes onto the ready list when
// it is done. Whoever holds sendMu sends what is ready.
type conn struct {
	srv   *Server
	nc    net.Conn
	since time.Time
	peer  string
	gone  chan struct{} // closed when its last request is done

	exp *export // chosen; guarded by srv.mu

	mu       sync.Mutex
	sess     *wire.Session // nil during the handshake
	free     *slot
	made     int     // slots that exist
	slots    []*slot // by number; those from made on are nil
	releases uint64  // counts them
	waiting  bool    // the reader waits for a release
	freed    chan struct{}
	used     atomic.Int32 // slots out; changed under mu
	// stopping is 0, or what requests are answered from now on; changed
	// under mu.
	stopping atomic.Uint32
	ending   chan struct{} // closed when stopping is set

	ctx    context.Context // ends when the connection is cut
	cancel context.CancelFunc
	broken atomic.Bool // cut: nothing can be sent any more

	// Set before the first request, then only read.
	child  *block.Child
	q      *block.Queue
	aside  *block.Queue // for what nobody asked for: not counted
	link   link
	sock   *sock     // link, where it is a plain socket
	tlsOut *gatherer // under TLS, else nil
	share  share
	inline bool // requests are served by the reader
	cached bool // reads and writes are, while that is quick
	ext    bool // extended headers
	struc  bool // structured replies

	reader

	ready    readyList
	sendMu   sync.Mutex
	iov      [][]byte // under sendMu
	sending  []*slot  // under sendMu
	wake     chan struct{}
	over     atomic.Bool // the last request is done
	work     chan *slot
	idle     atomic.Int32 // workers that wait for work, less what waits for them
	workers  int          // under mu
	helpers  sync.WaitGroup
	private  []byte // for who is refused memory; at most one slot has it
	privBusy atomic.Bool
}

// reader is what belongs to the reader goroutine alone.
type reader struct {
	in      inbuf
	out     []byte      // replies to be sent before it waits
	ios     []*rawio.IO // to be submitted to leaf before it waits
	leaf    block.Leaf
	one     block.Vec // a vector of one element, at hand
	mine    int       // slots it has not yet handed on
	batch   int       // requests since it last waited
	alone   bool      // nothing was in flight when the batch began
	streak  int       // batches of one request in a row
	rest    []byte    // for sendRest
	noMap   bool      // the disk in memory is a file: nothing to map here
	pace    pace
	inPlace bool // the request just read is served by the reader
	placed  int  // bytes read so, to be sent
	bigRead bool // payload is being received in place: keep other reads small
	pipe    pipe // for what is sent from the page cache
	turn    turn
}

func newConn(s *Server, nc net.Conn) *conn {
	return &conn{srv: s, nc: nc, since: time.Now(), peer: peerName(nc), gone: make(chan struct{}), ending: make(chan struct{})}
}

// run serves the client from greeting to end.
func (c *conn) run() {
	defer c.nc.Close()
	if err := c.handshake(); err != nil {
		c.logHandshake(err)
		return
	}
	c.begin()
	c.srv.coming.Info(c.srv.log, "client connected", "peer", c.peer, "export", c.exp.Name, "tls", c.sess.TLS)
	err := c.readAll()
	c.logEnd(err)
	if !wantsAnswers(err) {
		c.cut()
	}
	c.drain()
	c.linger()
	c.end()
}

// handshake lets the client choose an export.
func (c *conn) handshake() error {
	s := c.srv
	if t := s.cfg.HandshakeTimeout; t > 0 {
		c.setDeadline(time.Now().Add(t))
	}
	sess, err := wire.ServerHandshake(c.nc, &wire.ServerConfig{
		Exports: offered{s}, TLS: s.cfg.TLSMode, StartTLS: c.startTLS, NoList: s.cfg.NoList, Shutdown: s.isClosing,
	})
	if err != nil {
		return err
	}
	x := sess.Export.Handle.(*export)
	if !s.choose(c, x) {
		return fmt.Errorf("export %q was removed while a client was about to use it", x.Name)
	}
	c.setDeadline(time.Time{})
	c.mu.Lock()
	c.sess = sess
	c.mu.Unlock()
	return nil
}

// setDeadline sets the connection's deadline unless it is being stopped.
func (c *conn) setDeadline(t time.Time) {
	c.mu.Lock()
	if c.stopped() == 0 {
		_ = c.nc.SetDeadline(t) // fails only on a closed connection, as will what follows
	}
	c.mu.Unlock()
}

// begin makes ready for requests.
func (c *conn) begin() {
	cfg := &c.srv.cfg
	c.child, c.q = c.exp.Child, block.NewQueue(cfg.Env, c.exp.Group)
	c.aside = block.NewQueue(cfg.Env, block.NewQueueGroup())
	c.inline, c.cached = c.child.Info().Inline, c.child.Info().Cached
	c.pace.patient = cfg.patient
	c.ext, c.struc = c.sess.Extended, c.sess.Structured
	if c.sock = newSock(c.nc); c.sock != nil && !c.sess.TLS {
		c.link = c.sock
	} else {
		c.sock, c.link = nil, &stream{rw: c.sess.Conn, gather: c.tlsOut, out: make([]byte, 0, streamBuf)}
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.mu.Lock()
	c.ctx, c.cancel = ctx, cancel
	c.mu.Unlock()
	c.share.init(c.srv.mem, cfg.MaxInFlightBytes)
	c.in.buf = make([]byte, inLen)
	c.out = make([]byte, 0, shortOut)
	if c.inline || c.cached {
		c.out = make([]byte, 0, outLen)
	}
	c.ios = make([]*rawio.IO, 0, cfg.MaxInFlight)
	c.slots = make([]*slot, cfg.MaxInFlight)
	c.one = make(block.Vec, 1)
	c.turn.init(c)
	c.iov = make([][]byte, 0, maxBatchIov+2+2*maxChunks)
	c.freed, c.wake = make(chan struct{}, 1), make(chan struct{}, 1)
	c.work = make(chan *slot, cfg.MaxInFlight)
	if !c.inline {
		c.helpers.Go(c.writer)
	}
}

// drain waits for the requests in flight. What is answered is still sent, where
// the client takes it.
func (c *conn) drain() {
	for {
		gen := c.releaseCount()
		_ = c.push() // that it was cut is known
		if c.used.Load() == 0 {
			return
		}
		c.awaitRelease(gen)
	}
}

// lingerTime is Config.linger outside of tests.
const lingerTime = time.Second

// linger lets a client that is sent away take its last answers: a socket that
// is closed with bytes unread may lose what it had to send.
func (c *conn) linger() {
	cw, ok := c.sess.Conn.(interface{ CloseWrite() error })
	if c.stopped() == 0 || c.broken.Load() || !ok {
		return
	}
	_ = cw.CloseWrite() // fails if the client is gone, as will what follows
	_ = c.nc.SetReadDeadline(time.Now().Add(c.srv.cfg.linger))
	for {
		if _, err := c.nc.Read(c.in.buf); err != nil {
			return
		}
	}
}

// end takes down what begin made.
func (c *conn) end() {
	c.over.Store(true)
	c.wakeWriter()
	close(c.work)
	c.cut()
	c.helpers.Wait()
	c.pipe.close()
	c.aside.Close()
	c.q.Close()
}

// cut closes the socket: nothing is read or sent any more. Requests in flight
// end when storage is done with them.
func (c *conn) cut() {
	c.broken.Store(true)
	c.nc.Close()
	c.mu.Lock()
	cancel := c.cancel
	c.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}

// stop ends reading from the client: what has arrived is answered e from now
// on, what is in flight is answered as it ends, then the connection is closed.
func (c *conn) stop(e wire.Errno) {
	c.mu.Lock()
	if c.stopped() == 0 {
		c.stopping.Store(uint32(e))
		close(c.ending)
		_ = c.nc.SetReadDeadline(time.Unix(1, 0))
	}
	c.mu.Unlock()
}

func (c *conn) stopped() wire.Errno { return wire.Errno(c.stopping.Load()) }

// Why reading ends other than by an error.
var (
	errDisconnect = errors.New("nbd: client disconnected")
	errStopped    = errors.New("nbd: the server ends the connection")
)

// wantsAnswers says whether the client may still read, given why reading from
// it ended.
func wantsAnswers(err error) bool {
	return errors.Is(err, errDisconnect) || errors.Is(err, errStopped) || errors.Is(err, io.EOF) || isTimeout(err)
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

func (c *conn) logEnd(err error) {
	log := c.srv.log.With("peer", c.peer, "export", c.exp.Name)
	switch {
	case errors.Is(err, errDisconnect):
		c.srv.coming.Info(log, "client disconnected")
	case c.stopped() != 0:
		c.srv.coming.Info(log, "client is being disconnected: the export ends")
	case errors.Is(err, wire.ErrProtocol):
		c.srv.limits.Warn(log, "client broke the protocol: disconnected", "error", err)
	case errors.Is(err, errCut), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, net.ErrClosed):
		c.srv.coming.Info(log, "client is gone without saying so")
	default:
		c.srv.limits.Warn(log, "connection failed", "error", err)
	}
}

func (c *conn) logHandshake(err error) {
	switch {
	case c.stopped() != 0:
		c.srv.log.Debug("client is being disconnected: the server ends", "peer", c.peer)
	case errors.Is(err, wire.ErrPlain):
		c.srv.coming.Info(c.srv.log, "client refused: this server requires TLS and the client did not start it (nbds:// in a URI)", "peer", c.peer)
	case errors.Is(err, wire.ErrAborted), errors.Is(err, io.EOF):
		c.srv.log.Debug("client left without using an export", "peer", c.peer)
	default:
		c.srv.limits.Warn(c.srv.log, "handshake failed", "peer", c.peer, "error", err)
	}
}

// status describes the connection. Called with srv.mu held.
func (c *conn) status() ConnInfo {
	info := ConnInfo{Peer: c.peer, Since: c.since, InFlight: int(c.used.Load()), Held: c.share.held.Load()}
	if c.exp != nil {
		info.Export = c.exp.Name
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	info.Ending = c.stopped() != 0 || c.broken.Load()
	if s := c.sess; s != nil {
		info.Negotiated = true
		info.TLS, info.Structured, info.Extended = s.TLS, s.Structured, s.Extended
		for _, m := range s.Contexts {
			info.Contexts = append(info.Contexts, m.Name)
		}
	}
	return info
}
