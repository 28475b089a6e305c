package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/platter-storage/platter/internal/testutil"
)

type thing struct {
	Name  string           `json:"name"`
	Count int64            `json:"count"`
	Share float64          `json:"share"`
	When  time.Time        `json:"when"`
	Parts []string         `json:"parts"`
	By    map[string]inner `json:"by"`
	inner
	Note string `json:"note,omitempty"`
}

type inner struct {
	Yes bool `json:"yes"`
}

type rig struct {
	t    *testing.T
	s    *Server
	h    *httptest.Server
	held chan struct{} // closed: the slow route ends
}

func newRig(t *testing.T, change func(*Config)) *rig {
	r := &rig{t: t, held: make(chan struct{})}
	cfg := Config{
		Title: "test", Version: "1", Log: slog.New(slog.DiscardHandler), Period: 10 * time.Millisecond,
		Snapshot: func() any { return thing{Name: "snapshot"} },
		Routes: []Route{
			{Method: "GET", Path: "/api/v1/things/{name}", Summary: "a thing", Answer: thing{}, Do: func(_ context.Context, c *Call) (any, error) {
				if c.Param("name") == "none" {
					return nil, Errorf(http.StatusNotFound, "there is none")
				}
				return thing{Name: c.Param("name"), By: map[string]inner{"a": {true}}}, nil
			}},
			{Method: "POST", Path: "/api/v1/slow", Summary: "takes long", Body: &inner{}, Long: true, Do: func(_ context.Context, c *Call) (any, error) {
				<-r.held
				if c.Body.(*inner).Yes {
					return "it was long", nil
				}
				return nil, Errorf(http.StatusConflict, "it was no good")
			}},
		},
	}
	if change != nil {
		change(&cfg)
	}
	var err error
	if r.s, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	r.h = httptest.NewServer(r.s.http.Handler)
	t.Cleanup(r.h.Close)
	return r
}

// ask sends a request with headers in pairs.
func (r *rig) ask(method, path, body string, headers ...string) (int, string) {
	r.t.Helper()
	q, err := http.NewRequestWithContext(r.t.Context(), method, r.h.URL+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		q.Header.Set(headers[i], headers[i+1])
		if headers[i] == "Host" {
			q.Host = headers[i+1]
		}
	}
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		r.t.Fatal(err)
	}
	defer a.Body.Close()
	b, err := io.ReadAll(a.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return a.StatusCode, string(b)
}

func TestAnswers(t *testing.T) {
	r := newRig(t, nil)
	for _, c := range []struct {
		method, path, body string
		status             int
		says               string
	}{
		{"GET", "/api/v1/things/x", "", 200, `"name": "x"`},
		{"GET", "/api/v1/things/none", "", 404, "there is none"},
		{"GET", "/api/v1/nothing", "", 404, "/openapi.json"},
		{"DELETE", "/api/v1/nothing", "", 404, "DELETE"},
		{"POST", "/api/v1/slow", `{"no":1}`, 400, "unknown field"},
		{"POST", "/api/v1/slow", `{} {}`, 400, "behind"},
		{"POST", "/api/v1/slow", `{"yes":` + strings.Repeat(" ", maxBody), 400, "too large"},
		{"GET", "/healthz", "", 200, "ok"},
		{"GET", "/", "", 200, "<title>Platter</title>"},
		{"GET", "/app.js", "", 200, "use strict"},
		{"GET", "/../api.go", "", 404, ""},
	} {
		status, text := r.ask(c.method, c.path, c.body)
		if status != c.status || !strings.Contains(text, c.says) {
			t.Errorf("%s %s: %d %.200s", c.method, c.path, status, text)
		}
	}
}

