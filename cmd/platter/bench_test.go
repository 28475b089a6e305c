package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/platter-storage/platter/workload"
)

func runBench(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := newRoot()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetArgs(append([]string{"bench"}, args...))
	err := cmd.Execute()
	return out.String(), err
}

// A directory is left as it was; the two configurations make the same requests.
func TestBenchDirectory(t *testing.T) {
	dir, html := t.TempDir(), filepath.Join(t.TempDir(), "x.html")
	out, err := runBench(t, dir, "--profile", "mail-server-8k", "--scale", "0.001", "--threads", "2", "--rounds", "2", "--vs", "linearise=always", "--json", "--html", html)
	if err != nil {
		t.Fatal(err)
	}
	var r workload.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Rows) != 2 || len(r.Rows[0].Runs) != 2 || len(r.Rows[1].Runs) != 2 || r.Ratio <= 0 {
		t.Fatalf("%s", out)
	}
	a, b := r.Rows[0].Runs[0], r.Rows[1].Runs[1]
	if a.Read != b.Read || a.Written != b.Written || a.Read == 0 || a.Written == 0 {
		t.Errorf("%d and %d bytes, then %d and %d", a.Read, a.Written, b.Read, b.Written)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v (%v)", left, err)
	}
	if st, err := os.Stat(html); err != nil || st.Size() == 0 {
		t.Errorf("no page: %v", err)
	}
}

// What holds data is written to only with --yes; reading needs no permission.
func TestBenchKeepsData(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	data := bytes.Repeat([]byte("keep me "), 1<<18)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := runBench(t, path, "--profile", "random-write-8k", "--threads", "1", "--scale", "0.0001"); err == nil {
		t.Error("wrote over a file unasked")
	}
	if _, err := runBench(t, path, "--profile", "random-read-8k", "--threads", "1", "--scale", "0.0001"); err != nil {
		t.Errorf("reading: %v", err)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, data) {
		t.Errorf("the file has changed (%v)", err)
	}
	if _, err := runBench(t, path, "--profile", "random-write-8k", "--threads", "1", "--scale", "0.0001", "--yes"); err != nil {
		t.Errorf("with --yes: %v", err)
	}
	if got, _ := os.ReadFile(path); bytes.Equal(got, data) || len(got) != len(data) {
		t.Error("with --yes nothing was written, or the size has changed")
	}
}

// Mistakes on the command line are told before anything is touched.
func TestBenchUsage(t *testing.T) {
	for _, a := range [][]string{{"null:1G"}, {"null:1G", "--profile", "x"}, {"null:1G", "--profile", "readers-8k", "--vs", "x"}, {"null:1G", "--profile", "readers-8k", "--rounds", "-1"}, {"null:1M", "--profile", "readers-8k", "--scale", "1"}, {"null:1G", "--profile", "readers-8k", "--shape", "x"}} {
		if _, err := runBench(t, a...); err == nil {
			t.Errorf("%v was run", a)
		}
	}
	if _, err := runBench(t, "null:1G", "--profile", "readers-8k", "--scale", "0.001"); err != nil {
		t.Errorf("a URI: %v", err)
	}
}
