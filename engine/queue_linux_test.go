package engine

import (
	"syscall"
	"testing"

	"github.com/platter-storage/platter/internal/sys"
)

var testModes = []struct {
	name  string
	flags FileFlags
	align int
}{
	{"direct", Direct, 4096},
	{"direct registrable", Direct | Registrable, 512},
	{"buffered", 0, 1},
}

func kindsHere() []Kind { return []Kind{Uring, Native, Threads, Inline} }

func openAgain(t testing.TB, name string, flags FileFlags) *File {
	mode := syscall.O_RDWR | syscall.O_CLOEXEC
	if flags&Direct != 0 {
		mode |= syscall.O_DIRECT
	}
	fd, err := syscall.Open(name, mode, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	return OpenFile(fd, flags)
}

// aligned is n bytes at a multiple of 4096.
func aligned(n int) []byte {
	b := make([]byte, n+4096)
	skip := int(-sys.Addr(b) & 4095)
	return b[skip : skip+n : skip+n]
}
