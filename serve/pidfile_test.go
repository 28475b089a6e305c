package serve

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func TestPIDFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pid")
	// A dead process's file, longer than what replaces it.
	if err := os.WriteFile(path, []byte("999999999999999\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	p, err := takePIDFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(path); string(b) != strconv.Itoa(os.Getpid())+"\n" {
		t.Errorf("the file holds %q", b)
	}
	if _, err := takePIDFile(path); err == nil || !strings.Contains(err.Error(), self()) || !strings.Contains(err.Error(), "is alive") {
		t.Errorf("second holder: %v", err)
	}
	p.release()
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the file is left behind: %v", err)
	}
}

func TestPIDFileLeavesAnothers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pid")
	p, err := takePIDFile(path)
	if err != nil {
		t.Fatal(err)
	}
	os.Remove(path)
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	p.release()
	if _, err := os.Stat(path); err != nil {
		t.Errorf("another's file was removed: %v", err)
	}
}

func TestPIDFileIsNoLink(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(dir, "precious")
	if err := os.WriteFile(target, []byte("data"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, filepath.Join(dir, "pid")); err != nil {
		t.Fatal(err)
	}
	if _, err := takePIDFile(filepath.Join(dir, "pid")); err == nil {
		t.Error("a symbolic link is followed")
	}
	if b, _ := os.ReadFile(target); string(b) != "data" {
		t.Errorf("the link's target holds %q", b)
	}
}
