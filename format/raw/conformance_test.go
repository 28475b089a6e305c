package raw_test

import (
	"fmt"
	"testing"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/block/blocktest"
)

// storage are kinds of storage below.
func storage() map[string]*block.Limits {
	sectors, blocks := block.ByteLimits(), block.ByteLimits()
	sectors.ReadAlign, sectors.WriteAlign, sectors.SegmentAlign, sectors.MinMem = 512, 512, 512, 512
	blocks.ReadAlign, blocks.WriteAlign, blocks.SegmentAlign, blocks.MinMem = 4096, 4096, 512, 512
	blocks.ZeroAlign, blocks.DiscardAlign, blocks.MaxSegments, blocks.MaxTransfer = 65536, 65536, 16, 256<<10
	return map[string]*block.Limits{"bytes": block.ByteLimits(), "sectors": sectors, "blocks": blocks}
}

// openOver opens raw over emulated storage.
func openOver(t testing.TB, l *block.Limits, vals block.Values) (*blocktest.Emulator, *block.Instance) {
	env := blocktest.NewEnv(t)
	e := blocktest.NewEmulator(t, blocktest.EmulatorConfig{Size: 1 << 20, Limits: l, Fast: true, WriteFlags: block.FUA, ZeroFlags: block.MayUnmap})
	vals["driver"] = "raw"
	return e, blocktest.Open(t, env, vals, map[string]*block.Instance{"file": blocktest.Attach(t, env, e, "storage")})
}

// Whole files and windows, aligned for what is below and not, keep the
// contract and the bytes around them.
func TestConformance(t *testing.T) {
	for name, l := range storage() {
		windows := []block.Values{{}, {"offset": "512"}}
		if name == "blocks" {
			windows = append(windows, block.Values{"offset": "4096"}, block.Values{"offset": "100", "size": "700001"}, block.Values{"offset": "64K", "size": "512K"})
		}
		for _, w := range windows {
			t.Run(fmt.Sprintf("%s, offset=%s,size=%s", name, w["offset"], w["size"]), func(t *testing.T) {
				blocktest.Run(t, func(t testing.TB) *block.Child {
					_, in := openOver(t, l, w)
					return blocktest.Edge(t, in)
				}, blocktest.Options{})
			})
		}
	}
}

func TestModel(t *testing.T) {
	var e *blocktest.Emulator
	blocktest.Model(t, func(t testing.TB) []*block.Child {
		var in *block.Instance
		e, in = openOver(t, storage()["blocks"], block.Values{"offset": "512"})
		return []*block.Child{blocktest.Edge(t, in), blocktest.Edge(t, in)}
	}, blocktest.ModelConfig{Durable: func() []byte { return e.Durable()[512:] }})
}

// A window that lies as the storage needs has its limits; another has none of
// its own, so that the edge below pads and copies, once.
func TestWindowLimits(t *testing.T) {
	blocks := storage()["blocks"]
	for off, aligned := range map[string]bool{"0": true, "4096": true, "64K": true, "512": false, "1": false} {
		_, in := openOver(t, blocks, block.Values{"offset": off})
		l := in.Info().Limits()
		if got := l.WriteAlign == 4096 && l.MinMem == 512 && l.MaxSegments == 16; got != aligned {
			t.Errorf("offset %s: %+v", off, l)
		}
		if !aligned && (l.ReadAlign != 1 || l.WriteAlign != 1 || l.MinMem != 1 || l.SegmentAlign != 1 || l.Origins.WriteAlign != block.OriginMerged) {
			t.Errorf("offset %s: %+v", off, l)
		}
		if l.LogicalBlock != blocks.LogicalBlock || l.OptMem != blocks.OptMem {
			t.Errorf("offset %s: advice is not passed on: %+v", off, l)
		}
		if wide := off == "0" || off == "64K"; (l.ZeroAlign == 65536) != wide || (l.DiscardAlign == 65536) != wide {
			t.Errorf("offset %s: zero %d, discard %d", off, l.ZeroAlign, l.DiscardAlign)
		}
	}
}

// One sector through a window at an unaligned offset: one read and one write
// below, and one copy.
func TestUnalignedWindowPadsOnce(t *testing.T) {
	e, in := openOver(t, storage()["blocks"], block.Values{"offset": "512"})
	c := blocktest.NewClient(t, blocktest.Edge(t, in))
	if err := c.Write(0, 0, make([]byte, 512)); err != nil {
		t.Fatal(err)
	}
	calls := e.Calls()
	if len(calls) != 2 || calls[0].Op != block.OpRead || calls[1].Op != block.OpWrite || calls[1].Off != 0 || calls[1].Len != 4096 {
		t.Errorf("the storage was asked %+v", calls)
	}
}

