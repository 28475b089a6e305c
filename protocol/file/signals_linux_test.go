package file

import (
	"bytes"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"
)

// TestF11SignalsDuringRequests: a signal a millisecond to the process while
// every engine moves data: no error, nothing lost, nothing twice.
func TestF11SignalsDuringRequests(t *testing.T) {
	got := make(chan os.Signal, 1)
	signal.Notify(got, syscall.SIGUSR1)
	defer signal.Stop(got)
	stop := make(chan struct{})
	sent := make(chan int)
	go func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-stop:
				sent <- n
				return
			case <-tick.C:
				_ = syscall.Kill(os.Getpid(), syscall.SIGUSR1)
			}
		}
	}()
	for _, m := range []string{"aio=auto,cache=none", "aio=io_uring,cache=none", "aio=native,cache=none", "aio=threads,cache=none", "aio=io_uring,cache=writeback", "aio=threads,cache=directsync"} {
		e := openEdge(t, makeDisk(t, t.TempDir(), 1<<20, ""), m)
		data, back := aligned(t, 1<<20, 0), aligned(t, 1<<20, 0)
		for i := range 40 {
			if err := e.write(0, pattern(data, i)); err != nil {
				t.Fatalf("%s: write: %v", m, err)
			}
			if err := e.flush(); err != nil {
				t.Fatalf("%s: flush: %v", m, err)
			}
			if err := e.read(0, back); err != nil || !bytes.Equal(back, data) {
				t.Fatalf("%s: read: %v, or other content", m, err)
			}
		}
	}
	close(stop)
	if n := <-sent; n == 0 {
		t.Error("no signal was sent")
	}
}
