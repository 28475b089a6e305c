package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/platter-storage/platter/bench/sample"
)

func TestPatternIsTheSameInAnyPieces(t *testing.T) {
	whole := make([]byte, 256)
	pattern(3)(whole, 1000)
	for first := range 30 {
		for n := range 30 {
			part := make([]byte, n)
			pattern(3)(part, int64(1000+first))
			if !bytes.Equal(part, whole[first:first+n]) {
				t.Fatalf("%d bytes at %d differ from the same bytes of the whole", n, 1000+first)
			}
		}
	}
	other := make([]byte, 256)
	pattern(4)(other, 1000)
	if bytes.Equal(other, whole) {
		t.Error("another salt gives the same bytes")
	}
}

func TestProcessorTimeOfATree(t *testing.T) {
	proc := t.TempDir()
	for pid, stat := range map[string]string{
		"10":   "10 (a) b) (c) S 1 0 0 0 0 0 0 0 0 0 100 20 3 4 20 0 1 0\n",
		"11":   "11 (x) S 10 0 0 0 0 0 0 0 0 0 1000 0 0 0 20 0 1 0\n",
		"12":   "12 (y) S 11 0 0 0 0 0 0 0 0 0 10000 0 0 0 20 0 1 0\n",
		"99":   "99 (z) S 1 0 0 0 0 0 0 0 0 0 100000 0 0 0 20 0 1 0\n",
		"self": "",
	} {
		if err := os.MkdirAll(filepath.Join(proc, pid), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(proc, pid, "stat"), []byte(stat), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	used, err := treeCPU(proc, 10)
	if want := 11127 * clockTick; err != nil || used != want {
		t.Errorf("used %v, %v; want %v: the process, its children and those that ended, and nobody else", used, err, want)
	}
	if _, err := treeCPU(proc, 5); err == nil {
		t.Error("no error for a process that is not there")
	}
	if _, _, err := parseStat("10 (a) S 1 2"); err == nil {
		t.Error("no error for a line that is too short")
	}
}

func TestServerThatEndsAtOnceIsAnErrorWithItsWords(t *testing.T) {
	dir := t.TempDir()
	_, err := start("false", "", command{args: []string{"sh", "-c", "echo no such luck; exit 3"}, socket: filepath.Join(dir, "s")})
	if err == nil || !strings.Contains(err.Error(), "no such luck") {
		t.Errorf("error %v, want the server's words", err)
	}
}

func TestEndWaitsUntilTheServerIsGone(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go cmd.Wait()
	s := &server{name: "sleep", pid: cmd.Process.Pid}
	if !running(s.pid) {
		t.Fatal("does not run")
	}
	if err := s.end(); err != nil {
		t.Fatal(err)
	}
	if running(s.pid) {
		t.Error("still running after end")
	}
}

func TestMakeFileIsWrittenInFull(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	const size = 2*mib + 4096
	for _, cached := range []bool{false, true} {
		if err := makeFile(name, size, cached); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		want := make([]byte, size)
		filled(want, 0)
		if !bytes.Equal(got, want) {
			t.Errorf("cached %v: the file does not hold the pattern", cached)
		}
	}
}

func TestFioReport(t *testing.T) {
	l, err := parseFio([]byte("fio: connected\n{\"jobs\":[{\"error\":0,\"read\":{\"total_ios\":500,\"runtime\":250}}]}\n"))
	if err != nil || l.ops != 500 || l.took != 250*time.Millisecond {
		t.Errorf("%d in %v, %v; want 500 in 250ms", l.ops, l.took, err)
	}
	for _, bad := range []string{"", "{}", `{"jobs":[{"error":5,"read":{"total_ios":1,"runtime":1}}]}`} {
		if _, err := parseFio([]byte(bad)); err == nil {
			t.Errorf("no error for %q", bad)
		}
	}
}

func TestChoose(t *testing.T) {
	got, err := choose("row", rows, func(r row) string { return r.name }, []string{"copy", "r4k-d1"})
	if err != nil || len(got) != 2 || got[0].name != "r4k-d1" {
		t.Errorf("got %+v, %v; want the two rows in the table's order", got, err)
	}
	if _, err := choose("row", rows, func(r row) string { return r.name }, []string{"nothing"}); err == nil || !strings.Contains(err.Error(), "r4k-4x16") {
		t.Errorf("error %v, want one that lists the rows", err)
	}
}

func outcomeOf(ours, peer, again float64) outcome {
	c := func(name string, rate float64) cell {
		return cell{Server: name, Rate: sample.Rounds{rate}, CPU: sample.Rounds{1e6 / rate}}
	}
	o := outcome{Row: "r4k-d1", Block: 4 * kib, Cells: []cell{c("platter", ours), c("slow", peer/2), c("fast", peer), c("platter-again", again)}}
	o.Cells[3].Again = true
	return o
}

func TestVerdictsAgainstTheBestPeer(t *testing.T) {
	for _, c := range []struct {
		ours, peer, again float64
		want              string
	}{
		{200, 100, 201, "rate 2.00x ahead, CPU 0.50x ahead"},
		{80, 100, 81, "rate 0.80x BEHIND, CPU 1.25x BEHIND"},
		{98, 100, 90, "rate 0.98x even, CPU 1.02x even"},
	} {
		o := outcomeOf(c.ours, c.peer, c.again)
		v := o.verdicts()
		if v[0] != c.want || v[1] != "" || v[2] != "fastest peer, least CPU" || !strings.HasPrefix(v[3], "(A/A") {
			t.Errorf("%+v: verdicts %q, want %q first", c, v, c.want)
		}
		var out strings.Builder
		o.print(&out)
		if n := strings.Count(out.String(), "\n"); n != 4 || !strings.Contains(out.String(), c.want) {
			t.Errorf("printed %d lines:\n%s", n, out.String())
		}
	}
}

func TestServerThatDoesOtherwiseIsNotComparedWith(t *testing.T) {
	o := outcomeOf(100, 200, 100)
	o.Cells[2].Unlike = true
	if v := o.verdicts(); !strings.HasPrefix(v[0], "rate 1.00x") || v[2] != "not compared" || v[1] != "fastest peer, least CPU" {
		t.Errorf("verdicts %q", v)
	}
}

func TestRatesAreInTheRowsUnit(t *testing.T) {
	if got := (outcome{Block: 4 * kib}).rate(12345); got != "12.3k/s" {
		t.Errorf("small requests: %s", got)
	}
	if got := (outcome{Block: mib}).rate(2048); got != "2048 MiB/s" {
		t.Errorf("large requests: %s", got)
	}
}
