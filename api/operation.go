package api

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

// What may take long runs beside the request: the answer comes in bounded time
// whatever the storage does, and says how to ask for the outcome.

// Bounds on operations.
const (
	maxRunning = 64 // at once
	maxKept    = 256
	// patience is how long an answer waits for the outcome, and maxPatience
	// how long it does where the client asks with ?wait=.
	patience    = 50 * time.Millisecond
	maxPatience = time.Minute
)

// The states of an operation.
const (
	StateRunning = "running"
	StateDone    = "done"
	StateFailed  = "failed"
)

// Operation is something that may take as long as the storage does.
type Operation struct {
	ID    string    `json:"id"`
	What  string    `json:"what"` // method and path
	State string    `json:"state"`
	Error string    `json:"error,omitempty"`
	Began time.Time `json:"began"`
	// Ended is when it did, the zero time while it runs.
	Ended time.Time `json:"ended"`
	// Result says in words what was done.
	Result string `json:"result,omitempty"`
}

// operations are those that run, and the last ones that have ended.
type operations struct {
	mu      sync.Mutex
	next    int
	running int
	all     []*operation // the oldest first
}

type operation struct {
	Operation
	status int // of HTTP, where it failed
	done   chan struct{}
}

func (o *operations) init() { o.next = 1 }

// routes ask for operations.
func (o *operations) routes() []Route {
	return []Route{
		{Method: "GET", Path: "/api/v1/operations", Summary: "operations that run, and the last ones that ended", Answer: []Operation{},
			Do: func(context.Context, *Call) (any, error) { return o.list(), nil }},
		{Method: "GET", Path: "/api/v1/operations/{id}", Summary: "one operation", Answer: Operation{},
			Do: func(_ context.Context, c *Call) (any, error) { return o.find(c.Param("id")) }},
	}
}

func (o *operations) list() []Operation {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := []Operation{}
	for _, op := range o.all {
		all = append(all, op.Operation)
	}
	return all
}

func (o *operations) find(id string) (Operation, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, op := range o.all {
		if op.ID == id {
			return op.Operation, nil
		}
	}
	return Operation{}, Errorf(http.StatusNotFound, "there is no operation %s: of those that have ended the last %d are kept", id, maxKept-maxRunning)
}

// answer runs r as an operation and tells the client of it: 200 where it is
// done, 202 where it still runs, the error where it failed.
func (o *operations) answer(w http.ResponseWriter, c *Call, r *Route) {
	wait, err := waitOf(c.r)
	if err != nil {
		writeError(w, err)
		return
	}
	op, err := o.begin(c.r.Method + " " + c.r.URL.Path)
	if err != nil {
		writeError(w, err)
		return
	}
	go func() {
		x, err := r.Do(context.Background(), c) // the client may leave
		text, _ := x.(string)
		o.end(op, text, err)
	}()
	select {
	case <-op.done:
	case <-time.After(wait):
	case <-c.r.Context().Done():
	}
	o.mu.Lock()
	now, status := op.Operation, op.status
	o.mu.Unlock()
	switch now.State {
	case StateRunning:
		w.Header().Set("Location", "/api/v1/operations/"+now.ID)
		writeJSON(w, http.StatusAccepted, now)
	case StateFailed:
		writeError(w, &Error{status, now.Error})
	default:
		writeJSON(w, http.StatusOK, now)
	}
}

// waitOf is how long the client is ready to wait.
func waitOf(q *http.Request) (time.Duration, error) {
	s := q.URL.Query().Get("wait")
	if s == "" {
		return patience, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 || d > maxPatience {
		return 0, Errorf(http.StatusBadRequest, "wait=%q is not a duration from 0s to %v", s, maxPatience)
	}
	return d, nil
}

func (o *operations) begin(what string) (*operation, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.running == maxRunning {
		return nil, Errorf(http.StatusTooManyRequests, "%d operations run already: wait until one has ended (/api/v1/operations)", maxRunning)
	}
	op := &operation{Operation: Operation{ID: strconv.Itoa(o.next), What: what, State: StateRunning, Began: time.Now()}, done: make(chan struct{})}
	o.next++
	o.running++
	o.all = append(o.all, op)
	o.forget()
	return op, nil
}

// forget drops the oldest that have ended, where there are too many.
func (o *operations) forget() {
	if len(o.all) <= maxKept {
		return
	}
	i := slices.IndexFunc(o.all, func(op *operation) bool { return op.State != StateRunning })
	o.all = slices.Delete(o.all, i, i+1)
}

func (o *operations) end(op *operation, text string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.running--
	op.State, op.Result, op.Ended = StateDone, text, time.Now()
	if err != nil {
		op.State, op.Error, op.status = StateFailed, err.Error(), http.StatusInternalServerError
		if e, ok := err.(*Error); ok {
			op.status = e.Status
		}
	}
	close(op.done)
}
