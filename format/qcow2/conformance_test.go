package qcow2

import (
	"context"
	"fmt"
	"testing"

	"github.com/platter-storage/platter/block"
	bt "github.com/platter-storage/platter/block/blocktest"
	"github.com/platter-storage/platter/internal/race"
)

// newImage makes an image in storage of its own and gives both.
func newImage(t testing.TB, env *block.Env, size int64, vals block.Values, l *block.Limits) (*bt.Emulator, *block.Instance) {
	t.Helper()
	e := bt.NewEmulator(t, bt.EmulatorConfig{Limits: l, Fast: true, WriteFlags: block.FUA, ZeroFlags: block.MayUnmap})
	e.KeepCalls(false)
	file := bt.Attach(t, env, e, "file")
	makeImage(t, env, file, size, vals)
	t.Cleanup(func() { sound(t, env, file) }) // after the node above is closed
	return e, file
}

// sound finds fault with an image that was closed.
func sound(t testing.TB, env *block.Env, file *block.Instance) {
	t.Helper()
	c, err := file.NewChild("check", block.RoleRoot, block.PermRead, block.PermAll)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	q := block.NewQueue(env, block.NewQueueGroup())
	rq := q.Begin()
	defer q.End(rq, block.OpRead, 0, nil)
	r, err := check(rq, c, block.CheckOptions{Report: func(s string) { t.Log(s) }})
	if err != nil || r.CheckErrors+r.Corruptions+r.Leaks > 0 {
		t.Errorf("the image has %d errors, %d leaks, %d places that could not be looked at (%v)", r.Corruptions, r.Leaks, r.CheckErrors, err)
	}
}

func makeImage(t testing.TB, env *block.Env, file *block.Instance, size int64, vals block.Values) {
	t.Helper()
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
	defer c.Close()
	if err := d.Create(context.Background(), &block.CreateArgs{Env: env, Options: o, Size: size, File: c}); err != nil {
		t.Fatalf("creating %v: %v", vals, err)
	}
}

// variants of images that the contract is held up against.
func variants() map[string]block.Values {
	all := map[string]block.Values{
		"v2":          {"compat": "0.10"},
		"extended":    {"extended_l2": "on"},
		"extended16K": {"extended_l2": "on", "cluster_size": "16K"},
		"metadata":    {"preallocation": "metadata"},
		"full":        {"preallocation": "full", "cluster_size": "4K"},
	}
	step, most := 3, 21
	if race.Enabled {
		step, most = 6, 15 // 512 bytes and 32 KiB: copies of 2 MiB take long there
	}
	for bits := 9; bits <= most; bits += step {
		size := int64(1) << bits
		all[fmt.Sprintf("cluster%d", size)] = block.Values{"cluster_size": fmt.Sprint(size)}
	}
	for width := 1; width <= 64; width *= 1 << (step / 3) {
		all[fmt.Sprintf("refcount%d", width)] = block.Values{"refcount_bits": fmt.Sprint(width), "cluster_size": "1K"}
	}
	return all
}

func TestConformance(t *testing.T) {
	sectors := block.ByteLimits()
	sectors.ReadAlign, sectors.WriteAlign, sectors.SegmentAlign, sectors.MinMem = 512, 512, 512, 512
	for name, vals := range variants() {
		t.Run(name, func(t *testing.T) {
			bt.Run(t, func(t testing.TB) *block.Child {
				env := bt.NewEnv(t)
				_, file := newImage(t, env, 1<<20, vals, sectors)
				return bt.Edge(t, bt.Open(t, env, block.Values{"driver": "qcow2"}, map[string]*block.Instance{"file": file}))
			}, bt.Options{})
		})
	}
}

func TestModel(t *testing.T) {
	for name, vals := range variants() {
		t.Run(name, func(t *testing.T) {
			bt.Model(t, func(t testing.TB) []*block.Child {
				env := bt.NewEnv(t)
				_, file := newImage(t, env, 1<<20, vals, nil)
				in := bt.Open(t, env, block.Values{"driver": "qcow2"}, map[string]*block.Instance{"file": file})
				return []*block.Child{bt.Edge(t, in), bt.Edge(t, in)}
			}, bt.ModelConfig{})
		})
	}
}
