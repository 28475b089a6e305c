package api

import (
	"crypto/subtle"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
)

// guarded lets in who may ask. A listener on a Unix socket is guarded by its
// permissions, one on the network by a token; and a web page of somebody else's,
// open in the browser of who may ask, must not ask in his place: its requests
// name the page they come from, or a host that is not ours.
func (s *Server) guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		switch {
		case !s.rightHost(q.Host):
			writeError(w, Errorf(http.StatusMisdirectedRequest, "requests name this machine by an address or as localhost, not as %q", q.Host))
		case foreign(q):
			writeError(w, Errorf(http.StatusForbidden, "requests of other web pages are refused"))
		case !s.known(q):
			h.Set("WWW-Authenticate", `Bearer realm="platter"`)
			writeError(w, Errorf(http.StatusUnauthorized, "a token is needed: send the header Authorization: Bearer TOKEN"))
		default:
			next.ServeHTTP(w, q)
		}
	})
}

// rightHost accepts addresses and localhost. Names of others could be made to
// lead here (DNS rebinding); where a token is asked for that is no danger.
func (s *Server) rightHost(host string) bool {
	if len(s.cfg.Token) > 0 {
		return true
	}
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return host == "" || host == "localhost" || host == "platter" // what clients on a Unix socket write
}

// foreign reports whether a browser says that another page asks.
func foreign(q *http.Request) bool {
	switch q.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
	default:
		return true
	}
	origin := q.Header.Get("Origin")
	return origin != "" && origin != "http://"+q.Host && origin != "https://"+q.Host
}

// known reports whether the request has the token. The page itself has no
// secrets: it asks for the token.
func (s *Server) known(q *http.Request) bool {
	if len(s.cfg.Token) == 0 || q.URL.Path == "/healthz" || isPage(q.URL.Path) {
		return true
	}
	given, ok := strings.CutPrefix(q.Header.Get("Authorization"), "Bearer ")
	if !ok && q.URL.Path == StreamPath {
		given = q.URL.Query().Get("token") // EventSource sends no headers
	}
	return subtle.ConstantTimeCompare([]byte(given), s.cfg.Token) == 1
}

// limitListener lets at most n connections be open at once; others wait to be
// accepted.
func limitListener(l net.Listener, n int) net.Listener {
	return &limited{Listener: l, places: make(chan struct{}, n), closed: make(chan struct{})}
}

type limited struct {
	net.Listener
	places chan struct{}
	closed chan struct{}
	once   sync.Once
}

func (l *limited) Accept() (net.Conn, error) {
	select {
	case l.places <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.places
		return nil, err
	}
	return &limitedConn{Conn: c, place: l.places}, nil
}

func (l *limited) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

type limitedConn struct {
	net.Conn
	place chan struct{}
	once  sync.Once
}

func (c *limitedConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() { <-c.place })
	return err
}
