package qcow2

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/platter-storage/platter/block"
	bt "github.com/platter-storage/platter/block/blocktest"
	"github.com/platter-storage/platter/internal/race"
)

// mostAllocated is how many bytes everything that is done with one harmed image
// may allocate in all, given back or not.
const mostAllocated = 256 << 20

// fuzzKinds are the images that FuzzWhole harms.
var fuzzKinds = []block.Values{
	{"cluster_size": "512"},
	{"cluster_size": "4K", "refcount_bits": "1"},
	{"cluster_size": "1K", "refcount_bits": "64"},
	{"cluster_size": "16K", "extended_l2": "on"},
	{"cluster_size": "1K", "compat": "0.10"},
	{"cluster_size": "2K", "preallocation": "metadata"},
	{"cluster_size": "64K"},
}

// wholeImage makes an image with data, zero clusters, a snapshot and a bitmap.
func wholeImage(t testing.TB, vals block.Values) []byte {
	t.Helper()
	env := bt.NewEnv(t)
	e := bt.NewEmulator(t, bt.EmulatorConfig{})
	e.KeepCalls(false)
	file := bt.Attach(t, env, e, "file")
	d, err := block.FindDriver("qcow2")
	if err != nil {
		t.Fatal(err)
	}
	o, err := d.CheckCreate(vals)
	if err != nil {
		t.Fatal(err)
	}
	c, err := file.NewChild("create", block.RoleRoot, block.PermAll, block.PermAll)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Create(context.Background(), &block.CreateArgs{Env: env, Options: o, Size: 128 << 10, File: c}); err != nil {
		t.Fatal(err)
	}
	c.Close()
	in := bt.Open(t, env, block.Values{"driver": "qcow2"}, map[string]*block.Instance{"file": file})
	cl := bt.NewClient(t, bt.Edge(t, in))
	use := func(f func(rq *block.Req, a *block.Abilities) error) error {
		return cl.Do(block.OpStatus, func(rq *block.Req) error {
			return cl.Child.Exclusive(rq, block.PermWrite, func(a *block.Abilities) error { return f(rq, a) })
		})
	}
	errs := []error{cl.Write(700, 0, bt.Pattern(make([]byte, 9000), 1)), cl.Zero(40960, 20000, block.MayUnmap)}
	// A width of 1 bit has no snapshots, a small header no room for bitmaps;
	// version 2 has no bitmaps at all.
	_ = use(func(rq *block.Req, a *block.Abilities) error {
		_, err := a.Snapshots.Create(rq, block.Snapshot{Name: "one"})
		return err
	})
	_ = use(func(rq *block.Req, a *block.Abilities) error {
		return a.Bitmaps.Add(rq, block.Bitmap{Name: "bits", Granularity: 512, Enabled: true})
	})
	errs = append(errs, cl.Write(65536, 0, bt.Pattern(make([]byte, 3000), 2)), cl.Flush())
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	return e.Content()
}

// harmed is b with places overwritten: each change is 6 bytes, where and what.
func harmed(b, changes []byte) []byte {
	b = append([]byte(nil), b...)
	for ; len(changes) >= 6; changes = changes[6:] {
		at := int(binary.LittleEndian.Uint32(changes)) % len(b)
		if changes[4]&1 != 0 { // tables are what matters: an entry's high bytes
			at &^= 7
		}
		b[at] = changes[5]
		if changes[4]&2 != 0 && at+8 <= len(b) {
			binary.BigEndian.PutUint64(b[at:], uint64(changes[5])<<(changes[4]>>2))
		}
	}
	return b
}

// FuzzWhole harms whole images and does with them what people do: open, read,
// write, list, check, repair. Nothing panics, nothing hangs, and memory is
// bounded.
func FuzzWhole(f *testing.F) {
	var images [][]byte
	for _, vals := range fuzzKinds {
		images = append(images, wholeImage(f, vals))
	}
	rng := rand.New(rand.NewPCG(5, 5))
	seeds := 150
	if race.Enabled {
		seeds = 30
	}
	for i := range seeds {
		changes := make([]byte, 6*(1+rng.IntN(6)))
		for k := range changes {
			changes[k] = byte(rng.Uint32())
		}
		for k := 1; k < len(changes); k += 6 { // near the beginning, where tables are
			changes[k] &= 63
			changes[k+1], changes[k+2] = 0, 0
		}
		f.Add(byte(i), changes)
	}
	f.Fuzz(func(t *testing.T, kind byte, changes []byte) {
		if len(changes) > 600 {
			return
		}
		b := harmed(images[int(kind)%len(images)], changes)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for _, how := range []string{"read", "write", "check", "repair"} {
			useHarmed(t, append([]byte(nil), b...), how)
		}
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > mostAllocated {
			t.Errorf("%d bytes were allocated for an image of %d", n, len(b))
		}
	})
}

