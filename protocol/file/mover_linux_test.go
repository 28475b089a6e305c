package file

import (
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/engine"
)

// TestEngineThatDoesNotStart: with aio=auto the next one carries the requests,
// and the reason says why; one that was named and does not start is an error.
func TestEngineThatDoesNotStart(t *testing.T) {
	var tried []engine.Kind
	only := func(works engine.Kind) func(engine.Kind) (*engine.Shared, error) {
		return func(k engine.Kind) (*engine.Shared, error) {
			tried = append(tried, k)
			if k != works {
				return nil, block.Errorf(syscall.EMFILE, "%v: no file descriptor is left", k)
			}
			return takeEngine(k)
		}
	}
	first, _, err := engine.Choose("auto", engine.FileFacts{Direct: true})
	if err != nil {
		t.Fatal(err)
	}
	s, reason, err := firstEngine("auto", engine.FileFacts{Direct: true}, only(engine.Threads))
	if err != nil {
		t.Fatal(err)
	}
	if err := leaveEngine(s, engine.OpenFile(-1, 0)); err != nil {
		t.Error(err)
	}
	if s.Kind() != engine.Threads || tried[0] != first || !slices.IsSorted(tried) {
		t.Errorf("tried %v and took %v", tried, s.Kind())
	}
	if first != engine.Threads && !strings.Contains(reason, "could not be started: no file descriptor is left") {
		t.Errorf("the reason is %q", reason)
	}
	tried = nil
	_, _, err = firstEngine("threads", engine.FileFacts{Direct: true}, only(engine.Uring))
	if !errors.Is(err, syscall.EMFILE) || !strings.Contains(err.Error(), "aio=threads: ") || len(tried) != 1 {
		t.Errorf("an engine that was named: %v, tried %v", err, tried)
	}
}

// TestNoDescriptorForAnEngine: the real thing. The limit leaves room for the
// files, but not for what a ring needs.
func TestNoDescriptorForAnEngine(t *testing.T) {
	path := makeDisk(t, t.TempDir(), 1<<20, "")
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	engine.Probe()
	c := config{path: path, direct: true, cacheName: "none", readOnly: true, locking: "off"}
	f, err := openLinux(&c, true)
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	lowest, err := syscall.Dup(f.fd)
	if err != nil {
		t.Fatal(err)
	}
	syscall.Close(lowest)
	low := before
	low.Cur = uint64(lowest)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	reason, err := f.startEngine("auto", false)
	_, _, forced := firstEngine("io_uring", engine.FileFacts{Direct: true}, takeEngine)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if err != nil || f.moves.engine.Kind() != engine.Threads || !strings.Contains(reason, "could not be started") {
		t.Errorf("error %v, reason %q", err, reason)
	}
	if forced == nil {
		t.Error("a ring that was asked for by name")
	}
}
