package qcow2

import (
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/testutil"
)

// runsOf are a bitmap's runs.
func runsOf(t testing.TB, x *tape, name string) (all [][2]int64) {
	t.Helper()
	x.must(t, func(e *editor) error {
		return e.bitmapRuns(name, func(off, n int64) error {
			all = append(all, [2]int64{off, n})
			return nil
		})
	})
	return all
}

// Bitmaps that qemu-img makes and qemu-io marks we read, and ours it merges.
func TestBitmapsBothWays(t *testing.T) {
	for _, o := range []string{"cluster_size=64k", "cluster_size=512", "cluster_size=4k,refcount_bits=64"} {
		t.Run(o, func(t *testing.T) {
			path := image(t, "65M", o)
			testutil.Run(t, "qemu-img", "bitmap", "--add", "-g", "512", path, "fine")
			testutil.Run(t, "qemu-img", "bitmap", "--add", "--disable", "-g", "1M", path, "off")
			testutil.Run(t, "qemu-img", "bitmap", "--add", path, "default")
			io(t, path, "write 1M 1M", "write 512 512", "write 2048 512", "write 64M 1M", "discard 32M 64k")
			x := load(t, path)
			want := [][2]int64{{512, 512}, {2048, 512}, {1 << 20, 1 << 20}, {32 << 20, 64 << 10}, {64 << 20, 1 << 20}}
			if got := runsOf(t, x, "fine"); !reflect.DeepEqual(got, want) {
				t.Errorf("fine: %d", got)
			}
			if got := runsOf(t, x, "off"); len(got) != 0 {
				t.Errorf("off: %d", got)
			}
			x.must(t, func(e *editor) error {
				if err := e.addBitmap(block.Bitmap{Name: "ours", Granularity: 4096}); err != nil {
					return err
				}
				if err := e.mergeBitmap("off", func(f func(off, n int64) error) error { return e.bitmapRuns("fine", f) }); err != nil {
					return err
				}
				return e.mergeBitmap("ours", func(f func(off, n int64) error) error { return f(5000, 10000) })
			})
			clean(t, x, path)
			testutil.Run(t, "qemu-img", "bitmap", "--merge", "ours", path, "fine")
			testutil.Run(t, "qemu-img", "bitmap", "--merge", "off", path, "default")
			testutil.Run(t, "qemu-img", "bitmap", "--clear", path, "ours")
			x = load(t, path)
			if got, want := runsOf(t, x, "fine"), append([][2]int64{{512, 512}, {2048, 512}, {4096, 12288}}, want[2:]...); !reflect.DeepEqual(got, want) {
				t.Errorf("fine with ours merged: %d", got)
			}
			if got, want := runsOf(t, x, "off"), [][2]int64{{0, 2 << 20}, {32 << 20, 1 << 20}, {64 << 20, 1 << 20}}; !reflect.DeepEqual(got, want) {
				t.Errorf("off with fine merged: %d", got)
			}
			changeEach(t, x)
			clean(t, x, path)
			out := testutil.Run(t, "qemu-img", "info", path)
			if strings.Contains(out, "name: fine") || !strings.Contains(out, "name: ours") {
				t.Errorf("qemu-img says %s", out)
			}
		})
	}
}

// changeEach removes, clears, enables and disables.
func changeEach(t *testing.T, x *tape) {
	x.must(t, func(e *editor) error {
		for _, err := range []error{e.removeBitmap("fine"), e.clearBitmap("off"), e.enableBitmap("off", true), e.enableBitmap("default", false)} {
			if err != nil {
				return err
			}
		}
		all, err := e.listBitmaps()
		want := []block.Bitmap{{Name: "off", Granularity: 1 << 20, Enabled: true}, {Name: "default", Granularity: all[1].Granularity, Dirty: all[1].Dirty}, {Name: "ours", Granularity: 4096}}
		if !reflect.DeepEqual(all, want) || all[1].Dirty < 2<<20 {
			t.Errorf("listed %+v", all)
		}
		return err
	})
}

