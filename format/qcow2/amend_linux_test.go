package qcow2

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/testutil"
)

// copyFile copies an image beside it.
func copyFile(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(filepath.Dir(path), "copy.qcow2")
	save(t, b, to)
	return to
}

// Each amendment of each kind of image is sound, says what was asked for, and
// reads the same; what cannot be is refused and changes nothing.
func TestAmend(t *testing.T) {
	refused := map[string]string{
		"extended compat=0.10": "", "zstd compat=0.10": "", "bitmaps compat=0.10": "",
		"refcounts 1 compat=0.10": "", "refcounts 64 compat=0.10": "", "refcounts 2 compat=0.10": "",
		"v2 refcount_bits=64": "", "v2 refcount_bits=1": "", "v2 lazy_refcounts=on": "", "snapshots refcount_bits=1": "",
	}
	for name, path := range kinds(t) {
		for _, o := range []string{"compat=0.10", "compat=1.1", "refcount_bits=64", "refcount_bits=1", "compat=1.1,refcount_bits=8,lazy_refcounts=on", "lazy_refcounts=on", "backing_file=,compat=0.10,refcount_bits=16"} {
			if (o == "compat=1.1" || o == "lazy_refcounts=on") && name != "plain" && name != "v2" {
				continue // nothing, or one bit, changes
			}
			t.Run(name+" "+o, func(t *testing.T) {
				x := load(t, path)
				vals, err := block.ParseOptions(o)
				if err != nil {
					t.Fatal(err)
				}
				before := append([]byte(nil), x.b...)
				err = x.edit(t, func(e *editor) error { return e.amend(vals, nil) })
				if _, no := refused[name+" "+o]; no || strings.HasPrefix(o, "backing_file") && (name == "bitmaps" || name == "extended" || name == "zstd") {
					if err == nil || !reflect.DeepEqual(snapshotState(t, x.b), snapshotState(t, before)) {
						t.Errorf("was not refused: %v", err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				to := filepath.Join(t.TempDir(), "amended.qcow2")
				clean(t, x, to)
				if !reflect.DeepEqual(snapshotState(t, x.b), snapshotState(t, before)) {
					t.Error("the disk or its snapshots read otherwise")
				}
				if name == "plain" {
					says(t, to, vals)
				}
				if vals["compat"] == "0.10" {
					testutil.Run(t, "qemu-img", "compare", "-f", "qcow2", "-F", "qcow2", path, to)
				}
			})
		}
	}
}

// says asserts that qemu-img sees what was asked for.
func says(t *testing.T, path string, vals block.Values) {
	t.Helper()
	out := testutil.Run(t, "qemu-img", "info", path)
	for k, line := range map[string]string{"compat": "compat: ", "refcount_bits": "refcount bits: "} {
		if v, ok := vals[k]; ok && !strings.Contains(out, line+v) {
			t.Errorf("%s=%s: qemu-img says %s", k, v, out)
		}
	}
	if vals["lazy_refcounts"] == "on" && !strings.Contains(out, "lazy refcounts: true") {
		t.Errorf("lazy_refcounts=on: qemu-img says %s", out)
	}
}

// Zeroes over a backing file stay zeroes in version 2, in snapshots as well.
func TestAmendZeroesOverBacking(t *testing.T) {
	dir := t.TempDir()
	base, over := filepath.Join(dir, "base.raw"), filepath.Join(dir, "over.qcow2")
	testutil.Run(t, "qemu-img", "create", "-q", "-f", "raw", base, "4M")
	testutil.Run(t, "qemu-io", "-f", "raw", "-c", "write -P 170 0 4M", base)
	testutil.Run(t, "qemu-img", "create", "-q", "-f", "qcow2", "-o", "cluster_size=4k", "-b", base, "-F", "raw", over)
	io(t, over, "write -P 1 0 64k", "write -z 32k 128k", "write -P 2 1M 64k", "write -z -u 1M 32k")
	testutil.Run(t, "qemu-img", "snapshot", "-c", "s", over)
	io(t, over, "write -P 3 40k 8k", "write -z 2M 64k")
	x := load(t, over)
	x.must(t, func(e *editor) error { return e.amend(block.Values{"compat": "0.10"}, nil) })
	was, to := copyFile(t, over), over
	save(t, x.b, to)
	if r := theirs(t, to); r.Corruptions+r.Leaks+r.CheckErrors != 0 {
		t.Errorf("qemu-img says %+v", r)
	}
	testutil.Run(t, "qemu-img", "compare", "-f", "qcow2", "-F", "qcow2", was, to)
	for _, p := range []string{was, to} {
		testutil.Run(t, "qemu-img", "snapshot", "-a", "s", p)
	}
	testutil.Run(t, "qemu-img", "compare", "-f", "qcow2", "-F", "qcow2", was, to)
	x = load(t, to)
	x.must(t, func(e *editor) error {
		return e.amend(block.Values{"compat": "1.1", "backing_file": "other.raw", "backing_fmt": "raw"}, nil)
	})
	save(t, x.b, to)
	if out := testutil.Run(t, "qemu-img", "info", to); !strings.Contains(out, "backing file: other.raw") || !strings.Contains(out, "compat: 1.1") {
		t.Errorf("qemu-img says %s", out)
	}
}

// A power cut at any write of an amend leaves an image that reads the same.
func TestAmendCutOff(t *testing.T) {
	states := 0
	for _, c := range [][2]string{
		{"cluster_size=4k", "compat=0.10"}, {"cluster_size=4k,compat=0.10", "compat=1.1,refcount_bits=1"},
		{"cluster_size=512", "refcount_bits=64"}, {"cluster_size=4k", "backing_file=x,backing_fmt=raw,lazy_refcounts=on"},
	} {
		path := image(t, "6M", c[0], "write -P 1 0 300k", "write -P 2 3M 70k")
		if !strings.Contains(c[1], "refcount_bits=1") {
			if !strings.Contains(c[0], "0.10") {
				io(t, path, "write -z 64k 64k", "write -z 2M 64k")
			}
			testutil.Run(t, "qemu-img", "snapshot", "-c", "s", path)
			io(t, path, "write -P 4 100k 20k")
		}
		x := load(t, path)
		vals, err := block.ParseOptions(c[1])
		if err != nil {
			t.Fatal(err)
		}
		was := snapshotState(t, x.b)
		x.must(t, func(e *editor) error { return e.amend(vals, nil) })
		is := snapshotState(t, x.b)
		x.cuts(7, func(n int, b []byte) {
			states++
			y := newTape(b)
			where := fmt.Sprintf("%s to %s, cut off at %d of %d", c[0], c[1], n, len(x.ops))
			res, told, err := y.check(t, block.FixErrors|block.FixLeaks)
			if err != nil || res.Corruptions+res.Leaks+res.CheckErrors != 0 {
				t.Errorf("%s: %v, after repair %+v\n%s", where, err, res, strings.Join(told, "\n"))
			}
			if got := snapshotState(t, y.b); !reflect.DeepEqual(got, was) && !reflect.DeepEqual(got, is) {
				t.Errorf("%s: the disk or its snapshots read otherwise", where)
			}
		})
	}
	t.Logf("%d states", states)
}
