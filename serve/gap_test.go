package serve

import (
	"strings"
	"testing"

	"github.com/platter-storage/platter/internal/testutil"
)

// stuck is a reader who does not read before it is told to.
type stuck struct {
	testutil.Output
	read chan struct{}
}

func (s *stuck) Write(b []byte) (int, error) {
	<-s.read
	return s.Output.Write(b)
}

// TestOutletLeavesOutWhatNobodyReads: a bounded number of lines waits, the next
// are counted, and where they would stand is said how many there were.
func TestOutletLeavesOutWhatNobodyReads(t *testing.T) {
	s := &stuck{read: make(chan struct{})}
	o := &outlet{w: s, lines: make(chan outletLine, outletLines), gap: func(n int64) []byte { return []byte(strings.Repeat("x", int(n)) + "\n") }}
	go o.run()
	taken := 0
	for {
		if _, err := o.Write([]byte("line\n")); err != nil {
			break
		}
		taken++
	}
	// One may be on its way already.
	if taken < outletLines || taken > outletLines+1 {
		t.Errorf("%d lines were taken, want %d", taken, outletLines)
	}
	more := 0
	for range 3 {
		if _, err := o.Write([]byte("line\n")); err != nil {
			more++
		}
	}
	close(s.read)
	o.end()
	got := s.String()
	if n := strings.Count(got, "line\n"); n != taken+3-more || strings.Count(got, "x") != 1+more || !strings.HasSuffix(got, "line\n") {
		t.Errorf("%d lines were written, want %d, and %d said to be missing, want %d", n, taken+3-more, strings.Count(got, "x"), 1+more)
	}
}
