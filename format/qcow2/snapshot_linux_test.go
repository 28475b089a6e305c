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

// snapshotContents are the contents of all snapshots, by ID and name.
func snapshotContents(t testing.TB, b []byte) map[string]map[int64]string {
	t.Helper()
	all := map[string]map[int64]string{}
	newTape(b).must(t, func(e *editor) error {
		list, _, err := e.readSnapshots()
		for _, s := range list {
			all[s.id+" "+s.name] = content(t, b, s.l1Off, s.l1Entries)
		}
		return err
	})
	return all
}

// clean asserts that qemu-img and we find nothing wrong.
func clean(t testing.TB, x *tape, path string) {
	t.Helper()
	save(t, x.b, path)
	r := theirs(t, path)
	ours, told, err := x.check(t, 0)
	if err != nil || ours.Corruptions+ours.Leaks+ours.CheckErrors != 0 || r.Corruptions+r.Leaks+r.CheckErrors != 0 {
		t.Errorf("%v: we find %+v, qemu-img %+v\n%s", err, ours, r, strings.Join(told, "\n"))
	}
}

// Snapshots that we make, apply and delete are what qemu-img makes of them.
func TestSnapshotsBothWays(t *testing.T) {
	for name, path := range kinds(t) {
		t.Run(name, func(t *testing.T) {
			if name == "refcounts 1" {
				refusesSnapshot(t, path)
				return
			}
			testutil.Run(t, "qemu-img", "snapshot", "-c", "theirs", path)
			x := load(t, path)
			before := disk(t, x.b)
			x.must(t, func(e *editor) error {
				_, err := e.createSnapshot(block.Snapshot{Name: "ours", DateSec: 1700000000})
				return err
			})
			clean(t, x, path)
			if out := testutil.Run(t, "qemu-img", "snapshot", "-l", path); !strings.Contains(out, "ours") || !strings.Contains(out, "theirs") {
				t.Errorf("qemu-img lists %s", out)
			}
			io(t, path, "write -P 77 64k 2M", "write -P 78 30M 100k")
			changed := load(t, path)
			after := disk(t, changed.b)
			switch name {
			case "bitmaps": // qemu-img applies no snapshot where there are bitmaps
			case "refcounts 2": // three users of a cluster are the most
				if err := changed.edit(t, func(e *editor) error { return e.applySnapshot("ours") }); err == nil {
					t.Error("a refcount of 4 was put into 2 bits")
				}
				clean(t, changed, path)
			default:
				changed = applyBothWays(t, changed, path, before, after)
			}
			after = disk(t, changed.b)
			for _, s := range []string{"theirs", "ours"} {
				changed.must(t, func(e *editor) error { return e.deleteSnapshot(s) })
				clean(t, changed, path)
			}
			if got := disk(t, changed.b); !reflect.DeepEqual(got, after) {
				t.Error("after the snapshots were deleted the disk reads otherwise")
			}
		})
	}
}

// applyBothWays has qemu-img apply our snapshot, and us theirs.
func applyBothWays(t *testing.T, x *tape, path string, before, after map[int64]string) *tape {
	testutil.Run(t, "qemu-img", "snapshot", "-a", "ours", path)
	if got := disk(t, load(t, path).b); !reflect.DeepEqual(got, before) {
		t.Error("after qemu-img applied our snapshot the disk reads otherwise")
	}
	x.must(t, func(e *editor) error { return e.applySnapshot("theirs") })
	clean(t, x, path)
	if got := disk(t, x.b); !reflect.DeepEqual(got, before) || reflect.DeepEqual(got, after) {
		t.Error("after we applied their snapshot the disk reads otherwise")
	}
	io(t, path, "write -P 79 0 1M")
	return load(t, path)
}

