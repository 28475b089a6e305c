package sim_test

import (
	"os"
	"strings"
	"testing"

	"github.com/platter-storage/platter/block"
	_ "github.com/platter-storage/platter/format/all"
	"github.com/platter-storage/platter/internal/race"
	"github.com/platter-storage/platter/sim"
)

// raw is a proof of the plainest format.
func raw(seed uint64) sim.Proof {
	return sim.Proof{
		Driver: "raw", Storage: 64 * sim.Sector, Sectors: 64, Steps: 30, Longest: 16, Seed: seed, PerMoment: 16, Deep: 16,
		Weights: sim.Weights{Write: 10, FUA: 2, Zero: 3, Discard: 2, Flush: 3, Reopen: 1, Burst: 1},
	}
}

// seeds is how many a test tries: fewer under the race detector, where each
// costs much more.
func seeds() uint64 {
	switch {
	case os.Getenv("PLATTER_SOAK") != "":
		return 400
	case race.Enabled:
		return 2
	}
	return 20
}

func TestRaw(t *testing.T) {
	var sum sim.Result
	for seed := range seeds() {
		r, err := raw(seed).Run()
		if err != nil {
			t.Fatal(err)
		}
		sum.Add(r)
	}
	t.Logf("%+v", sum)
	if sum.States < 1000*int(seeds()) || sum.Deep == 0 {
		t.Errorf("only %d states, %d of them used further", sum.States, sum.Deep)
	}
}

// A format that does not flush is found out.
func TestRawThatDoesNotFlush(t *testing.T) {
	for seed := range min(seeds(), 3) {
		p := raw(seed)
		p.Between = func(c *block.Child) block.Node {
			return sim.Through(c, func(*block.Req) error { return nil })
		}
		if _, err := p.Run(); err == nil || !strings.Contains(err.Error(), "sector") {
			t.Errorf("seed %d: it is not found: %v", seed, err)
		}
	}
}
