package qcow2

import (
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/platter-storage/platter/block"
	bt "github.com/platter-storage/platter/block/blocktest"
	"github.com/platter-storage/platter/internal/testutil"
)

// Enabled bitmaps mark each change of an open image; they are in use meanwhile,
// and stored when it is closed, also where other abilities are used in between.
func TestBitmapsOfAnOpenImage(t *testing.T) {
	path := image(t, "8M", "cluster_size=4k", "write -P 1 2M 64k")
	for _, b := range []string{"on", "off"} {
		testutil.Run(t, "qemu-img", "bitmap", "--add", "-g", "4096", path, b)
	}
	testutil.Run(t, "qemu-img", "bitmap", "--disable", path, "off")
	x := load(t, path)
	opened(t, x, nil, false, func(t *testing.T, c *bt.Client) {
		flags := map[string]bool{}
		newTape(x.b).must(t, func(e *editor) error {
			all, err := e.readBitmaps()
			for _, m := range all {
				flags[m.name] = m.flags&bitmapInUse != 0
			}
			return err
		})
		if want := map[string]bool{"on": true, "off": false}; !reflect.DeepEqual(flags, want) {
			t.Errorf("in use while the image is open: %v", flags)
		}
		fill(t, c, 100, 8000, 7)
		fill(t, c, 2<<20, 4096, 7)
		if err := c.Zero(3<<20, 8192, block.MayUnmap); err != nil {
			t.Error(err)
		}
		alone(t, c, block.PermWrite, func(rq *block.Req, a *block.Abilities) error {
			list, err := a.Bitmaps.List(rq)
			want := []block.Bitmap{{Name: "on", Granularity: 4096, Enabled: true, Dirty: 5 * 4096}, {Name: "off", Granularity: 4096}}
			if !reflect.DeepEqual(list, want) {
				t.Errorf("%+v", list)
			}
			if err == nil {
				err = a.Bitmaps.Add(rq, block.Bitmap{Name: "late", Granularity: 512, Enabled: true})
			}
			return err
		})
		fill(t, c, 4<<20, 512, 9)
		if err := c.Discard(5<<20, 4096); err != nil {
			t.Error(err)
		}
		if err := c.Truncate(9 << 20); err != nil {
			t.Error(err)
		}
		fill(t, c, 9<<20-512, 512, 9)
	})
	clean(t, x, path)
	want := [][2]int64{{0, 8192}, {2 << 20, 4096}, {3 << 20, 8192}, {4 << 20, 4096}, {5 << 20, 4096}, {9<<20 - 4096, 4096}}
	if got := runsOf(t, x, "on"); !reflect.DeepEqual(got, want) {
		t.Errorf("on: %d", got)
	}
	if got := runsOf(t, x, "late"); len(got) != 3 || got[0] != [2]int64{4 << 20, 512} || got[2] != [2]int64{9<<20 - 512, 512} {
		t.Errorf("late: %d", got)
	}
	if got := runsOf(t, x, "off"); len(got) != 0 {
		t.Errorf("off: %d", got)
	}
}

// Writes in the fast lane are marked too.
func TestBitmapsMarkTheFastLane(t *testing.T) {
	env := bt.NewEnv(t)
	_, file := newImage(t, env, 8<<20, block.Values{}, nil)
	c := bt.NewClient(t, bt.Edge(t, bt.Open(t, env, block.Values{"driver": "qcow2"}, map[string]*block.Instance{"file": file})))
	fill(t, c, 0, 1<<20, 1)
	alone(t, c, block.PermWrite, func(rq *block.Req, a *block.Abilities) error {
		return a.Bitmaps.Add(rq, block.Bitmap{Name: "on", Granularity: 512, Enabled: true})
	})
	reads(t, c, 65536, 512, 1) // its L2 table is in memory again
	if ok, err := c.WriteFast(65536, 0, make([]byte, 1024)); !ok || err != nil {
		t.Errorf("the fast lane was not taken: %v, %v", ok, err)
	}
	alone(t, c, block.PermRead, func(rq *block.Req, a *block.Abilities) error {
		var got [][2]int64
		err := a.Bitmaps.Runs(rq, "on", func(off, n int64) error {
			got = append(got, [2]int64{off, n})
			return nil
		})
		if !reflect.DeepEqual(got, [][2]int64{{65536, 1024}}) {
			t.Errorf("marked %d", got)
		}
		return err
	})
}

// An image that was cut off while its bitmaps were in use keeps them as what can
// only be removed.
func TestBitmapsAfterACrash(t *testing.T) {
	path := image(t, "8M", "cluster_size=4k")
	testutil.Run(t, "qemu-img", "bitmap", "--add", path, "on")
	x := load(t, path)
	var crashed *tape
	opened(t, x, nil, false, func(t *testing.T, c *bt.Client) {
		fill(t, c, 0, 4096, 7)
		if err := c.Flush(); err != nil {
			t.Error(err)
		}
		crashed = newTape(x.b)
	})
	opened(t, crashed, nil, false, func(t *testing.T, c *bt.Client) {
		reads(t, c, 0, 4096, 7)
		alone(t, c, block.PermWrite, func(rq *block.Req, a *block.Abilities) error {
			list, err := a.Bitmaps.List(rq)
			if err != nil || len(list) != 1 || !list[0].InUse {
				t.Errorf("%+v, %v", list, err)
			}
			if err := a.Bitmaps.Clear(rq, "on"); err == nil {
				t.Error("it was cleared, as if it were consistent")
			}
			return a.Bitmaps.Remove(rq, "on")
		})
	})
	clean(t, crashed, path)
}

