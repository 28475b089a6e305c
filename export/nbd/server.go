package nbd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/platter-storage/platter/internal/logpace"
	wire "github.com/platter-storage/platter/wire/nbd"
)

// ErrServerClosed is returned by Serve and AddExport after Shutdown.
var ErrServerClosed = errors.New("nbd server: closed")

// Server offers exports on any number of listeners.
type Server struct {
	cfg     Config
	log     *slog.Logger
	mem     *memory
	limits  *logpace.Pace // of lines about failed requests and clients
	coming  *logpace.Pace // of lines about clients that come and go
	places  chan struct{} // one element a connection that is served; nil without a limit
	done    chan struct{} // closed when Shutdown begins
	scratch chan *extents // for block status
	// unreadWait is the constant, but in tests; set before anybody is served.
	unreadWait time.Duration

	mu        sync.Mutex // guards what follows; taken before a connection's
	closing   bool
	exports   []*export
	conns     map[*conn]struct{}
	listeners map[net.Listener]struct{}
}

// New makes a server without exports and listeners.
func New(cfg Config) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Server{
		cfg: cfg, log: cfg.Log, mem: newMemory(cfg.Memory), limits: logpace.New(logBurst), coming: logpace.New(comingBurst), done: make(chan struct{}),
		scratch: make(chan *extents, maxScratch), unreadWait: unreadWait,
		conns: map[*conn]struct{}{}, listeners: map[net.Listener]struct{}{},
	}
	if cfg.MaxConns > 0 {
		s.places = make(chan struct{}, cfg.MaxConns)
	}
	return s, nil
}

// Bounds of the pause after a failed accept.
const (
	minAcceptPause = 5 * time.Millisecond
	maxAcceptPause = time.Second
)

// Serve accepts clients on l, which it closes in the end. It returns
// ErrServerClosed after Shutdown, and otherwise only if l was closed: when the
// process has no descriptors left it tries again. Several listeners may be
// served at once.
func (s *Server) Serve(l net.Listener) error {
	if !s.track(l) {
		l.Close()
		return ErrServerClosed
	}
	defer s.untrack(l)
	pause := minAcceptPause
	for {
		nc, err := l.Accept()
		switch {
		case err == nil:
			pause = minAcceptPause
			if !s.place(l) {
				nc.Close()
				return ErrServerClosed
			}
			go s.serveConn(nc)
		case s.isClosing():
			return ErrServerClosed
		case errors.Is(err, net.ErrClosed):
			return err
		default:
			s.limits.Warn(s.log, "accepting a client failed; trying again", "listener", l.Addr(), "error", err, "advice", acceptAdvice(err))
			if !s.sleep(pause) {
				return ErrServerClosed
			}
			pause = min(2*pause, maxAcceptPause)
		}
	}
}

func acceptAdvice(err error) string {
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		return "raise the limit of open files (ulimit -n), or lower the number of connections"
	}
	return "none needed if it passes"
}

// place waits for the right to serve one more client.
func (s *Server) place(l net.Listener) bool {
	if s.places == nil {
		return !s.isClosing()
	}
	select {
	case s.places <- struct{}{}:
		return true
	default:
		s.limits.Warn(s.log, "limit of connections reached: new clients wait", "limit", s.cfg.MaxConns, "listener", l.Addr())
	}
	select {
	case s.places <- struct{}{}:
		return true
	case <-s.done:
		return false
	}
}

func (s *Server) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-s.done:
		return false
	}
}

func (s *Server) track(l net.Listener) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closing {
		s.listeners[l] = struct{}{}
	}
	return !s.closing
}

func (s *Server) untrack(l net.Listener) {
	l.Close()
	s.mu.Lock()
	delete(s.listeners, l)
	s.mu.Unlock()
}

func (s *Server) isClosing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closing
}

// join takes a new connection in, unless the server is closing.
func (s *Server) join(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closing {
		s.conns[c] = struct{}{}
	}
	return !s.closing
}

// choose notes which export the connection uses, unless it has been removed
// since the client asked for it.
func (s *Server) choose(c *conn, x *export) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.exports, x) {
		return false
	}
	c.exp = x
	return true
}

