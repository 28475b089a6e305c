package nbd

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// noLeaks fails the test if, when it has cleaned up, there are more
// descriptors or goroutines of this package than now. Call it before what is
// to be cleaned up is made.
func noLeaks(t testing.TB) {
	t.Helper()
	startPoller(t)
	fds := descriptors(t)
	t.Cleanup(func() {
		var left string
		for range 6000 { // a minute: test machines are slow
			runtime.Gosched()
			if left = leftovers(t, fds); left == "" {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Error(left)
	})
}

// startPoller makes the runtime open the descriptors that it keeps.
func startPoller(t testing.TB) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

func leftovers(t testing.TB, fds int) string {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	for _, g := range strings.Split(string(buf), "\n\n") {
		if strings.Contains(g, "export/nbd.(*conn)") || strings.Contains(g, "export/nbd.(*Server)") {
			return "a goroutine is left:\n" + g
		}
	}
	if n := descriptors(t); n > fds {
		return fmt.Sprintf("%d descriptors are open, there were %d", n, fds)
	}
	return ""
}

func descriptors(t testing.TB) int {
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}

// sparseFile makes a file without content.
func sparseFile(t testing.TB, size int64) string {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "disk")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}
