package process

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

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
	_, err := Start("false", Command{Args: []string{"sh", "-c", "echo no such luck; exit 3"}, Socket: filepath.Join(dir, "s")})
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
	s := &Process{Name: "sleep", Pid: cmd.Process.Pid}
	if !running(s.Pid) {
		t.Fatal("does not run")
	}
	if err := s.End(); err != nil {
		t.Fatal(err)
	}
	if running(s.Pid) {
		t.Error("still running after end")
	}
}
