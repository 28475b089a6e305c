package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestEveryWayWritesTheWholeFile(t *testing.T) {
	for _, w := range ways {
		for _, shift := range shifts {
			name := filepath.Join(t.TempDir(), "file")
			const writes, block = 16, 4096
			if err := w.prepare(name, writes*block); err != nil {
				t.Fatal(err)
			}
			b, err := bufferAt(shift, block)
			if err != nil {
				t.Fatal(err)
			}
			write, finish, err := w.open(name)
			if err != nil {
				t.Fatalf("%s: %v", w.name, err)
			}
			for i := range writes {
				if err := write(b.part, int64(i)*block); err != nil {
					t.Fatalf("%s at +%d: %v", w.name, shift, err)
				}
			}
			if err := finish(); err != nil {
				t.Errorf("%s at +%d: %v", w.name, shift, err)
			}
			got, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, bytes.Repeat(b.part, writes)) {
				t.Errorf("%s at +%d: the file does not hold what was written", w.name, shift)
			}
		}
	}
}

func TestBufferStartsWhereItShould(t *testing.T) {
	for _, shift := range shifts {
		b, err := bufferAt(shift, 4096)
		if err != nil {
			t.Fatal(err)
		}
		if &b.whole[shift] != &b.part[0] || len(b.part) != 4096 {
			t.Errorf("shift %d: %d bytes at another place", shift, len(b.part))
		}
	}
}

func TestWriteCounter(t *testing.T) {
	if n, err := parseWrites(" 1 2 3 4 5555 6 7 8 9 10 11 12\n"); err != nil || n != 5555 {
		t.Errorf("%d, %v; want the fifth counter", n, err)
	}
	if _, err := parseWrites("1 2 3 4 5"); err == nil {
		t.Error("no error for too few counters")
	}
}

func TestWaysAreChosenByName(t *testing.T) {
	got, err := chooseWays("platter-sparse,write-growing")
	if err != nil || len(got) != 2 || got[0].name != "platter-sparse" {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := chooseWays("none"); err == nil || !strings.Contains(err.Error(), "write-sparse") {
		t.Errorf("error %v, want one that lists the ways", err)
	}
}
