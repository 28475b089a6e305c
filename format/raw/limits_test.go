package raw

import (
	"testing"

	"github.com/platter-storage/platter/block"
)

// Two requests have each seen a change of the child's limits, and the one that
// has seen the first publishes last: what is in force stays the second.
func TestTheLastChangeOfLimitsStays(t *testing.T) {
	set := func(generation uint64, align uint32) *block.Limits {
		l := block.ByteLimits()
		l.ReadAlign, l.WriteAlign, l.Generation = align, align, generation
		return l
	}
	first, second, third := set(1, 512), set(2, 4096), set(3, 1024)
	n := &node{}
	for _, step := range []struct{ seen, want *block.Limits }{{first, first}, {second, second}, {first, second}, {second, second}, {third, third}} {
		n.followLimits(step.seen)
		if got := n.info.Limits(); got.Generation != step.want.Generation || got.WriteAlign != step.want.WriteAlign || n.seen.Load() != step.want {
			t.Errorf("after limits of generation %d: %d with alignment %d in force, want generation %d", step.seen.Generation, got.Generation, got.WriteAlign, step.want.Generation)
		}
	}
}