// An operation that storage holds up is answered all the same, its outcome can
// be asked for, and no more than maxRunning of them run.
func TestOperations(t *testing.T) {
	r := newRig(t, nil)
	status, text := r.ask("POST", "/api/v1/slow", `{"yes":true}`)
	var op Operation
	if err := json.Unmarshal([]byte(text), &op); status != 202 || err != nil || op.State != StateRunning {
		t.Fatalf("%d %s", status, text)
	}
	for range maxRunning - 1 {
		if status, text := r.ask("POST", "/api/v1/slow?wait=0s", `{"yes":false}`); status != 202 {
			t.Fatalf("%d %s", status, text)
		}
	}
	if status, text := r.ask("POST", "/api/v1/slow", `{}`); status != 429 || !strings.Contains(text, "64 operations") {
		t.Errorf("one too many: %d %s", status, text)
	}
	if status, text := r.ask("POST", "/api/v1/slow?wait=2h", `{}`); status != 400 || !strings.Contains(text, "wait=") {
		t.Errorf("a long wait: %d %s", status, text)
	}
	close(r.held)
	for {
		status, text = r.ask("GET", "/api/v1/operations/"+op.ID, "")
		if status != 200 {
			t.Fatal(text)
		}
		if strings.Contains(text, StateDone) {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if !strings.Contains(text, "it was long") {
		t.Error(text)
	}
	if status, text := r.ask("POST", "/api/v1/slow?wait=30s", `{}`); status != 409 || !strings.Contains(text, "no good") {
		t.Errorf("%d %s", status, text)
	}
	for range maxKept {
		r.ask("POST", "/api/v1/slow?wait=30s", `{"yes":true}`)
	}
	if all := r.s.ops.list(); len(all) != maxKept {
		t.Errorf("%d operations are kept", len(all))
	}
	if status, _ := r.ask("GET", "/api/v1/operations/"+op.ID, ""); status != 404 {
		t.Errorf("the oldest operation: %d", status)
	}
}

func TestWhoMayAsk(t *testing.T) {
	open := newRig(t, nil)
	guarded := newRig(t, func(c *Config) { c.Token = []byte("a token of some length") })
	for _, c := range []struct {
		r       *rig
		path    string
		status  int
		headers []string
	}{
		{open, "/api/v1/things/x", 200, nil},
		{open, "/api/v1/things/x", 200, []string{"Host", "localhost:80"}},
		{open, "/api/v1/things/x", 200, []string{"Host", "[::1]:80"}},
		{open, "/api/v1/things/x", 421, []string{"Host", "evil.example"}},
		{open, "/api/v1/things/x", 403, []string{"Origin", "http://evil.example"}},
		{open, "/api/v1/things/x", 403, []string{"Sec-Fetch-Site", "cross-site"}},
		{open, "/api/v1/things/x", 200, []string{"Sec-Fetch-Site", "same-origin"}},
		{guarded, "/api/v1/things/x", 401, nil},
		{guarded, "/openapi.json", 401, nil},
		{guarded, "/api/v1/things/x", 401, []string{"Authorization", "Bearer another"}},
		{guarded, "/api/v1/things/x", 200, []string{"Authorization", "Bearer a token of some length"}},
		{guarded, "/api/v1/things/x?token=a+token+of+some+length", 401, nil},
		{guarded, "/", 200, nil},
		{guarded, "/healthz", 200, nil},
	} {
		if status, text := c.r.ask("GET", c.path, "", c.headers...); status != c.status {
			t.Errorf("%s %q: %d %s, not %d", c.path, c.headers, status, text, c.status)
		}
	}
}

// Those who follow get snapshots while they read; who leaves is forgotten, and
// the end of the server ends the streams.
func TestStream(t *testing.T) {
	r := newRig(t, nil)
	follow := func(ctx context.Context) *http.Response {
		q, err := http.NewRequestWithContext(ctx, "GET", r.h.URL+StreamPath, nil)
		if err != nil {
			t.Fatal(err)
		}
		a, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { a.Body.Close() })
		return a
	}
	ctx, cancel := context.WithCancel(t.Context())
	follow(ctx)
	a := follow(t.Context())
	lines := bufio.NewScanner(a.Body)
	for n := 0; n < 3 && lines.Scan(); {
		if text, is := strings.CutPrefix(lines.Text(), "data: "); is {
			var x thing
			if err := json.Unmarshal([]byte(text), &x); err != nil || x.Name != "snapshot" {
				t.Fatalf("%q: %v", text, err)
			}
			n++
		}
	}
	cancel()
	for r.s.feed.count() != 1 {
		time.Sleep(time.Millisecond)
	}
	if err := r.s.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(a.Body); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
	if status, text := r.ask("GET", StreamPath, ""); status != 503 {
		t.Errorf("after the end: %d %s", status, text)
	}
}

func (f *feed) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.clients)
}

// The document describes what is answered: every answer meets its schema, and
// one that does not is found.
func TestDocument(t *testing.T) {
	r := newRig(t, nil)
	_, text := r.ask("GET", "/openapi.json", "")
	var doc map[string]any
	if err := json.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatal(err)
	}
	schema := testutil.SchemaOf(doc, "GET", "/api/v1/things/{name}")
	_, text = r.ask("GET", "/api/v1/things/x", "")
	if err := testutil.Meets(schema, text); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{`{}`, strings.Replace(text, `"name"`, `"nam"`, 1), strings.Replace(text, `"count": 0`, `"count": "0"`, 1), strings.Replace(text, `"yes": true`, `"yes": 1`, 1)} {
		if testutil.Meets(schema, bad) == nil {
			t.Errorf("this meets the schema: %s", bad)
		}
	}
	if _, err := Schema(reflect.TypeFor[struct{ NoName int }]()); err == nil {
		t.Error("a field without a name has a schema")
	}
	if _, err := New(Config{Routes: []Route{{Method: "GET", Path: "/x", Answer: make(chan int)}}, Log: slog.New(slog.DiscardHandler)}); err == nil {
		t.Error("an answer that JSON cannot write is a route")
	}
	if !strings.Contains(fmt.Sprint(doc["paths"]), "wait") {
		t.Error("nothing says that one can wait for an operation")
	}
}
