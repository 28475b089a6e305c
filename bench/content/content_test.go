package content

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func TestPatternIsTheSameInAnyPieces(t *testing.T) {
	whole := make([]byte, 256)
	Pattern(3)(whole, 1000)
	for first := range 30 {
		for n := range 30 {
			part := make([]byte, n)
			Pattern(3)(part, int64(1000+first))
			if !bytes.Equal(part, whole[first:first+n]) {
				t.Fatalf("%d bytes at %d differ from the same bytes of the whole", n, 1000+first)
			}
		}
	}
	other := make([]byte, 256)
	Pattern(4)(other, 1000)
	if bytes.Equal(other, whole) {
		t.Error("another salt gives the same bytes")
	}
}

func TestMakeFileIsWrittenInFull(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	const size = 2*mib + 4096
	for _, cached := range []bool{false, true} {
		if err := File(name, size, cached); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		want := make([]byte, size)
		Filled(want, 0)
		if !bytes.Equal(got, want) {
			t.Errorf("cached %v: the file does not hold the pattern", cached)
		}
	}
}
