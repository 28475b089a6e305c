package file

import (
	"fmt"
	"testing"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/block/blocktest"
	"github.com/platter-storage/platter/internal/race"
)

// storage is a place for a disk of a given size; path makes one.
type storage struct {
	name string
	path func(t testing.TB, size int64) string
}

func onDir(dir func(t testing.TB) string) func(t testing.TB, size int64) string {
	return func(t testing.TB, size int64) string { return makeDisk(t, dir(t), size, "") }
}

func onMount(fs string, sector int) storage {
	return storage{fmt.Sprintf("%s on %d", fs, sector), onDir(func(t testing.TB) string { return mounted(t, fs, sector) })}
}

func onLoop(sector int) storage {
	return storage{fmt.Sprintf("loop device of %d", sector), func(t testing.TB, size int64) string { return loopDevice(t, size, sector) }}
}

var (
	tempStorage  = storage{"temporary folder", onDir(func(t testing.TB) string { return t.TempDir() })}
	tmpfsStorage = storage{"tmpfs", onDir(tmpfsDir)}
	allStorage   = []storage{tempStorage, tmpfsStorage, onLoop(512), onLoop(4096), onMount("ext4", 4096), onMount("xfs", 512), onMount("xfs", 4096), onMount("btrfs", 4096)}
)

// conform runs the suite on one kind of disk.
func conform(t *testing.T, s storage, opts string, size int64) {
	blocktest.Run(t, func(t testing.TB) *block.Child {
		vals, err := block.ParseOptions(join("driver=file,"+filename(s.path(t, size)), opts))
		if err != nil {
			t.Fatal(err)
		}
		in := blocktest.Open(t, blocktest.NewEnv(t), vals, nil)
		c, err := in.NewChild("suite", block.RoleRoot, block.PermAll, block.PermAll)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c
	}, blocktest.Options{NoAllocations: !race.Enabled})
}

// engineModes is every engine with every cache mode that it goes with.
func engineModes() (all []string) {
	for _, aio := range []string{"auto", "io_uring", "native", "threads"} {
		for _, cache := range []string{"none", "writeback", "writethrough", "directsync", "unsafe"} {
			if aio != "native" || cache == "none" || cache == "directsync" {
				all = append(all, fmt.Sprintf("aio=%s,cache=%s", aio, cache))
			}
		}
	}
	return all
}

// TestConformanceEveryEngineAndCacheMode puts the driver through the contract
// of the waist.
func TestConformanceEveryEngineAndCacheMode(t *testing.T) {
	for _, m := range engineModes() {
		t.Run(m, func(t *testing.T) { conform(t, tempStorage, m, 1<<20) })
	}
}

// TestConformanceEveryStorage does so with direct I/O on every kind of storage
// that this machine has, also with a size that is not aligned.
func TestConformanceEveryStorage(t *testing.T) {
	for _, s := range allStorage {
		t.Run(s.name, func(t *testing.T) { conform(t, s, "cache=none", 1<<20) })
	}
	for _, s := range []storage{tempStorage, onMount("ext4", 4096), onMount("btrfs", 4096)} {
		t.Run(s.name+", unaligned size", func(t *testing.T) { conform(t, s, "cache=none", 1<<20-1020) })
	}
}
