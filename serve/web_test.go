package serve

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/platter-storage/platter/api"
	"github.com/platter-storage/platter/internal/testutil"
)

// over asks the daemon over its HTTP socket DIR/h.
func (b *bench) over(method, path, body string) (int, string) {
	b.t.Helper()
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", b.dir+"/h")
	}}}
	q, err := http.NewRequestWithContext(b.t.Context(), method, "http://platter"+path, strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	a, err := c.Do(q)
	if err != nil {
		b.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return a.StatusCode, string(text)
}

// schemas is the daemon's description of itself.
func (b *bench) schemas() map[string]any {
	b.t.Helper()
	_, text := b.over("GET", "/openapi.json", "")
	var doc map[string]any
	if err := json.Unmarshal([]byte(text), &doc); err != nil {
		b.t.Fatal(err)
	}
	return doc
}

const webDisks = `
disks:
  - {name: a, path: 'mem:1M', throttle: iops-total=100000}
  - {name: b, path: 'mem:1M', vhost-user: DIR/v}
  - {name: c, path: 'mem:1M', read-only: true}
http: unix:DIR/h
`

// Every answer is what the OpenAPI document says.
func TestAnswersMeetTheDocument(t *testing.T) {
	b := serving(t, webDisks)
	f, _ := b.frontEnd("v")
	if _, err := f.Features(); err != nil {
		t.Fatal(err)
	}
	mark(t, b.mustDial("a"), 1)
	doc := b.schemas()
	for _, c := range []struct{ method, route, path, body string }{
		{"GET", "/api/v1/status", "", ""},
		{"GET", "/api/v1/disks", "", ""},
		{"GET", "/api/v1/disks/{name}", "/api/v1/disks/b", ""},
		{"PUT", "/api/v1/disks/{name}/throttle", "/api/v1/disks/a/throttle?wait=30s", `{"limits":"iops-total=5000"}`},
		{"POST", "/api/v1/disks/{name}/flush", "/api/v1/disks/a/flush?wait=30s", ""},
		{"POST", "/api/v1/disks/{name}/resize", "/api/v1/disks/a/resize?wait=30s", `{"size":"2M"}`},
		{"GET", "/api/v1/operations", "", ""},
		{"GET", "/api/v1/operations/{id}", "/api/v1/operations/1", ""},
	} {
		path := c.path
		if path == "" {
			path = c.route
		}
		status, text := b.over(c.method, path, c.body)
		if status != http.StatusOK {
			t.Errorf("%s %s: %d %s", c.method, path, status, text)
			continue
		}
		if err := testutil.Meets(testutil.SchemaOf(doc, c.method, c.route), text); err != nil {
			t.Errorf("%s %s: %v", c.method, path, err)
		}
	}
}

// What is asked for happens: limits, size, and what may not be is refused with
// the way out.
func TestChangesOverHTTP(t *testing.T) {
	b := serving(t, webDisks)
	f, sectors := b.frontEnd("v")
	if f == nil || sectors != 2048 {
		t.Fatalf("%d sectors", sectors)
	}
	for _, c := range []struct {
		path, body string
		status     int
		says       string
	}{
		{"a/throttle", `{"limits":"iops-total=77"}`, 200, "iops-total=77"},
		{"a/throttle", `{"limits":"iops=77"}`, 400, "iops"},
		{"b/throttle", `{"limits":"iops-total=77"}`, 409, "--throttle"},
		{"b/resize", `{"size":"4M"}`, 200, "4 MiB (4194304 bytes) now, it had 1048576"},
		{"b/resize", `{"size":"1M"}`, 409, "shrink"},
		{"b/resize", `{"size":"1M","shrink":true}`, 200, "1 MiB"},
		{"b/resize", `{"size":"much"}`, 400, "much"},
		{"b/resize", `{"size":"8M","preallocation":"some"}`, 400, "falloc"},
		{"b/resize", `{"size":"8M"}`, 200, "8 MiB"},
		{"c/resize", `{"size":"8M"}`, 409, "read"},
		{"d/flush", ``, 404, "a, b, c"},
	} {
		method := "POST"
		if strings.HasSuffix(c.path, "throttle") {
			method = "PUT"
		}
		if status, text := b.over(method, "/api/v1/disks/"+c.path+"?wait=30s", c.body); status != c.status || !strings.Contains(text, c.says) {
			t.Errorf("%s %s: %d %s", c.path, c.body, status, text)
		}
	}
	if _, text := b.over("GET", "/api/v1/disks/a", ""); !strings.Contains(text, `"throttle": "iops-total=77"`) {
		t.Error(text)
	}
	if c := b.mustDial("b"); c.Size() != 8<<20 {
		t.Errorf("a new client sees %d bytes", c.Size())
	}
}

// While storage keeps a flush waiting, everything that can be asked for is
// answered, a reload that waits for it included.
func TestAnswersWhileStorageHangs(t *testing.T) {
	b := serving(t, `
disks:
  - name: slow
    node: {driver: fault, op: flush, errno: none, delay-ns: 4000000000, file: {driver: mem, size: 1M}}
  - {name: a, path: 'mem:1M', throttle: iops-total=1000}
http: unix:DIR/h
`)
	mark(t, b.mustDial("slow"), 1)
	_, text := b.over("POST", "/api/v1/disks/slow/flush", "")
	var op api.Operation
	if err := json.Unmarshal([]byte(text), &op); err != nil || op.State != api.StateRunning {
		t.Fatalf("%v: %s", err, text)
	}
	reloaded := make(chan error, 1)
	go func() { // closes the slow disk, which flushes it
		reloaded <- b.reload("disks: [{name: a, path: 'mem:1M', throttle: iops-total=1000}]\nhttp: unix:DIR/h\n")
	}()
	for range 3 {
		for _, path := range []string{"/api/v1/status", "/api/v1/disks", "/api/v1/disks/a", "/metrics", "/openapi.json", "/healthz", "/"} {
			if status, text := b.over("GET", path, ""); status != 200 {
				t.Errorf("%s: %d %s", path, status, text)
			}
		}
		if status, text := b.over("PUT", "/api/v1/disks/a/throttle?wait=0s", `{"limits":"iops-total=77"}`); status != 200 && status != 202 {
			t.Errorf("%d %s", status, text)
		}
	}
	if _, text := b.over("GET", "/api/v1/operations/"+op.ID, ""); !strings.Contains(text, api.StateRunning) {
		t.Errorf("storage was done before all had been asked for: %s", text)
	}
	if err := <-reloaded; err != nil {
		t.Error(err)
	}
	for !strings.Contains(text, api.StateDone) {
		_, text = b.over("GET", "/api/v1/operations/"+op.ID, "")
	}
	if _, text := b.over("GET", "/api/v1/disks", ""); strings.Contains(text, `"name": "slow"`) {
		t.Error("a disk that is gone is still listed")
	}
}

// Metrics are in Prometheus' form and count what was done.
func TestMetrics(t *testing.T) {
	b := serving(t, webDisks)
	mark(t, b.mustDial("a"), 1)
	_, text := b.over("GET", "/metrics", "")
	for _, want := range []string{
		`platter_requests_total{disk="a",export="a",op="write"} 1`,
		`platter_request_duration_seconds_count{disk="a",export="a",op="write"} 1`,
		`platter_disk_size_bytes{disk="b"} 1.048576e+06`,
		`platter_disk_read_only{disk="c"} 1`,
		`platter_throttle_waits_total{disk="a"} 0`,
		`platter_disk_alignment_bytes{disk="a",of="optimal_memory"} 4096`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("lacks %s", want)
		}
	}
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "platter_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}

// An address that others reach needs a token, and a token some length.
func TestHTTPIsGuarded(t *testing.T) {
	dir := short(t)
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, c := range []struct{ text, says string }{
		{"http: ':0'", "http-token"},
		{"http: localhost", "port"},
		{"http: systemd", "service manager"},
		{"http: 'localhost:0'\nhttp-token: " + write("short", "abc\n"), "openssl rand"},
		{"http: 'localhost:0'\nhttp-token: " + dir + "/none", "no such file"},
	} {
		l, err := tryStart(t, dir, c.text)
		if err == nil {
			t.Errorf("%s: started", c.text)
			_ = l.Stop(context.Background())
		} else if !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.text, err)
		}
	}
	d, err := tryStart(t, dir, "http: ':0'\nhttp-token: "+write("good", "a token of some length\n"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Stop(context.Background()) }()
	_, port, err := net.SplitHostPort(strings.TrimSuffix(strings.TrimPrefix(d.Ready().HTTP, "http://"), "/"))
	if err != nil {
		t.Fatal(err)
	}
	for token, want := range map[string]int{"": 401, "a token of some length": 200} {
		q, err := http.NewRequestWithContext(t.Context(), "GET", "http://localhost:"+port+"/api/v1/status", nil)
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Authorization", "Bearer "+token)
		a, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		a.Body.Close()
		if a.StatusCode != want {
			t.Errorf("token %q: %d", token, a.StatusCode)
		}
	}
}

// tryStart starts a daemon with one disk, or says why not.
func tryStart(t *testing.T, dir, text string) (*Daemon, error) {
	t.Helper()
	l, err := configOf("disks: ['mem:1M']\nlisten: unix:" + dir + "/s\n" + text)
	if err != nil {
		return nil, err
	}
	return Start(t.Context(), l, slog.New(slog.DiscardHandler))
}
