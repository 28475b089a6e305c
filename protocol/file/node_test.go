package file

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

func TestRoundTripEveryCacheMode(t *testing.T) {
	for _, cache := range []string{"auto", "none", "writeback", "writethrough", "directsync", "unsafe"} {
		t.Run(cache, func(t *testing.T) {
			path := makeDisk(t, t.TempDir(), 1<<20, "")
			e := openEdge(t, path, "cache="+cache)
			want := pattern(aligned(t, 70000, 3), 1)
			if err := e.write(12345, want); err != nil {
				t.Fatal(err)
			}
			if err := e.flush(); err != nil {
				t.Fatal(err)
			}
			got := aligned(t, 70000, 1)
			if err := e.read(12345, got); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Error("what was read is not what was written")
			}
			onDisk, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if len(onDisk) != 1<<20 || !bytes.Equal(onDisk[12345:82345], want) {
				t.Errorf("the file has %d bytes, and not what was written", len(onDisk))
			}
			t.Log("\n" + strings.Join(e.n.explain(), "\n"))
		})
	}
}
