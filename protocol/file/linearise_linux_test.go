package file

import (
	"slices"
	"strings"
	"testing"

	"github.com/platter-storage/platter/block"
)

// TestC7: what is decided changes the engine for nothing: the same one is chosen
// for the same reason, and both ways hand their requests to it.
func TestC7EngineStays(t *testing.T) {
	path := makeDisk(t, t.TempDir(), 1<<20, "")
	var engines []string
	for mode, want := range map[string]uint64{"always": 2, "never": 0} {
		e := openEdge(t, path, "cache=none,aio=io_uring,locking=off,linearise="+mode)
		v := block.Vec{aligned(t, 4096, 0), aligned(t, 8192, 0)[4096:]}
		for _, op := range []block.Op{block.OpRead, block.OpWrite} {
			rq := e.q.Begin()
			var err error
			if op == block.OpRead {
				err = e.Preadv(rq, 0, v, 0)
			} else {
				err = e.Pwritev(rq, 0, v, 0)
			}
			e.q.End(rq, op, v.Len(), err)
			if err != nil {
				t.Fatal(err)
			}
		}
		s := e.q.Stats()
		if got := s.Path(block.PathLinearised); got != want {
			t.Errorf("linearise=%s: %d of 2 requests", mode, got)
		}
		if s.NodeCalls != 2 || s.NodeSegments != 4-want {
			t.Errorf("linearise=%s: %d calls with %d elements", mode, s.NodeCalls, s.NodeSegments)
		}
		lines := e.Info().Abilities.Explain()
		i := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "engine: ") })
		if i < 0 {
			t.Fatalf("no engine among %q", lines)
		}
		engines = append(engines, lines[i])
	}
	if engines[0] != engines[1] {
		t.Errorf("engines differ: %q", engines)
	}
}
