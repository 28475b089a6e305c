// Package api is the HTTP side of a daemon: JSON over routes that describe
// themselves, a stream of what is counted, metrics, and a page for people. It
// knows nothing of disks: what there is to ask for comes as routes.
//
// Read it in this order: api.go (routes and answers), operation.go (what may take
// long), guard.go (who may ask), stream.go, document.go (the OpenAPI document),
// page.go and page/ (the page), client.go (the other side).
package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"reflect"
	"time"
)

// Bounds on what clients can take.
const (
	maxBody        = 64 << 10 // bytes of a request's body
	maxHeader      = 16 << 10
	headerTimeout  = 10 * time.Second
	writeTimeout   = 10 * time.Second // of an answer, and of each event of a stream
	idleTimeout    = 2 * time.Minute
	maxConnections = 512
)

// Route is one thing that can be asked for.
type Route struct {
	Method, Path string // as in http.ServeMux: /disks/{name}
	Summary      string // one line
	// Body is a pointer to a zero value of what the request carries, nil
	// where it carries nothing; Answer a zero value of what comes back.
	Body, Answer any
	// Long says that it may take as long as the storage does: it runs as an
	// Operation, and Answer is not used.
	Long bool
	// Do answers. A route that is not Long must not wait for storage.
	Do func(ctx context.Context, c *Call) (any, error)
}

// Call is one request to a route.
type Call struct {
	Body any // a pointer, of the type of Route.Body
	r    *http.Request
}

// Param is the part of the path that the route calls name.
func (c *Call) Param(name string) string { return c.r.PathValue(name) }

// Error is an answer that is no success.
type Error struct {
	Status  int    `json:"status"` // of HTTP
	Message string `json:"message"`
}

func (e *Error) Error() string { return e.Message }

// Errorf makes an Error.
func Errorf(status int, format string, args ...any) *Error {
	return &Error{status, fmt.Sprintf(format, args...)}
}

// ErrorBody is what comes back with a status that is no success.
type ErrorBody struct {
	Error *Error `json:"error"`
}

// Config is what a server is made of.
type Config struct {
	Title, Version string
	Routes         []Route
	Metrics        http.Handler // nil: none
	// Snapshot is what the stream sends, once every Period (default a
	// second). It must not wait for storage.
	Snapshot func() any
	Period   time.Duration
	// Token is what clients must show, empty where who reaches the listener
	// may ask.
	Token []byte
	Log   *slog.Logger
}

// Server answers HTTP requests.
type Server struct {
	cfg  Config
	http *http.Server
	ops  operations
	feed feed
	doc  []byte
}

// New makes a server. It has no listener yet.
func New(cfg Config) (*Server, error) {
	if cfg.Period == 0 {
		cfg.Period = time.Second
	}
	s := &Server{cfg: cfg}
	s.ops.init()
	s.feed.init(s)
	s.cfg.Routes = append(append([]Route{}, cfg.Routes...), s.ops.routes()...)
	var err error
	if s.doc, err = document(&s.cfg); err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	for i := range s.cfg.Routes {
		r := &s.cfg.Routes[i]
		mux.HandleFunc(r.Method+" "+r.Path, func(w http.ResponseWriter, q *http.Request) { s.answer(w, q, r) })
	}
	mux.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, _ *http.Request) { writeRaw(w, "application/json", s.doc) })
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { writeRaw(w, "text/plain; charset=utf-8", []byte("ok\n")) })
	mux.HandleFunc("GET "+StreamPath, s.feed.serve)
	if cfg.Metrics != nil {
		mux.Handle("GET /metrics", cfg.Metrics)
	}
	files := page()
	mux.HandleFunc("/", func(w http.ResponseWriter, q *http.Request) {
		if !isPage(q.URL.Path) || q.Method != http.MethodGet {
			writeError(w, Errorf(http.StatusNotFound, "there is no %s %s: /openapi.json lists what there is", q.Method, q.URL.Path))
			return
		}
		files.ServeHTTP(w, q)
	})
	s.http = &http.Server{
		Handler: s.guarded(mux), ReadHeaderTimeout: headerTimeout, ReadTimeout: headerTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeader, ErrorLog: slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
	}
	return s, nil
}

// Serve answers those who come to l, until Shutdown.
func (s *Server) Serve(l net.Listener) error {
	err := s.http.Serve(limitListener(l, maxConnections))
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Shutdown ends the server: streams at once, answers that are being given when
// they are, or when ctx ends.
func (s *Server) Shutdown(ctx context.Context) error {
	s.feed.close()
	err := s.http.Shutdown(ctx)
	if err != nil {
		return errors.Join(err, s.http.Close())
	}
	return nil
}

// answer runs a route.
func (s *Server) answer(w http.ResponseWriter, q *http.Request, r *Route) {
	c := &Call{r: q}
	if r.Body != nil {
		c.Body = reflect.New(reflect.TypeOf(r.Body).Elem()).Interface()
		if err := readBody(w, q, c.Body); err != nil {
			writeError(w, err)
			return
		}
	}
	if r.Long {
		s.ops.answer(w, c, r)
		return
	}
	x, err := r.Do(q.Context(), c)
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, x)
}

// readBody reads one JSON object whose fields are all known.
func readBody(w http.ResponseWriter, q *http.Request, to any) error {
	d := json.NewDecoder(http.MaxBytesReader(w, q.Body, maxBody))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil && err != io.EOF {
		return Errorf(http.StatusBadRequest, "the body is not what is expected: %v: /openapi.json describes it", err)
	}
	if d.More() {
		return Errorf(http.StatusBadRequest, "there is something behind the body's object")
	}
	return nil
}

func writeError(w http.ResponseWriter, err error) {
	var e *Error
	if !errors.As(err, &e) {
		e = &Error{http.StatusInternalServerError, err.Error()}
	}
	writeJSON(w, e.Status, ErrorBody{e})
}

func writeJSON(w http.ResponseWriter, status int, x any) {
	b, err := json.MarshalIndent(x, "", "  ")
	if err != nil { // a type of ours that cannot be written
		b, status = []byte(`{"error":{"status":500,"message":"the answer cannot be written as JSON"}}`), http.StatusInternalServerError
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n')) // a client that has gone
}

func writeRaw(w http.ResponseWriter, kind string, b []byte) {
	w.Header().Set("Content-Type", kind)
	_, _ = w.Write(b) // a client that has gone
}