// Limits that change below are passed on with the next request.
func TestLimitsFollow(t *testing.T) {
	e, in := openOver(t, storage()["sectors"], block.Values{})
	c := blocktest.NewClient(t, blocktest.Edge(t, in))
	e.SetLimits(*storage()["blocks"], false)
	for range 2 {
		if err := c.Write(512, 0, make([]byte, 512)); err != nil {
			t.Fatal(err)
		}
	}
	if l := in.Info().Limits(); l.WriteAlign != 4096 || l.Generation != e.Info().Limits().Generation {
		t.Errorf("limits after a change below: %+v", l)
	}
}

// What other edges may do to the file: nothing that writes where the disk is
// the whole file and writable; writes, but no resizing, beside a window.
func TestPermissions(t *testing.T) {
	for _, c := range []struct {
		vals     block.Values
		readOnly bool
		perm     block.Perm
		ok       bool
	}{
		{block.Values{}, false, block.PermRead, true},
		{block.Values{}, false, block.PermWrite, false},
		{block.Values{}, false, block.PermResize, false},
		{block.Values{}, true, block.PermWrite | block.PermResize, true},
		{block.Values{"size": "64K"}, false, block.PermWrite, true},
		{block.Values{"size": "64K"}, false, block.PermResize, false},
		{block.Values{"size": "64K"}, true, block.PermResize, false},
	} {
		env := blocktest.NewEnv(t)
		file := blocktest.Attach(t, env, blocktest.NewEmulator(t, blocktest.EmulatorConfig{Size: 1 << 20}), "file")
		c.vals["driver"] = "raw"
		if _, err := blocktest.TryOpen(t, env, c.vals, map[string]*block.Instance{"file": file}, c.readOnly); err != nil {
			t.Fatal(err)
		}
		other, err := file.NewChild("other", block.RoleRoot, c.perm, block.PermAll)
		if (err == nil) != c.ok {
			t.Errorf("%v, read-only %v: another edge that may %s: %v", c.vals, c.readOnly, c.perm, err)
		}
		if err == nil {
			other.Close()
		}
	}
}

// A read-only disk needs no writable file, and refuses writes.
func TestReadOnly(t *testing.T) {
	env := blocktest.NewEnv(t)
	file := blocktest.Attach(t, env, blocktest.NewEmulator(t, blocktest.EmulatorConfig{Size: 1 << 20, ReadOnly: true}), "file")
	children := map[string]*block.Instance{"file": file}
	if _, err := blocktest.TryOpen(t, env, block.Values{"driver": "raw"}, children, false); err == nil {
		t.Error("a writable disk over a read-only file was opened")
	}
	blocktest.Run(t, func(t testing.TB) *block.Child {
		in, err := blocktest.TryOpen(t, env, block.Values{"driver": "raw"}, children, true)
		if err != nil {
			t.Fatal(err)
		}
		return blocktest.Edge(t, in)
	}, blocktest.Options{})
}

// Any options either open a disk inside its file or are refused.
func FuzzOptions(f *testing.F) {
	for _, s := range []string{"", "offset=512", "size=1K", "offset=1M,size=0", "offset=7.9E,size=7.9E", "offset=9223372036854775807", "size=-1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		vals, err := block.ParseOptions(s)
		if err != nil {
			return
		}
		vals["driver"] = "raw"
		delete(vals, "file")
		env := blocktest.NewEnv(t)
		e := blocktest.NewEmulator(t, blocktest.EmulatorConfig{Size: 1 << 20, Limits: storage()["blocks"]})
		in, err := blocktest.TryOpen(t, env, vals, map[string]*block.Instance{"file": blocktest.Attach(t, env, e, "file")}, false)
		if err != nil {
			return
		}
		c := blocktest.NewClient(t, blocktest.Edge(t, in))
		size := c.Child.Size()
		if size < 0 || size > 1<<20 {
			t.Fatalf("%q: a disk of %d bytes in a file of 1 MiB", s, size)
		}
		if err := c.Write(0, 0, make([]byte, size)); err != nil {
			t.Errorf("%q: writing all of it: %v", s, err)
		}
		if err := c.Write(size, 0, []byte{1}); err == nil {
			t.Errorf("%q: a write beyond the end", s)
		}
	})
}
