package queue

import (
	"bytes"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/platter-storage/platter/"

// rare are functions of the packages on the path that no request passes, and
// what they may have: frames above 1 KiB, or memory cleared.
var rare = map[string]string{
	"block.(*Queue).Close":  "adds up the counters of a queue that ends",
	"engine.(*uring).Close": "forgets the watches",
}

// cleared are places where memory is cleared for a request, each because that
// is what was asked for.
var cleared = map[string]string{
	"emulate.go":     "write zeroes of a part of a block: its bytes",
	"vec.go":         "a read of zeroes: the guest's bytes",
	"track.go":       "pointers to requests that no longer wait",
	"slices.go":      "elements that were deleted from a list, by requests that end in error",
	"threads.go":     "references to requests that were handed to workers",
	"uring_linux.go": "watches, when a ring is closed",
	"blkconfig.go":   "the configuration space",
	"inflight.go":    "the records of a ring that is new, or given up",
}

var (
	textLine  = regexp.MustCompile(`^(\S+) STEXT .*locals=0x([0-9a-f]+)`)
	clearLine = regexp.MustCompile(`\(\S*?([^/\s]+\.go):\d+\)\s+(STOSQ|DUFFZERO|CALL\s+runtime\.(memclr|duffzero))`)
)

// No function on a request's path has a frame above 1 KiB, which would be
// cleared or touched each time, and none clears memory but where that is the
// request.
func TestB5FramesAndClearing(t *testing.T) {
	for _, pkg := range []string{"queue", "virtio", "block", "engine"} {
		cmd := exec.Command("go", "build", "-gcflags=-S", module+pkg)
		var out bytes.Buffer
		cmd.Stderr = &out
		if err := cmd.Run(); err != nil {
			t.Fatalf("go build %s: %v\n%.2000s", pkg, err, out.String())
		}
		functions, name := 0, ""
		for line := range strings.Lines(out.String()) {
			if m := textLine.FindStringSubmatch(line); m != nil {
				functions++
				name = strings.TrimPrefix(m[1], module)
				frame, err := strconv.ParseInt(m[2], 16, 64)
				if err != nil {
					t.Fatal(err)
				}
				if frame > 1024 && rare[name] == "" {
					t.Errorf("%s has a frame of %d bytes, want at most 1024", name, frame)
				}
			}
			if m := clearLine.FindStringSubmatch(line); m != nil && rare[name] == "" && cleared[m[1]] == "" {
				t.Errorf("%s clears memory: %s", name, strings.TrimSpace(line))
			}
		}
		if functions < 20 {
			t.Errorf("only %d functions of %s were seen: the listing has another form", functions, pkg)
		}
	}
}
