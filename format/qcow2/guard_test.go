package qcow2

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/platter-storage/platter/block"
	bt "github.com/platter-storage/platter/block/blocktest"
)

// planted opens an image with data at 0 whose file was changed by f, and gives
// the edge and what opening or the first change says.
func planted(t *testing.T, f func(b []byte, l *layout)) (*bt.Emulator, error) {
	t.Helper()
	env := bt.NewEnv(t)
	e := bt.NewEmulator(t, bt.EmulatorConfig{})
	file := bt.Attach(t, env, e, "file")
	makeImage(t, env, file, 8<<20, block.Values{"cluster_size": "4K"})
	children := map[string]*block.Instance{"file": file}
	writeOnce(t, env, file, children)
	b := e.Content()
	l, err := parseLayout(b)
	if err != nil {
		t.Fatal(err)
	}
	f(b, &l)
	e.Fill(b)
	in, err := bt.TryOpen(t, env, block.Values{"driver": "qcow2"}, children, false)
	if err != nil {
		return e, err
	}
	c := bt.NewClient(t, bt.Edge(t, in))
	for _, at := range []int64{0, 512 << 10} {
		if err = c.Write(at, 0, make([]byte, 4096)); err != nil {
			return e, err
		}
	}
	return e, c.Flush()
}

// writeOnce puts two clusters into the image and closes it.
func writeOnce(t *testing.T, env *block.Env, file *block.Instance, children map[string]*block.Instance) {
	t.Helper()
	t.Run("write", func(t *testing.T) {
		in := bt.Open(t, env, block.Values{"driver": "qcow2"}, children)
		if err := bt.NewClient(t, bt.Edge(t, in)).Write(0, 0, bt.Pattern(make([]byte, 8192), 1)); err != nil {
			t.Fatal(err)
		}
	})
}

func be(b []byte, off uint64) uint64       { return binary.BigEndian.Uint64(b[off:]) }
func setBE(b []byte, off uint64, x uint64) { binary.BigEndian.PutUint64(b[off:], x) }
func l2Of(b []byte, l *layout) uint64      { return be(b, l.l1Off) & entryOffset }
func countsAt(b []byte, l *layout) uint64  { return be(b, l.tableOff) }
func free(b []byte, l *layout, off uint64) {
	setRefAt(b[countsAt(b, l):][:4096], l.order, int64(off>>l.clusterBits), 0)
}
func hostOf(b []byte, l *layout, i uint64) uint64 { return be(b, l2Of(b, l)+8*i) & entryOffset }

// Each kind of damage stops writes before they make it worse, with a sentence that
// says which structure and where, and the image is marked corrupt.
func TestGuardFindsPlantedDamage(t *testing.T) {
	for name, c := range map[string]struct {
		plant func(b []byte, l *layout)
		want  string
	}{
		"data cluster free by its refcount": {func(b []byte, l *layout) { free(b, l, hostOf(b, l, 0)) }, "an L2 entry points at it"},
		"L2 table free by its refcount":     {func(b []byte, l *layout) { free(b, l, l2Of(b, l)) }, "belongs to the L2 table of L1 entry 0"},
		"L1 table free by its refcount":     {func(b []byte, l *layout) { free(b, l, l.l1Off) }, "belongs to the active L1 table"},
		"refcount table free":               {func(b []byte, l *layout) { free(b, l, l.tableOff) }, "belongs to the refcount table"},
		"refcount block free":               {func(b []byte, l *layout) { free(b, l, countsAt(b, l)) }, "belongs to the refcount block 0"},
		"header free":                       {func(b []byte, l *layout) { free(b, l, 0) }, "belongs to the header"},
		"data over the refcount table":      {func(b []byte, l *layout) { setBE(b, l2Of(b, l), l.tableOff|entryCopied) }, "which belongs to the refcount table"},
		"data over L1":                      {func(b []byte, l *layout) { setBE(b, l2Of(b, l), l.l1Off|entryCopied) }, "which belongs to the active L1 table"},
		"data over its L2":                  {func(b []byte, l *layout) { setBE(b, l2Of(b, l), l2Of(b, l)|entryCopied) }, "which belongs to the L2 table"},
		"data beyond the end":               {func(b []byte, l *layout) { setBE(b, l2Of(b, l), 1<<40|entryCopied) }, "beyond the end of the file"},
		"unaligned data":                    {func(b []byte, l *layout) { setBE(b, l2Of(b, l), be(b, l2Of(b, l))|512) }, "which no entry may be"},
		"L2 over L1":                        {func(b []byte, l *layout) { setBE(b, l.l1Off, l.l1Off|entryCopied) }, "lies over the active L1 table"},
		"two L2 in one place":               {func(b []byte, l *layout) { setBE(b, l.l1Off+8, be(b, l.l1Off)) }, "lies over the"},
		"L1 over the refcount table":        {func(b []byte, l *layout) { setBE(b, atL1Offset, l.tableOff) }, "lies over the refcount table"},
		"refcount block over L1":            {func(b []byte, l *layout) { setBE(b, l.tableOff, l.l1Off) }, "lies over the active L1 table"},
		"L2 beyond the end":                 {func(b []byte, l *layout) { setBE(b, l.l1Off, 1<<40|entryCopied) }, "points at no cluster of the file"},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := planted(t, c.plant)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "check -r all") {
				t.Fatalf("it says %v; want %q", err, c.want)
			}
			if l, err := parseLayout(e.Content()); err != nil || l.incompat&featCorrupt == 0 {
				t.Errorf("the image is not marked corrupt (%v)", err)
			}
		})
	}
}
