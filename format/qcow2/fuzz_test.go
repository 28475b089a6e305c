package qcow2

import (
	"context"
	"testing"

	"github.com/platter-storage/platter/block"
	bt "github.com/platter-storage/platter/block/blocktest"
)

// seeds are small images with something in them.
func seeds(f *testing.F) {
	for _, vals := range []block.Values{
		{"cluster_size": "512"}, {"cluster_size": "4K", "refcount_bits": "1"}, {"cluster_size": "16K", "extended_l2": "on"},
		{"cluster_size": "1K", "compat": "0.10"}, {"cluster_size": "1K", "preallocation": "metadata", "refcount_bits": "64"},
	} {
		env := bt.NewEnv(f)
		e := bt.NewEmulator(f, bt.EmulatorConfig{})
		file := bt.Attach(f, env, e, "file")
		makeImage(f, env, file, 64<<10, vals)
		in := bt.Open(f, env, block.Values{"driver": "qcow2"}, map[string]*block.Instance{"file": file})
		c := bt.NewClient(f, bt.Edge(f, in))
		for _, err := range []error{c.Write(700, 0, bt.Pattern(make([]byte, 9000), 1)), c.Zero(4096, 20000, block.MayUnmap), c.Flush()} {
			if err != nil {
				f.Fatal(err)
			}
		}
		f.Add(e.Content())
	}
}

// FuzzOpen opens whatever bytes, reads, writes and flushes: nothing panics or
// hangs, and memory is bounded.
func FuzzOpen(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 4<<20 {
			return
		}
		for _, readOnly := range []bool{true, false} {
			useHostile(t, b, readOnly)
		}
	})
}

// useHostile does what a guest might with an image of bytes b.
func useHostile(t *testing.T, b []byte, readOnly bool) {
	env := bt.NewEnv(t)
	e := bt.NewEmulator(t, bt.EmulatorConfig{Size: int64(len(b)), Fast: true, WriteFlags: block.FUA})
	e.KeepCalls(false)
	e.Fill(b)
	file := bt.Attach(t, env, e, "file")
	d, err := block.FindDriver("qcow2")
	if err != nil {
		t.Fatal(err)
	}
	o, err := d.Check(block.Values{"file": "file"})
	if err != nil {
		t.Fatal(err)
	}
	var edges []*block.Child
	defer func() {
		for _, c := range edges {
			c.Close()
		}
	}()
	node, err := d.Open(context.Background(), &block.OpenArgs{Env: env, Options: o, ReadOnly: readOnly,
		Child: func(name string, role block.Role, perm, shared block.Perm) (*block.Child, error) {
			c, err := file.NewChild("qcow2", role, perm, shared)
			if err == nil {
				edges = append(edges, c)
			}
			return c, err
		}})
	if err != nil {
		return
	}
	in := block.NewInstance(node, "hostile", env)
	perm := block.PermAll
	if readOnly {
		perm = block.PermRead
	}
	c, err := in.NewChild("test", block.RoleRoot, perm, block.PermAll)
	if err != nil {
		t.Fatal(err)
	}
	client := bt.NewClient(t, c)
	scribble(client, readOnly)
	c.Close()
	// What the image makes of closing is its own affair.
	_ = client.Do(block.OpFlush, func(rq *block.Req) error { return in.Close(rq) })
}

// scribble uses the beginning, the middle and the end of a disk. Requests may
// fail, as the image is.
func scribble(c *bt.Client, readOnly bool) {
	size := c.Child.Size()
	buf := make([]byte, 16<<10)
	for _, at := range []int64{0, 4096, 33 << 10, size / 2, size - int64(len(buf))} {
		if at < 0 || at+int64(len(buf)) > size {
			continue
		}
		_ = c.Read(at, buf)
		_, _ = c.Status(at, size-at)
		if _, err := c.ReadFast(at, buf); err != nil || readOnly {
			continue
		}
		_ = c.Write(at+512, 0, buf[:1000])
		_ = c.Zero(at, 5000, block.MayUnmap)
		_ = c.Discard(at, 16<<10)
		_ = c.Write(at, block.FUA, buf)
	}
	if !readOnly {
		_ = c.Flush()
		_ = c.Truncate(min(size+100000, max(size, 1<<28)))
		_ = c.Flush()
	}
}
