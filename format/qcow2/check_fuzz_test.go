package qcow2

import (
	"encoding/binary"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/platter-storage/platter/block"
	bt "github.com/platter-storage/platter/block/blocktest"
	"github.com/platter-storage/platter/internal/race"
)

// small is an image with something of everything, of few bytes.
func small(t testing.TB, vals block.Values) []byte {
	t.Helper()
	env := bt.NewEnv(t)
	e, file := newImage(t, env, 96<<10, vals, nil)
	in := bt.Open(t, env, block.Values{"driver": "qcow2"}, map[string]*block.Instance{"file": file})
	c := bt.NewClient(t, bt.Edge(t, in))
	fill(t, c, 0, 3000, 1)
	fill(t, c, 70<<10, 2000, 2)
	alone(t, c, block.PermWrite, func(rq *block.Req, a *block.Abilities) error {
		_, err := a.Snapshots.Create(rq, block.Snapshot{Name: "s"})
		return err
	})
	fill(t, c, 1000, 3000, 3)
	if vals["compat"] != "0.10" {
		alone(t, c, block.PermWrite, func(rq *block.Req, a *block.Abilities) error {
			if err := a.Bitmaps.Add(rq, block.Bitmap{Name: "b", Granularity: 512}); err != nil {
				return err
			}
			return a.Bitmaps.Merge(rq, "b", func(f func(off, n int64) error) error { return f(5000, 3000) })
		})
	}
	if err := c.Flush(); err != nil {
		t.Error(err)
	}
	return e.Content()
}

// smallKinds are the seeds.
func smallKinds(t testing.TB) [][]byte {
	var all [][]byte
	for _, vals := range []block.Values{
		{"cluster_size": "512"}, {"cluster_size": "1K", "refcount_bits": "64"}, {"cluster_size": "512", "compat": "0.10"},
		{"cluster_size": "16K", "extended_l2": "on"}, {"cluster_size": "4K", "refcount_bits": "8"},
	} {
		all = append(all, small(t, vals))
	}
	return all
}

const maxFuzzImage = 1 << 20

// holdRepair asserts what holds for any bytes: a check ends, a repair leaves what
// it says it leaves and no more that is wrong than there was, and a second one
// finds nothing to do.
func holdRepair(t testing.TB, b []byte) {
	x := newTape(b)
	within := func(fix block.Fix) (res block.CheckResult, err error) {
		err = x.with(t, func(rq *block.Req, file *block.Child) (err error) {
			res, err = checkWithin(rq, file, block.CheckOptions{Fix: fix}, 1<<16)
			return err
		})
		return res, err
	}
	before, err := within(0)
	if err != nil {
		return
	}
	if len(x.ops) > 0 {
		t.Fatalf("a check without repair wrote %d times", len(x.ops))
	}
	fixed, err := within(block.FixErrors | block.FixLeaks)
	if err != nil {
		return
	}
	after, err := within(0)
	if err != nil || after.Corruptions != fixed.Corruptions || after.Leaks != fixed.Leaks || after.CheckErrors != fixed.CheckErrors {
		t.Fatalf("repair says %+v, a check after it %+v, %v", fixed, after, err)
	}
	if before.CheckErrors == 0 && after.Corruptions > before.Corruptions || after.CheckErrors > before.CheckErrors {
		_, was, _ := newTape(b).check(t, 0)
		_, told, _ := x.check(t, 0)
		t.Fatalf("before repair %+v, after it %+v\n%s\n%s", before, after, strings.Join(was, "\n"), strings.Join(told, "\n"))
	}
	wrote := len(x.ops)
	if again, err := within(block.FixErrors | block.FixLeaks); err != nil || again.Corruptions > after.Corruptions {
		t.Fatalf("a second repair: %+v, %v (%d writes)", again, err, len(x.ops)-wrote)
	}
}

// Any bytes are checked and repaired in bounded time and memory, and whatever
// else is done with them either works or is refused.
func FuzzCheck(f *testing.F) {
	for _, b := range smallKinds(f) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > maxFuzzImage {
			return
		}
		holdRepair(t, b)
		for _, g := range []func(e *editor) error{
			func(e *editor) error { _, err := e.createSnapshot(block.Snapshot{Name: "f"}); return err },
			func(e *editor) error { return e.applySnapshot("1") },
			func(e *editor) error { return e.deleteSnapshot("1") },
			func(e *editor) error { _, err := e.listBitmaps(); return err },
			func(e *editor) error { return e.clearBitmap("b") },
			func(e *editor) error { return e.amend(block.Values{"refcount_bits": "32"}, nil) },
			func(e *editor) error { return e.amend(block.Values{"compat": "0.10", "refcount_bits": "16"}, nil) },
		} {
			_ = newTape(b).edit(t, g)
		}
	})
}

// Words of metadata replaced at random, from a seed: what FuzzCheck asserts
// holds for each.
func TestRepairOfRandomDamage(t *testing.T) {
	seeds := smallKinds(t)
	r := rand.New(rand.NewPCG(5, 5))
	n := 300
	if race.Enabled {
		n = 30
	}
	for range n {
		b := append([]byte(nil), seeds[r.IntN(len(seeds))]...)
		for range 1 + r.IntN(4) {
			damageWord(r, b)
		}
		holdRepair(t, b)
	}
}

// damageWord replaces one word that is not zero, most likely one of metadata.
func damageWord(r *rand.Rand, b []byte) {
	for range 1000 {
		at := r.IntN(len(b)/8) * 8
		x := binary.BigEndian.Uint64(b[at:])
		if x == 0 || b[at] == b[at+1] && b[at] == b[at+7] {
			continue
		}
		switch r.IntN(5) {
		case 0:
			x = 0
		case 1:
			x ^= 1 << r.IntN(64)
		case 2:
			x = binary.BigEndian.Uint64(b[r.IntN(len(b)/8)*8:])
		case 3:
			x += 512
		default:
			x = r.Uint64()
		}
		binary.BigEndian.PutUint64(b[at:], x)
		return
	}
}
