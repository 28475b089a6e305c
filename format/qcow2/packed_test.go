package qcow2

import (
	"bytes"
	"testing"

	"github.com/platter-storage/platter/block"
	bt "github.com/platter-storage/platter/block/blocktest"
)

// What was written compressed reads equal, in parts and after it was overwritten
// in part; incompressible data is refused, and all is sound in the end.
func TestCompressedClusters(t *testing.T) {
	for _, vals := range []block.Values{{}, {"compression_type": "zstd"}, {"cluster_size": "2M"}, {"cluster_size": "512"}, {"extended_l2": "on"}, {"refcount_bits": "1"}} {
		env := bt.NewEnv(t)
		size := int64(5<<20 + 1000)
		if vals["cluster_size"] == "512" {
			size = 100<<10 + 100
		}
		_, file := newImage(t, env, size, vals, nil)
		in := bt.Open(t, env, block.Values{"driver": "qcow2"}, map[string]*block.Instance{"file": file})
		c := bt.NewClient(t, bt.Edge(t, in))
		cluster := in.Info().Abilities.Cluster
		pack := func(off int64, b []byte) error {
			return c.Do(block.OpWrite, func(rq *block.Req) error { return c.Child.WriteCompressed(rq, off, block.Vec{b}) })
		}
		want := make([]byte, size)
		for off := int64(0); off < size; off += cluster {
			part := want[off:min(off+cluster, size)]
			for i := range part {
				part[i] = byte(off>>9) + byte(i>>7)
			}
			if err := pack(off, part); err != nil {
				t.Fatalf("%v: cluster at %d: %v", vals, off, err)
			}
		}
		if err := pack(0, bt.Pattern(make([]byte, cluster), 3)); !block.IsNotSupported(err) {
			t.Errorf("%v: incompressible data was answered %v", vals, err)
		}
		if err := pack(0, want[:cluster]); err != nil { // again, over itself
			t.Errorf("%v: %v", vals, err)
		}
		copy(want[100:], "a part in the midst")
		if err := c.Write(100, 0, []byte("a part in the midst")); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			got := make([]byte, size)
			if err := c.Read(0, got); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%v: it reads otherwise (%v)", vals, err)
			}
			if err := c.Flush(); err != nil {
				t.Fatal(err)
			}
		}
		if x, err := c.Status(cluster, size-cluster); err != nil || !x.Compressed || x.Host >= 0 {
			t.Errorf("%v: status %+v, %v", vals, x, err)
		}
	}
}
