// Package model runs random concurrent operations through the whole stack, raw
// over a file, against a model of what may be read: every engine, cache mode
// and alignment.
package model

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/block/blocktest"
	_ "github.com/platter-storage/platter/format/all"
	"github.com/platter-storage/platter/graph"
	"github.com/platter-storage/platter/internal/testutil"
	_ "github.com/platter-storage/platter/protocol/all"
)

const (
	area = 256 << 10
	// size is not a multiple of any sector: the tail is part of the test.
	size = area + 1000
	// slice is the number of operations of each configuration in an ordinary
	// run; PLATTER_MODEL_OPS is that of all together in a longer one.
	slice  = 900
	perRun = 3000
)

// storage is where the disk lies; sector is what a loop device below it has.
type storage struct {
	name   string
	sector int // 0: a file in the folder for temporary files
	forced int // request-align where not 0
}

var storages = []storage{{"file", 0, 0}, {"file-4096", 0, 4096}, {"loop-512", 512, 0}, {"loop-4096", 4096, 0}}

// options are the driver's for one configuration.
type config struct {
	storage    storage
	aio, cache string
}

func configs() (all []config) {
	for _, s := range storages {
		for _, aio := range []string{"io_uring", "native", "threads", "auto"} {
			for _, cache := range []string{"none", "writeback", "writethrough", "directsync", "unsafe"} {
				direct := cache == "none" || cache == "directsync"
				if (aio == "native" || s.forced != 0) && !direct {
					continue // Linux AIO and alignment are direct I/O's
				}
				all = append(all, config{s, aio, cache})
			}
		}
	}
	return all
}

func (c config) String() string {
	return fmt.Sprintf("%s/aio=%s/cache=%s", c.storage.name, c.aio, c.cache)
}

// disk makes an empty disk.
func (c config) disk(t testing.TB) string {
	if c.storage.sector != 0 {
		return testutil.Loop(t, t.TempDir(), 512<<10, c.storage.sector)
	}
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
	return path
}

// open makes two edges to raw over the disk: as two exports have them.
func (c config) open(t testing.TB) []*block.Child {
	g := graph.New(blocktest.NewEnv(t))
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	proto := block.Values{"aio": c.aio, "cache": c.cache}
	if c.storage.forced != 0 {
		proto["request-align"] = strconv.Itoa(c.storage.forced)
	}
	inst, err := g.Open(context.Background(), graph.Disk{Name: c.disk(t), Format: "raw", Protocol: proto}, "", false)
	if err != nil {
		t.Fatal(err)
	}
	var edges []*block.Child
	for i := range 2 {
		e, err := inst.NewChild(fmt.Sprintf("edge %d", i), block.RoleRoot, block.PermRead|block.PermWrite, block.PermAll)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.Close)
		edges = append(edges, e)
	}
	return edges
}

// TestModelEveryEngineCacheModeAndAlignment prints the seed of a failure, and
// the operations that are left of it as a Go test.
func TestModelEveryEngineCacheModeAndAlignment(t *testing.T) {
	all := configs()
	each, seed := slice, uint64(1)
	if s := os.Getenv("PLATTER_MODEL_OPS"); s != "" {
		total, err := strconv.Atoi(s)
		if err != nil {
			t.Fatalf("PLATTER_MODEL_OPS: %v", err)
		}
		each = (total + len(all) - 1) / len(all)
	}
	done := 0
	for _, c := range all {
		t.Run(c.String(), func(t *testing.T) {
			for n := 0; n < each; {
				cfg := blocktest.ModelConfig{Ops: min(each, perRun), Area: area, MaxLen: 64 << 10, Seed: seed, AnyAfterDiscard: true}
				blocktest.Model(t, c.open, cfg)
				n += cfg.Size()
				done += cfg.Size()
				seed++
			}
		})
	}
	t.Logf("%d operations in %d configurations, seeds 1 to %d", done, len(all), seed-1)
}