// What may not be is refused: names, granularities, versions, and the use of
// bitmaps that were not stored.
func TestBitmapsRefused(t *testing.T) {
	x := load(t, image(t, "1M", "cluster_size=4k"))
	add := func(b block.Bitmap) error { return x.edit(t, func(e *editor) error { return e.addBitmap(b) }) }
	for _, c := range []struct {
		b  block.Bitmap
		ok bool
	}{
		{block.Bitmap{Name: "a", Enabled: true}, true},
		{block.Bitmap{Name: "a"}, false},
		{block.Bitmap{Name: ""}, false},
		{block.Bitmap{Name: strings.Repeat("n", maxBitmapName)}, true},
		{block.Bitmap{Name: strings.Repeat("n", maxBitmapName+1)}, false},
		{block.Bitmap{Name: "b", Granularity: 256}, false},
		{block.Bitmap{Name: "b", Granularity: 512}, true},
		{block.Bitmap{Name: "c", Granularity: 3000}, false},
		{block.Bitmap{Name: "c", Granularity: 1 << 31}, true},
		{block.Bitmap{Name: "d", Granularity: 1 << 32}, false},
	} {
		if err := add(c.b); (err == nil) != c.ok {
			t.Errorf("name %.9q, granularity %d: %v", c.b.Name, c.b.Granularity, err)
		}
	}
	x.must(t, func(e *editor) error { return e.setInUse(func(m *bitmapEntry) bool { return m.name == "a" }, true) })
	for name, f := range map[string]func(e *editor) error{
		"clear":  func(e *editor) error { return e.clearBitmap("a") },
		"enable": func(e *editor) error { return e.enableBitmap("a", true) },
		"runs":   func(e *editor) error { return e.bitmapRuns("a", func(_, _ int64) error { return nil }) },
		"remove another": func(e *editor) error {
			return e.removeBitmap("z")
		},
	} {
		if err := x.edit(t, f); err == nil {
			t.Errorf("%s of a bitmap that was not stored was taken", name)
		}
	}
	x.must(t, func(e *editor) error { return e.removeBitmap("a") })
	clean(t, x, filepath.Join(t.TempDir(), "left.qcow2"))
	old := load(t, image(t, "1M", "compat=0.10"))
	if err := old.edit(t, func(e *editor) error { return e.addBitmap(block.Bitmap{Name: "a"}) }); err == nil {
		t.Error("an image of version 2 has a bitmap")
	}
}

// A power cut at any write leaves bitmaps as they were or as they are to be.
func TestBitmapsCutOff(t *testing.T) {
	path := image(t, "6M", "cluster_size=512", "write 0 1M")
	testutil.Run(t, "qemu-img", "bitmap", "--add", "-g", "512", path, "one")
	testutil.Run(t, "qemu-img", "bitmap", "--add", path, strings.Repeat("long", 100))
	io(t, path, "write 512 512", "write 2M 64k")
	state := func(b []byte) (s string) {
		x := newTape(b)
		x.must(t, func(e *editor) error {
			all, err := e.readBitmaps()
			for _, m := range all {
				s += fmt.Sprint(m.name, m.flags)
				if m.flags&bitmapInUse == 0 {
					s += fmt.Sprint(runsOf(t, x, m.name))
				}
			}
			return err
		})
		return s
	}
	b := load(t, path).b
	for name, f := range map[string]func(e *editor) error{
		"add":    func(e *editor) error { return e.addBitmap(block.Bitmap{Name: "two", Granularity: 512}) },
		"remove": func(e *editor) error { return e.removeBitmap("one") },
		"merge": func(e *editor) error {
			return e.mergeBitmap("one", func(f func(off, n int64) error) error { return f(4<<20, 4096) })
		},
		"enable": func(e *editor) error { return e.enableBitmap("one", false) },
	} {
		x := newTape(b)
		x.must(t, f)
		was, is := state(b), state(x.b)
		x.cuts(3, func(n int, b []byte) {
			y := newTape(b)
			res, told, err := y.check(t, block.FixErrors|block.FixLeaks)
			if err != nil || res.Corruptions+res.Leaks+res.CheckErrors != 0 {
				t.Errorf("%s cut off at %d of %d: %v, %+v\n%s", name, n, len(x.ops), err, res, strings.Join(told, "\n"))
			}
			if got := state(y.b); got != was && got != is {
				t.Errorf("%s cut off at %d of %d: %s", name, n, len(x.ops), got)
			}
		})
	}
}