// useHarmed does one thing with an image. Anything may fail.
func useHarmed(t *testing.T, b []byte, how string) {
	env := bt.NewEnv(t)
	e := bt.NewEmulator(t, bt.EmulatorConfig{Size: int64(len(b)), Fast: true, WriteFlags: block.FUA})
	e.KeepCalls(false)
	e.Fill(b)
	file := bt.Attach(t, env, e, "file")
	vals, readOnly := block.Values{"driver": "qcow2"}, how == "read" || how == "check"
	if how == "check" || how == "repair" {
		vals["check"] = "on"
	}
	in, edge := openHarmed(t, env, vals, file, readOnly)
	if edge != nil {
		defer edge.Close()
	}
	if in == nil {
		return
	}
	perm := block.PermAll
	if readOnly {
		perm = block.PermRead
	}
	c, err := in.NewChild("test", block.RoleRoot, perm, block.PermAll)
	if err != nil {
		t.Fatal(err)
	}
	cl := bt.NewClient(t, c)
	defer func() { // what the image makes of closing is its own affair
		c.Close()
		_ = cl.Do(block.OpFlush, in.Close)
	}()
	_ = cl.Do(block.OpStatus, func(rq *block.Req) error {
		return c.Exclusive(rq, perm, func(a *block.Abilities) error { return abilities(rq, a, how) })
	})
	buf := make([]byte, 8192)
	size := c.Size()
	for _, at := range []int64{0, 40 << 10, 64 << 10, size / 2, size - int64(len(buf))} {
		if at < 0 || at+int64(len(buf)) > size {
			continue
		}
		_ = cl.Read(at, buf)
		_, _ = cl.Status(at, size-at)
		if how == "write" {
			_ = cl.Write(at+100, 0, buf[:3000])
			_ = cl.Zero(at, 5000, block.MayUnmap)
			_ = cl.Discard(at, 4096)
		}
	}
	if how == "write" {
		_ = cl.Flush()
	}
}

// openHarmed opens an image that may refuse; edge is that to its file.
func openHarmed(t *testing.T, env *block.Env, vals block.Values, file *block.Instance, readOnly bool) (in *block.Instance, edge *block.Child) {
	t.Helper()
	d, err := block.FindDriver("qcow2")
	if err != nil {
		t.Fatal(err)
	}
	vals["file"] = "file"
	delete(vals, "driver")
	o, err := d.Check(vals)
	if err != nil {
		t.Fatal(err)
	}
	node, err := d.Open(context.Background(), &block.OpenArgs{Env: env, Options: o, ReadOnly: readOnly,
		Child: func(_ string, role block.Role, perm, shared block.Perm) (c *block.Child, err error) {
			edge, err = file.NewChild("qcow2", role, perm, shared)
			return edge, err
		}})
	if err != nil {
		return nil, edge
	}
	return block.NewInstance(node, "harmed", env), edge
}

// abilities uses those that an image offers.
func abilities(rq *block.Req, a *block.Abilities, how string) error {
	if how == "check" || how == "repair" {
		var fix block.Fix
		if how == "repair" {
			fix = block.FixErrors | block.FixLeaks
		}
		_, err := a.Check(rq, block.CheckOptions{Fix: fix})
		return err
	}
	if a.Snapshots != nil {
		_, _ = a.Snapshots.List(rq)
	}
	if a.Bitmaps != nil {
		_, _ = a.Bitmaps.List(rq)
		_ = a.Bitmaps.Runs(rq, "bits", func(int64, int64) error { return nil })
	}
	if how == "write" && a.Snapshots != nil {
		_ = a.Snapshots.Apply(rq, "one")
		_ = a.Snapshots.Delete(rq, "one")
	}
	return nil
}
