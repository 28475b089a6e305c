package qcow2

import (
	"context"
	"fmt"
	"maps"
	"os"
	"strconv"
	"testing"

	"github.com/platter-storage/platter/block"
	bt "github.com/platter-storage/platter/block/blocktest"
)

// modelSize is that of the disks of the model test: no whole number of sectors
// of 4096 bytes, nor of clusters.
const modelSize = 1<<20 - 1024

// modelled is one kind of image for the model test.
type modelled struct {
	name         string
	create, open block.Values
	backing      bool
	dataFile     bool
}

func allModelled() (all []modelled) {
	for bits := 9; bits <= 21; bits++ {
		size := fmt.Sprint(1 << bits)
		all = append(all, modelled{name: "cluster" + size, create: block.Values{"cluster_size": size}})
		all = append(all, modelled{name: "backing" + size, create: block.Values{"cluster_size": size}, backing: true})
		if bits >= 14 {
			all = append(all, modelled{name: "extended" + size, create: block.Values{"cluster_size": size, "extended_l2": "on"}, backing: bits%2 == 0})
		}
	}
	small := block.Values{"l2-cache-size": "8K", "l2-cache-entry-size": "512", "refcount-cache-size": "4K"}
	return append(all,
		modelled{name: "datafile", create: block.Values{"cluster_size": "4K", "data_file": "data"}, dataFile: true},
		modelled{name: "rawdatafile", create: block.Values{"cluster_size": "4K", "data_file": "data", "data_file_raw": "on"}, dataFile: true},
		modelled{name: "extendeddatafile", create: block.Values{"cluster_size": "16K", "extended_l2": "on", "data_file": "data"}, dataFile: true},
		modelled{name: "smallcaches", create: block.Values{"cluster_size": "512"}, open: small},
		modelled{name: "smallcachesbacking", create: block.Values{"cluster_size": "1K"}, open: small, backing: true},
		modelled{name: "version2", create: block.Values{"cluster_size": "1K", "compat": "0.10"}, backing: true},
		modelled{name: "keepdiscarded", create: block.Values{"cluster_size": "4K"}, open: block.Values{"discard-no-unref": "on"}},
	)
}

// openModelled makes the image, on storage that has both lanes, and two edges
// to it.
func openModelled(t testing.TB, m modelled) []*block.Child {
	t.Helper()
	env := bt.NewEnv(t)
	emulator := func(name string, size int64) (*bt.Emulator, *block.Instance) {
		e := bt.NewEmulator(t, bt.EmulatorConfig{Size: size, Fast: true, WriteFlags: block.FUA, ZeroFlags: block.MayUnmap})
		e.KeepCalls(false)
		return e, bt.Attach(t, env, e, name)
	}
	_, file := emulator("file", 0)
	below := map[string]*block.Instance{"file": file}
	if m.dataFile {
		_, below["data-file"] = emulator("data", modelSize)
	}
	if m.backing {
		e, in := emulator("backing", modelSize-30000)
		e.Fill(bt.Pattern(make([]byte, modelSize-30000), 99))
		below["backing"] = in
	}
	d, err := block.FindDriver("qcow2")
	if err != nil {
		t.Fatal(err)
	}
	o, err := d.CheckCreate(m.create)
	if err != nil {
		t.Fatal(err)
	}
	c, err := file.NewChild("create", block.RoleRoot, block.PermAll, block.PermAll)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Create(context.Background(), &block.CreateArgs{Env: env, Options: o, Size: modelSize, File: c}); err != nil {
		t.Fatal(err)
	}
	c.Close()
	t.Cleanup(func() { soundIn(t, env, file) }) // after the image is closed
	vals := block.Values{"driver": "qcow2"}
	maps.Copy(vals, m.open)
	in := bt.Open(t, env, vals, below)
	return []*block.Child{bt.Edge(t, in), bt.Edge(t, in)}
}

// soundIn checks the image in a file. It opens and closes everything itself, as
// it runs while a test cleans up.
func soundIn(t testing.TB, env *block.Env, file *block.Instance) {
	t.Helper()
	d, err := block.FindDriver("qcow2")
	if err != nil {
		t.Fatal(err)
	}
	o, err := d.Check(block.Values{"file": "file", "check": "on"})
	if err != nil {
		t.Fatal(err)
	}
	var edge *block.Child
	node, err := d.Open(context.Background(), &block.OpenArgs{Env: env, Options: o, ReadOnly: true,
		Child: func(_ string, role block.Role, perm, shared block.Perm) (*block.Child, error) {
			edge, err = file.NewChild("check", role, perm, shared)
			return edge, err
		}})
	if err != nil {
		t.Fatal(err)
	}
	defer edge.Close()
	q := block.NewQueue(env, block.NewQueueGroup())
	defer q.Close()
	rq := q.Begin()
	res, err := node.Info().Abilities.Check(rq, block.CheckOptions{Report: func(s string) { t.Log(s) }})
	q.End(rq, block.OpStatus, 0, err)
	if err != nil || res.Corruptions+res.Leaks+res.CheckErrors > 0 {
		t.Errorf("%v: %d corruptions, %d leaks, %d errors", err, res.Corruptions, res.Leaks, res.CheckErrors)
	}
}

// TestModel runs random concurrent operations on images of all kinds against
// the model. PLATTER_MODEL_OPS is the number of operations in all.
func TestModel(t *testing.T) {
	all := allModelled()
	total, done := 300*len(all), 0
	if s := os.Getenv("PLATTER_MODEL_OPS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatalf("PLATTER_MODEL_OPS: %v", err)
		}
		total = n
	}
	for i := 0; done < total; i++ {
		m := all[i%len(all)]
		cfg := bt.ModelConfig{Ops: min(3000, max(300, total/len(all))), Workers: 2 + i%5, MaxLen: 48 << 10, Area: modelSize}
		t.Run(fmt.Sprintf("%s-%d", m.name, i/len(all)), func(t *testing.T) {
			bt.Model(t, func(t testing.TB) []*block.Child { return openModelled(t, m) }, cfg)
		})
		done += cfg.Size()
		if t.Failed() {
			return
		}
	}
	t.Logf("%d operations on %d kinds of image", done, len(all))
}