// leave lets go of a connection whose last request is done.
func (s *Server) leave(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	if s.closing && len(s.conns) == 0 {
		s.mem.close()
	}
	close(c.gone)
	if s.places != nil {
		<-s.places
	}
}

// serveConn is one client from greeting to end.
func (s *Server) serveConn(nc net.Conn) {
	c := newConn(s, nc)
	if !s.join(c) {
		c.nc.Close()
		if s.places != nil {
			<-s.places
		}
		return
	}
	defer s.tellLeft(c)
	defer s.leave(c)
	c.run()
}

// tellLeft reports the end of a connection that used an export.
func (s *Server) tellLeft(c *conn) {
	if s.cfg.Left == nil {
		return
	}
	s.mu.Lock()
	used, others := c.exp != nil, len(s.connsLocked(func(o *conn) bool { return o.exp != nil }))
	s.mu.Unlock()
	if used {
		s.cfg.Left(others)
	}
}

// RemoveExport ends the export: no client can choose it any more, and those
// that use it are disconnected once their requests in flight are answered, at
// the latest when ctx ends. After an error the disk is still in use: storage
// has not finished some request.
func (s *Server) RemoveExport(ctx context.Context, name string) error {
	s.mu.Lock()
	i := slices.IndexFunc(s.exports, func(x *export) bool { return x.Name == name })
	if i < 0 {
		s.mu.Unlock()
		return fmt.Errorf("nbd server: there is no export named %q", name)
	}
	x := s.exports[i]
	s.exports = slices.Delete(slices.Clone(s.exports), i, i+1)
	users := s.connsLocked(func(c *conn) bool { return c.exp == x })
	s.mu.Unlock()
	return s.disconnect(ctx, users, wire.ESHUTDOWN)
}

// Shutdown stops accepting, lets requests in flight finish and their answers
// be sent, and closes all connections, at the latest when ctx ends. After an
// error some disk is still in use: storage has not finished some request.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	if !s.closing {
		s.closing = true
		close(s.done)
		if len(s.conns) == 0 {
			s.mem.close()
		}
	}
	for l := range s.listeners {
		l.Close()
	}
	all := s.connsLocked(func(*conn) bool { return true })
	s.mu.Unlock()
	return s.disconnect(ctx, all, wire.ESHUTDOWN)
}

func (s *Server) connsLocked(want func(*conn) bool) []*conn {
	var list []*conn
	for c := range s.conns {
		if want(c) {
			list = append(list, c)
		}
	}
	return list
}

// hardWait is how long a connection may take to end after its socket has been
// closed, where storage does not hold it up.
const hardWait = 10 * time.Second

// disconnect ends connections: gently until ctx ends, then by force.
func (s *Server) disconnect(ctx context.Context, list []*conn, e wire.Errno) error {
	for _, c := range list {
		c.stop(e)
	}
	s.awaitGone(ctx, list)
	t := time.NewTimer(hardWait)
	defer t.Stop()
	for i, c := range list {
		select {
		case <-c.gone:
		case <-t.C:
			return fmt.Errorf("nbd server: %d clients are disconnected, but storage has not finished their requests: do not close the disk yet", len(list)-i)
		}
	}
	return nil
}

// ConnInfo describes a connection, for status.
type ConnInfo struct {
	Peer   string // address; of a UNIX socket the process
	Export string // "" during the handshake
	Since  time.Time
	// InFlight is the number of requests that run or whose answers have not
	// been sent, and Held what they hold of the server's memory, in bytes.
	InFlight int
	Held     int64

	Negotiated bool // the handshake is over; what follows is valid
	Ending     bool // no more requests are read from it
	TLS        bool
	Structured bool
	Extended   bool
	Contexts   []string
}

// Connections lists all connections, oldest first.
func (s *Server) Connections() []ConnInfo {
	s.mu.Lock()
	list := s.connsLocked(func(*conn) bool { return true })
	infos := make([]ConnInfo, 0, len(list))
	for _, c := range list {
		infos = append(infos, c.status())
	}
	s.mu.Unlock()
	slices.SortFunc(infos, func(a, b ConnInfo) int { return a.Since.Compare(b.Since) })
	return infos
}
