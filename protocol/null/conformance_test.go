package null

import (
	"testing"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/block/blocktest"
)

func TestConformance(t *testing.T) {
	for _, vals := range []block.Values{{"driver": "null"}, {"driver": "null-co", "size": "1000001", "read-zeroes": "off"}, {"driver": "null-aio", "latency-ns": "1000"}} {
		blocktest.Run(t, func(t testing.TB) *block.Child {
			return blocktest.Edge(t, blocktest.Open(t, blocktest.NewEnv(t), vals, nil))
		}, blocktest.Options{Forgets: true, NoAllocations: vals["latency-ns"] == ""})
	}
}