// refusesSnapshot: with refcounts of one bit nothing can be shared.
func refusesSnapshot(t *testing.T, path string) {
	x := load(t, path)
	err := x.edit(t, func(e *editor) error {
		_, err := e.createSnapshot(block.Snapshot{Name: "ours"})
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "refcounts have 1 bits") {
		t.Errorf("a snapshot with refcounts of one bit: %v", err)
	}
	clean(t, x, path)
}

// A power cut at any write of create, apply and delete leaves the disk and each
// snapshot as they were or as they are to be.
func TestSnapshotsCutOff(t *testing.T) {
	states := 0
	for _, o := range []string{"cluster_size=4k", "compat=0.10,cluster_size=4k", "cluster_size=64k,extended_l2=on", "cluster_size=512,refcount_bits=64"} {
		path := image(t, "6M", o, "write -P 1 0 300k", "write -P 2 3M 70k", "write -z 1M 64k")
		testutil.Run(t, "qemu-img", "snapshot", "-c", "first", path)
		io(t, path, "write -P 3 100k 100k", "write -P 4 4M 10k")
		b := load(t, path).b
		for step, f := range map[string]func(e *editor) error{
			"create": func(e *editor) error { _, err := e.createSnapshot(block.Snapshot{Name: "second"}); return err },
			"apply":  func(e *editor) error { return e.applySnapshot("first") },
			"delete": func(e *editor) error { return e.deleteSnapshot("1") },
		} {
			x := newTape(b)
			x.must(t, f)
			was, is := snapshotState(t, b), snapshotState(t, x.b)
			if reflect.DeepEqual(was, is) {
				t.Errorf("%s changed nothing", step)
			}
			x.cuts(1, func(n int, b []byte) {
				states++
				y := newTape(b)
				where := fmt.Sprintf("%s of %s, cut off at %d of %d", step, o, n, len(x.ops))
				found, told, err := y.check(t, 0)
				if l, _ := parseLayout(b); err != nil || found.Corruptions+found.CheckErrors > 0 && l.version == 3 && l.incompat&featDirty == 0 {
					t.Errorf("%s: %v, %+v\n%s", where, err, found, strings.Join(told, "\n"))
				}
				res, told, err := y.check(t, block.FixErrors|block.FixLeaks)
				if err != nil || res.Corruptions+res.Leaks+res.CheckErrors != 0 {
					t.Errorf("%s: %v, after repair %+v\n%s", where, err, res, strings.Join(told, "\n"))
				}
				if got := snapshotState(t, y.b); !reflect.DeepEqual(got, was) && !reflect.DeepEqual(got, is) {
					t.Errorf("%s: the disk or its snapshots read otherwise", where)
				}
			})
		}
	}
	t.Logf("%d states", states)
}

// snapshotState is what there is to read in an image.
func snapshotState(t testing.TB, b []byte) map[string]map[int64]string {
	t.Helper()
	all := snapshotContents(t, b)
	all["disk"] = disk(t, b)
	return all
}

// Names and IDs are bounded and IDs unique; an ID is found before a name.
func TestSnapshotNames(t *testing.T) {
	path := image(t, "1M", "cluster_size=4k", "write -P 1 0 64k")
	x := load(t, path)
	create := func(s block.Snapshot) error {
		return x.edit(t, func(e *editor) error { _, err := e.createSnapshot(s); return err })
	}
	for _, s := range []struct {
		s  block.Snapshot
		ok bool
	}{
		{block.Snapshot{ID: "7", Name: "2"}, true},
		{block.Snapshot{ID: "7", Name: "again"}, false},
		{block.Snapshot{Name: strings.Repeat("n", maxSnapshotName)}, true},
		{block.Snapshot{Name: strings.Repeat("n", maxSnapshotName+1)}, false},
		{block.Snapshot{ID: strings.Repeat("i", maxSnapshotID), Name: "2"}, true},
		{block.Snapshot{ID: strings.Repeat("i", maxSnapshotID+1)}, false},
		{block.Snapshot{ID: "2", Name: "7", VMClockNsec: 1<<40 + 7, ICount: 99}, true},
	} {
		if err := create(s.s); (err == nil) != s.ok {
			t.Errorf("ID %.9q, name %.9q: %v", s.s.ID, s.s.Name, err)
		}
	}
	var ids []string
	x.must(t, func(e *editor) error {
		all, err := e.listSnapshots()
		for _, s := range all {
			ids = append(ids, s.ID)
		}
		if last := all[len(all)-1]; last.VMClockNsec != 1<<40+7 || last.ICount != 99 || last.DiskSize != 1<<20 {
			t.Errorf("kept as %+v", last)
		}
		return err
	})
	if want := []string{"7", "8", strings.Repeat("i", maxSnapshotID), "2"}; !reflect.DeepEqual(ids, want) {
		t.Errorf("IDs %q", ids)
	}
	for _, find := range []string{"2", "7", "2", "8"} {
		x.must(t, func(e *editor) error { return e.deleteSnapshot(find) })
	}
	if err := x.edit(t, func(e *editor) error { return e.deleteSnapshot("2") }); err == nil {
		t.Error("a snapshot that is not there was deleted")
	}
	clean(t, x, filepath.Join(t.TempDir(), "left.qcow2"))
}

// What is written between two snapshots of another size comes back with it.
func TestSnapshotOfAnotherSize(t *testing.T) {
	path := image(t, "1M", "cluster_size=4k", "write -P 1 0 64k")
	testutil.Run(t, "qemu-img", "snapshot", "-c", "small", path)
	testutil.Run(t, "qemu-img", "resize", "-q", path, "40M")
	io(t, path, "write -P 2 30M 64k")
	testutil.Run(t, "qemu-img", "snapshot", "-c", "large", path)
	x := load(t, path)
	for _, s := range []struct {
		name string
		size uint64
	}{{"small", 1 << 20}, {"large", 40 << 20}} {
		x.must(t, func(e *editor) error { return e.applySnapshot(s.name) })
		clean(t, x, path)
		x.must(t, func(e *editor) error {
			if e.size != s.size {
				t.Errorf("%s: %d bytes", s.name, e.size)
			}
			l, err := e.viewSnapshot("small")
			if l.size != 1<<20 || len(content(t, x.b, l.l1Off, l.l1Entries)) != 16 {
				t.Errorf("seen through it: %d bytes", l.size)
			}
			return err
		})
	}
	io(t, path, "read -P 2 30M 64k", "read -P 1 0 64k")
}
