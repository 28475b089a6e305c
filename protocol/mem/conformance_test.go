package mem

import (
	"testing"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/block/blocktest"
)

func TestConformance(t *testing.T) {
	for _, size := range []string{"1M", "1000001"} {
		blocktest.Run(t, func(t testing.TB) *block.Child {
			return blocktest.Edge(t, blocktest.Open(t, blocktest.NewEnv(t), block.Values{"driver": "mem", "size": size}, nil))
		}, blocktest.Options{NoAllocations: true})
	}
}

// Requests through two edges and both lanes, declined at random.
func TestModel(t *testing.T) {
	blocktest.Model(t, func(t testing.TB) []*block.Child {
		env := blocktest.NewEnv(t)
		rand := blocktest.NewRand(1)
		env.FastLane = func() bool { return rand()&1 == 0 }
		in := blocktest.Open(t, env, block.Values{"driver": "mem", "size": "500001"}, nil)
		return []*block.Child{blocktest.Edge(t, in), blocktest.Edge(t, in)}
	}, blocktest.ModelConfig{Ops: 4000, MaxLen: 200 << 10, Area: 400 << 10})
}
