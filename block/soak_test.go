package block_test

import (
	"bytes"
	"os"
	"sync"
	"testing"

	"github.com/platter-storage/platter/block"
	bt "github.com/platter-storage/platter/block/blocktest"
)

// Eight writers of the eight sectors of one block, at once: none loses a
// write, of 100,000 each in a soak.
func TestA6EightWritersOfOneBlock(t *testing.T) {
	rounds := uint64(2000)
	if os.Getenv("PLATTER_SOAK") != "" {
		rounds = 100_000
	}
	for _, fast := range []bool{false, true} {
		e, c := emulate(t, bt.EmulatorConfig{Limits: blocks(), Size: 64 << 10, Fast: fast})
		e.KeepCalls(false)
		old := bt.Pattern(make([]byte, 64<<10), 1)
		e.Fill(old)
		var wg sync.WaitGroup
		for w := range int64(8) {
			mem, got := bt.Memory(t, 512), bt.Memory(t, 512)
			off := 4096 + w*512
			// Half of them through an edge of their own.
			c := c
			if w%2 == 0 {
				c = bt.NewClient(t, bt.Edge(t, c.Child.Instance()))
			}
			wg.Go(func() {
				for i := range rounds {
					bt.Pattern(mem, uint64(w)<<32|i)
					if err := c.Write(off, 0, mem); err != nil {
						t.Error(err)
						return
					}
					if err := c.Read(off, got); err != nil || !bytes.Equal(got, mem) {
						t.Errorf("writer %d lost write %d (%v)", w, i, err)
						return
					}
				}
				copy(old[off:], mem)
			})
		}
		wg.Wait()
		expectContent(t, e, 0, old)
	}
}

// Concurrent random requests while the storage's limits change under them: no
// byte is wrong. A request that meets two changes may fail.
func TestModelWithChangingLimits(t *testing.T) {
	sets := []block.Limits{*sectors(), *blocks(), *block.ByteLimits()}
	bt.Model(t, func(t testing.TB) []*block.Child {
		e, c := emulate(t, bt.EmulatorConfig{Limits: sectors(), Fast: true, WriteFlags: block.FUA})
		e.OnCall(200, func(n int) { e.SetLimits(sets[n%len(sets)], n%2 == 0) })
		return []*block.Child{c.Child, bt.Edge(t, c.Child.Instance())}
	}, bt.ModelConfig{Ops: 3000, Faults: true})
}

// The same with errors of all kinds: what failed may have happened or not, and
// everything else is as it was written.
func TestModelWithFaults(t *testing.T) {
	bt.Model(t, func(t testing.TB) []*block.Child {
		e, c := emulate(t, bt.EmulatorConfig{Limits: blocks(), Fast: true})
		randomFaults(e)
		return []*block.Child{c.Child}
	}, bt.ModelConfig{Ops: 3000, Faults: true})
}

// And in a stack whose upper window is unaligned for the lower: two edges pad,
// bounce and serialise, from a pool for one request.
func TestModelOnUnalignedStack(t *testing.T) {
	var e *bt.Emulator
	bt.Model(t, func(t testing.TB) []*block.Child {
		var below *bt.Client
		e, below = emulateIn(t, bt.NewEnvLimit(t, 1<<20), bt.EmulatorConfig{Limits: blocks(), Fast: true, WriteFlags: block.FUA})
		top := stack(t, below, 512, sectors())
		return []*block.Child{top.Child, bt.Edge(t, top.Child.Instance())}
	}, bt.ModelConfig{Ops: 2000, Workers: 8, Durable: func() []byte { return e.Durable()[512:] }})
}

// One list of operations, many ways to serve it: the same content. The fast
// lane is declined at random in half of them.
func TestLanesAndLimitsGiveEqualContent(t *testing.T) {
	variants := map[string]func(t testing.TB) []*block.Child{}
	for name, l := range map[string]*block.Limits{"bytes": block.ByteLimits(), "sectors": sectors(), "blocks": blocks(),
		"few": limits(func(l *block.Limits) {
			l.ReadAlign, l.WriteAlign, l.MinMem, l.MaxSegments, l.MaxTransfer, l.ZeroAlign = 512, 4096, 4, 2, 12<<10, 65536
		})} {
		for lane, decline := range map[string]func(rand func() uint64) bool{
			"fast": nil, "slow": func(func() uint64) bool { return false }, "either": func(rand func() uint64) bool { return rand()&1 == 0 },
		} {
			variants[name+", "+lane] = func(t testing.TB) []*block.Child {
				env := bt.NewEnv(t)
				if decline != nil {
					rand := bt.NewRand(7)
					env.FastLane = func() bool { return decline(rand) }
				}
				_, c := emulateIn(t, env, bt.EmulatorConfig{Limits: l, Fast: true, WriteFlags: block.FUA, NoZero: l.MaxSegments == 2})
				return []*block.Child{c.Child}
			}
		}
		variants[name+", stack"] = func(t testing.TB) []*block.Child {
			_, c := emulate(t, bt.EmulatorConfig{Limits: l, Fast: true, Size: 1<<20 + 4096})
			return []*block.Child{stack(t, c, 4096, l).Child}
		}
	}
	bt.Same(t, variants, bt.ModelConfig{Ops: 400})
}