// Snapshots, checks and amendments of an image that is open: what was written
// before and after is where it belongs.
func TestAbilitiesOfAnOpenImage(t *testing.T) {
	for _, o := range []string{"cluster_size=4k", "compat=0.10", "extended_l2=on,cluster_size=16k", "cluster_size=512,refcount_bits=64"} {
		t.Run(o, func(t *testing.T) {
			path := image(t, "8M", o, "write -P 1 0 1M")
			x := load(t, path)
			opened(t, x, nil, false, func(t *testing.T, c *bt.Client) {
				fill(t, c, 512<<10, 1<<20, 2)
				alone(t, c, block.PermWrite, func(rq *block.Req, a *block.Abilities) error {
					_, err := a.Snapshots.Create(rq, block.Snapshot{Name: "s"})
					return err
				})
				fill(t, c, 256<<10, 1<<20, 3)
				if err := c.Zero(0, 64<<10, block.MayUnmap); err != nil {
					t.Error(err)
				}
				reads(t, c, 256<<10, 1<<20, 3)
				alone(t, c, block.PermRead, func(rq *block.Req, a *block.Abilities) error {
					res, err := a.Check(rq, block.CheckOptions{})
					if res.Corruptions+res.Leaks+res.CheckErrors != 0 {
						t.Errorf("while it is open: %+v", res)
					}
					return err
				})
				alone(t, c, block.PermWrite, func(rq *block.Req, a *block.Abilities) error { return a.Snapshots.Apply(rq, "s") })
				reads(t, c, 0, 512<<10, 1)
				reads(t, c, 512<<10, 1<<20, 2)
				fill(t, c, 0, 4096, 4)
				alone(t, c, block.PermWrite, func(rq *block.Req, a *block.Abilities) error {
					return a.Amend.Amend(rq, block.Values{"compat": "1.1", "refcount_bits": "32"}, nil)
				})
				fill(t, c, 4<<20, 1<<20, 5)
				reads(t, c, 4<<20, 1<<20, 5)
			})
			clean(t, x, path)
			opened(t, x, block.Values{"snapshot": "s"}, true, func(t *testing.T, c *bt.Client) {
				reads(t, c, 0, 512<<10, 1)
				reads(t, c, 512<<10, 1<<20, 2)
				reads(t, c, 4<<20, 1<<20, 0)
			})
			opened(t, x, nil, false, func(t *testing.T, c *bt.Client) {
				alone(t, c, block.PermWrite, func(rq *block.Req, a *block.Abilities) error { return a.Snapshots.Delete(rq, "s") })
				fill(t, c, 0, 1<<20, 6)
				reads(t, c, 512<<10, 512<<10, 6)
				reads(t, c, 1<<20, 512<<10, 2)
			})
			clean(t, x, path)
		})
	}
}

// An image with the dirty bit is repaired when it is opened for writing; one that
// cannot be opened is checked and repaired with check=on.
func TestRepairOnOpen(t *testing.T) {
	path := image(t, "8M", "cluster_size=4k", "write -P 1 0 1M")
	x := load(t, path)
	p := &patient{b: x.b}
	p.l, _ = parseLayout(x.b)
	p.put(atFeatures, featDirty)
	p.setRef(p.data(3), 0)
	x = newTape(p.b)
	opened(t, x, nil, false, func(t *testing.T, c *bt.Client) { reads(t, c, 0, 1<<20, 1) })
	clean(t, x, path)

	p.put(atFeatures, featCorrupt)
	p.put(p.l.tableOff, 1<<40)
	x = newTape(p.b)
	env := bt.NewEnv(t)
	if _, err := bt.TryOpen(t, env, block.Values{"driver": "qcow2"}, map[string]*block.Instance{"file": bt.Attach(t, env, x, "file")}, false); err == nil || !strings.Contains(err.Error(), "check") {
		t.Errorf("an image that is marked corrupt was opened for writing: %v", err)
	}
	opened(t, x, block.Values{"check": "on"}, false, func(t *testing.T, c *bt.Client) {
		alone(t, c, block.PermWrite, func(rq *block.Req, a *block.Abilities) error {
			res, err := a.Check(rq, block.CheckOptions{Fix: block.FixErrors | block.FixLeaks})
			if res.CorruptionsFixed == 0 || res.Corruptions+res.Leaks+res.CheckErrors != 0 {
				t.Errorf("%+v", res)
			}
			return err
		})
		if err := c.Read(0, make([]byte, 0)); err != nil {
			t.Error(err)
		}
	})
	clean(t, x, filepath.Join(t.TempDir(), "repaired.qcow2"))
	opened(t, x, nil, false, func(t *testing.T, c *bt.Client) { reads(t, c, 0, 1<<20, 1) })
}
