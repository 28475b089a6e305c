package blocktest_test

import (
	"fmt"
	"testing"

	"github.com/platter-storage/platter/block"
	. "github.com/platter-storage/platter/block/blocktest"
)

// limits are sets that real storage has, and some that only the contract
// allows.
func limits() map[string]block.Limits {
	l := *block.ByteLimits()
	sector, big := l, l
	sector.ReadAlign, sector.WriteAlign, sector.SegmentAlign, sector.MinMem = 512, 512, 512, 512
	big.ReadAlign, big.WriteAlign, big.SegmentAlign, big.MinMem = 4096, 4096, 512, 512
	nvme := sector
	nvme.SegmentAlign, nvme.MinMem = 4, 4
	apart := sector
	apart.WriteAlign, apart.ZeroAlign, apart.DiscardAlign = 4096, 4096, 65536
	few := big
	few.MaxSegments, few.MaxTransfer, few.MaxZero, few.MaxDiscard = 3, 24<<10, 16<<10, 32<<10
	strange := l // memory stricter than offsets
	strange.ReadAlign, strange.WriteAlign, strange.SegmentAlign, strange.MinMem = 512, 512, 512, 4096
	huge := l
	huge.ReadAlign, huge.WriteAlign, huge.SegmentAlign, huge.MinMem = 65536, 65536, 65536, 65536
	huge.OptMem, huge.MaxTransfer = 65536, 192<<10
	wideZero := sector
	wideZero.ZeroAlign, wideZero.MaxZero = 65536, 65536
	readWide := l
	readWide.ReadAlign, readWide.WriteAlign = 4096, 1
	one := sector
	one.MaxSegments = 1
	return map[string]block.Limits{
		"bytes": l, "512": sector, "4096": big, "nvme": nvme, "read 512 write 4096": apart, "few segments": few,
		"memory 4096 blocks 512": strange, "64K": huge, "zero 64K": wideZero, "read 4096 write 1": readWide, "one segment": one,
	}
}

// variants are emulators by what they serve natively.
func variants() map[string]EmulatorConfig {
	return map[string]EmulatorConfig{
		"all native":   {WriteFlags: block.FUA, ZeroFlags: block.FUA | block.MayUnmap},
		"none native":  {NoZero: true, NoDiscard: true},
		"fua zeroes":   {ZeroFlags: block.FUA},
		"fua writes":   {WriteFlags: block.FUA},
		"fast":         {Fast: true, WriteFlags: block.FUA, ZeroFlags: block.MayUnmap},
		"odd size":     {Size: 1<<20 - 3000, Fast: true},
		"odd size fua": {Size: 1<<20 + 1, WriteFlags: block.FUA, ZeroFlags: block.MayUnmap},
	}
}

func eachEmulator(t *testing.T, f func(t *testing.T, cfg EmulatorConfig)) {
	for ln, l := range limits() {
		for vn, cfg := range variants() {
			cfg.Limits = &l
			if cfg.Size == 0 {
				cfg.Size = 1 << 20
			}
			t.Run(fmt.Sprintf("%s, %s", ln, vn), func(t *testing.T) { f(t, cfg) })
		}
	}
}

func openEmulator(t testing.TB, cfg EmulatorConfig) (*Emulator, *Client) {
	e := NewEmulator(t, cfg)
	return e, NewClient(t, Edge(t, Attach(t, NewEnv(t), e, "disk")))
}

// The edge passes conformance over every emulated storage, which asserts that
// no request breaks its limits.
func TestRunOnEmulator(t *testing.T) {
	eachEmulator(t, func(t *testing.T, cfg EmulatorConfig) {
		if cfg.WriteFlags != 0 && !cfg.Fast || cfg.ZeroFlags == block.FUA {
			return // the model test has these
		}
		Run(t, func(t testing.TB) *block.Child {
			_, c := openEmulator(t, cfg)
			return c.Child
		}, Options{})
	})
}

// Concurrent random requests through two edges see what they may, and what a
// power cut leaves is what was promised.
func TestModelOnEmulator(t *testing.T) {
	eachEmulator(t, func(t *testing.T, cfg EmulatorConfig) {
		var e *Emulator
		Model(t, func(t testing.TB) []*block.Child {
			var c *Client
			e, c = openEmulator(t, cfg)
			return []*block.Child{c.Child, Edge(t, c.Child.Instance())}
		}, ModelConfig{Ops: 300, Durable: func() []byte { return e.Durable() }})
	})
}
