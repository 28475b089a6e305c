//go:build !linux

package engine

import (
	"os"
	"testing"
)

var testModes = []struct {
	name  string
	flags FileFlags
	align int
}{{"buffered", 0, 1}}

func kindsHere() []Kind { return []Kind{Threads, Inline} }

func openAgain(t testing.TB, name string, flags FileFlags) *File {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return OpenFile(int(f.Fd()), flags)
}

func aligned(n int) []byte { return make([]byte, n) }
