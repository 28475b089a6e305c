package qcow2

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/platter-storage/platter/block"
	bt "github.com/platter-storage/platter/block/blocktest"
	"github.com/platter-storage/platter/internal/testutil"
)

// The reference reads what we compressed, matches further apart than its window
// among it, and finds no fault with the image.
func TestCompressedClustersAreReadByTheReference(t *testing.T) {
	for _, vals := range []block.Values{{}, {"compression_type": "zstd"}, {"cluster_size": "2M"}, {"cluster_size": "4K", "extended_l2": "off"}} {
		env := bt.NewEnv(t)
		e, file := newImage(t, env, 4<<20, vals, nil)
		in := bt.Open(t, env, block.Values{"driver": "qcow2"}, map[string]*block.Instance{"file": file})
		c := bt.NewClient(t, bt.Edge(t, in))
		want := make([]byte, 4<<20)
		// Random bytes that come again at all distances up to 40 KiB.
		bt.Pattern(want[:1<<20], 5)
		for at, back := 1<<20, 1; at < len(want); at, back = at+64, back%40000+37 {
			copy(want[at:at+64], want[at-back:])
		}
		cluster := in.Info().Abilities.Cluster
		packed := 0
		for off := int64(0); off < int64(len(want)); off += cluster {
			part := want[off : off+cluster]
			err := c.Do(block.OpWrite, func(rq *block.Req) error { return c.Child.WriteCompressed(rq, off, block.Vec{part}) })
			if block.IsNotSupported(err) {
				err = c.Write(off, 0, part)
			} else {
				packed++
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Flush(); err != nil || packed == 0 {
			t.Fatalf("%v: %d clusters compressed, %v", vals, packed, err)
		}
		dir := t.TempDir()
		for name, b := range map[string][]byte{"a.qcow2": e.Content(), "a.raw": want} {
			if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		path := filepath.Join(dir, "a.qcow2")
		testutil.Run(t, "qemu-img", "compare", "-f", "raw", "-F", "qcow2", filepath.Join(dir, "a.raw"), path)
		if r := theirs(t, path); r.CheckErrors+r.Corruptions+r.Leaks > 0 || r.CompressedClusters != int64(packed) {
			t.Errorf("%v: %d compressed: %+v", vals, packed, r)
		}
	}
}
