package mem

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/sys"
)

// resident is the memory in bytes that backs the mapping that holds b.
func resident(t *testing.T, b []byte) int64 {
	t.Helper()
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	at, inside := uint64(sys.Addr(b)), false
	for sc := bufio.NewScanner(f); sc.Scan(); {
		var from, to uint64
		var kib int64
		if n, _ := fmt.Sscanf(sc.Text(), "%x-%x ", &from, &to); n == 2 && !strings.Contains(strings.Fields(sc.Text())[0], ":") {
			inside = from <= at && at < to
		} else if n, _ := fmt.Sscanf(sc.Text(), "Rss: %d kB", &kib); n == 1 && inside {
			return kib << 10
		}
	}
	t.Fatal("the mapping is not in smaps")
	return 0
}

// Memory that was discarded, or zeroed with leave to unmap, goes back to the
// system; reading what was never written takes none.
func TestMemoryIsGivenBack(t *testing.T) {
	cl := openMem(t, "64M")
	b := make([]byte, 16<<20)
	for i := range b {
		b[i] = 1
	}
	fill := func() {
		t.Helper()
		for off := int64(0); off < 64<<20; off += int64(len(b)) {
			if err := cl.Write(off, 0, b); err != nil {
				t.Fatal(err)
			}
		}
	}
	m := memOf(cl.Child.Instance())
	if err := cl.Read(0, b[:1<<20]); err != nil || resident(t, m) != 0 {
		t.Errorf("reading holes made %d bytes resident (%v)", resident(t, m), err)
	}
	b[0] = 1
	for name, f := range map[string]func() error{
		"discard":  func() error { return cl.Discard(0, 64<<20) },
		"zero":     func() error { return cl.Zero(0, 64<<20, block.MayUnmap) },
		"truncate": func() error { return cl.Truncate(0) },
	} {
		if err := cl.Truncate(64 << 20); err != nil {
			t.Fatal(err)
		}
		fill()
		if n := resident(t, m); n < 64<<20 {
			t.Fatalf("after filling 64 MiB %d bytes are resident", n)
		}
		if err := f(); err != nil || resident(t, m) != 0 {
			t.Errorf("%s: %d bytes are still resident (%v)", name, resident(t, m), err)
		}
	}
}
