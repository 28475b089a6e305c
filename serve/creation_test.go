package serve

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestNothingWasSeenWhileAFileWasWritten: how far a file is, by its space.
func TestNothingWasSeenWhileAFileWasWritten(t *testing.T) {
	name := filepath.Join(t.TempDir(), "d.img")
	if got := written(name, 1<<20); got != "being made" {
		t.Errorf("before the file is there: %s", got)
	}
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(1 << 20); err != nil {
		t.Fatal(err)
	}
	for have, want := range map[int64]string{0: "0 % written", 1 << 19: "50 % written", 1 << 20: "100 % written"} {
		if err := f.Truncate(0); err != nil {
			t.Fatal(err)
		}
		if have > 0 {
			if err := unix.Fallocate(int(f.Fd()), 0, 0, have); err != nil {
				t.Fatal(err)
			}
		}
		if got := written(name, 1<<20); got != want {
			t.Errorf("%d bytes: %s, want %s", have, got, want)
		}
	}
}
