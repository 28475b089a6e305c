package qcow2

import (
	"bytes"
	"testing"

	"github.com/platter-storage/platter/block"
	bt "github.com/platter-storage/platter/block/blocktest"
)

// external opens an image whose data goes to a file of its own.
func external(t testing.TB, raw string) (*bt.Emulator, *block.Child) {
	env := bt.NewEnv(t)
	_, file := newImage(t, env, 1<<20, block.Values{"data_file": "data", "data_file_raw": raw, "cluster_size": "4K"}, nil)
	e := bt.NewEmulator(t, bt.EmulatorConfig{Size: 1 << 20, Fast: true, ZeroFlags: block.MayUnmap})
	children := map[string]*block.Instance{"file": file, "data-file": bt.Attach(t, env, e, "data")}
	return e, bt.Edge(t, bt.Open(t, env, block.Values{"driver": "qcow2"}, children))
}

func TestExternalDataConformance(t *testing.T) {
	for _, raw := range []string{"on", "off"} {
		t.Run("raw="+raw, func(t *testing.T) {
			bt.Run(t, func(t testing.TB) *block.Child { _, c := external(t, raw); return c }, bt.Options{})
		})
	}
}

// A raw data file is the disk as it is, whatever was done to it.
func TestRawDataFileIsTheDisk(t *testing.T) {
	e, edge := external(t, "on")
	c := bt.NewClient(t, edge)
	for _, err := range []error{
		c.Write(1000, 0, bt.Pattern(make([]byte, 300<<10), 1)), c.Zero(8192, 20000, block.MayUnmap), c.Zero(100<<10, 4096, 0),
		c.Discard(200<<10, 32<<10), c.Flush(),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	got := make([]byte, 1<<20)
	if err := c.Read(0, got); err != nil || !bytes.Equal(got, e.Content()) {
		t.Errorf("the disk reads otherwise than its data file (%v)", err)
	}
}
