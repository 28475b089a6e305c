package qcow2

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/platter-storage/platter/block"
	bt "github.com/platter-storage/platter/block/blocktest"
	"github.com/platter-storage/platter/graph"
	"github.com/platter-storage/platter/internal/race"
	"github.com/platter-storage/platter/internal/realenv"
	"github.com/platter-storage/platter/internal/testutil"
	_ "github.com/platter-storage/platter/protocol/all"
)

func TestMain(m *testing.M) { testutil.Main(m) }

// use opens an image through the whole of Platter and calls f with an edge.
func use(t testing.TB, path string, readOnly bool, opts block.Values, f func(c *bt.Client)) {
	t.Helper()
	if err := tryUse(t, path, readOnly, opts, f); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

func tryUse(t testing.TB, path string, readOnly bool, opts block.Values, f func(c *bt.Client)) error {
	t.Helper()
	env := realenv.New(slog.New(slog.NewTextHandler(io.Discard, nil)), 0)
	g := graph.New(env)
	vals := block.Values{"driver": "qcow2", "file.driver": "file", "file.filename": path, "file.aio": "threads", "file.cache": "writeback"}
	for k, x := range opts {
		vals[k] = x
	}
	in, err := g.Add(context.Background(), vals, readOnly)
	if err != nil {
		return errors.Join(err, g.Close(), env.CloseBuffers())
	}
	perm := block.PermAll
	if readOnly {
		perm = block.PermRead
	}
	c, err := in.NewChild("test", block.RoleRoot, perm, block.PermAll)
	if err != nil {
		t.Fatal(err)
	}
	group := block.NewQueueGroup()
	cl := &bt.Client{Child: c, Group: group, Queue: block.NewQueue(env, group)}
	f(cl)
	cl.Queue.Close()
	c.Close()
	if err := errors.Join(g.Close(), env.CloseBuffers()); err != nil {
		t.Fatalf("closing %s: %v", path, err)
	}
	return nil
}

// readOurs is the content as Platter reads it.
func readOurs(t testing.TB, path string, opts block.Values) (b []byte) {
	t.Helper()
	use(t, path, true, opts, func(c *bt.Client) {
		b = make([]byte, c.Child.Size())
		const step = 1 << 20
		for off := 0; off < len(b); off += step {
			if err := c.Read(int64(off), b[off:min(off+step, len(b))]); err != nil {
				t.Fatal(err)
			}
		}
	})
	return b
}

// readTheirs is the content as the reference reads it.
func readTheirs(t testing.TB, path string) []byte {
	t.Helper()
	out := path + ".raw"
	testutil.Run(t, "qemu-img", "convert", "-f", "qcow2", "-O", "raw", path, out)
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(out); err != nil {
		t.Fatal(err)
	}
	return b
}

// equal compares, the reference's reading being padded to whole sectors.
func equal(t testing.TB, what string, ours, theirs []byte) {
	t.Helper()
	if len(ours) > len(theirs) || len(theirs)-len(ours) >= 512 {
		t.Errorf("%s: we read %d bytes, the reference %d", what, len(ours), len(theirs))
		return
	}
	for i := range ours {
		if ours[i] != theirs[i] {
			t.Errorf("%s: byte %d is %#02x with us, %#02x with the reference", what, i, ours[i], theirs[i])
			return
		}
	}
}

// sound has the reference and us check an image.
func sound(t testing.TB, what, path string) {
	t.Helper()
	if out, err := testutil.Try("qemu-img", "check", "-f", "qcow2", path); err != nil {
		t.Errorf("%s: qemu-img check: %v\n%s", what, err, out)
	}
	use(t, path, true, block.Values{"check": "on"}, func(c *bt.Client) {
		var told []string
		var res block.CheckResult
		err := c.Do(block.OpStatus, func(rq *block.Req) error {
			return c.Child.Exclusive(rq, block.PermRead, func(a *block.Abilities) (err error) {
				res, err = a.Check(rq, block.CheckOptions{Report: func(s string) { told = append(told, s) }})
				return err
			})
		})
		if err != nil || res.Corruptions+res.Leaks+res.CheckErrors > 0 {
			t.Errorf("%s: our check: %v, %d corruptions, %d leaks, %d errors: %s", what, err, res.Corruptions, res.Leaks, res.CheckErrors, strings.Join(told[:min(len(told), 3)], "; "))
		}
	})
}

// act is one operation that both sides do.
type act struct {
	kind     string // write, zero, unmap, discard, snapshot, apply, delete, resize or flush
	off, n   int64
	pattern  byte
	snapshot string
}

// qemuIO is the act as a command of qemu-io, empty where another tool does it.
func (a act) qemuIO() string {
	switch a.kind {
	case "write":
		return fmt.Sprintf("write -P %d %d %d", a.pattern, a.off, a.n)
	case "zero":
		return fmt.Sprintf("write -z %d %d", a.off, a.n)
	case "unmap":
		return fmt.Sprintf("write -z -u %d %d", a.off, a.n)
	case "discard":
		return fmt.Sprintf("discard %d %d", a.off, a.n)
	case "flush":
		return "flush"
	}
	return ""
}

// runTheirs runs the script with the reference's tools.
func runTheirs(t testing.TB, path string, script []act) {
	t.Helper()
	var cmds []string
	flush := func() {
		if len(cmds) > 0 {
			out := testutil.Run(t, "qemu-io", append(append([]string{"-d", "unmap", "-f", "qcow2"}, cmds...), path)...)
			if strings.Contains(out, "failed") {
				t.Fatalf("qemu-io: %s", out)
			}
		}
		cmds = nil
	}
	for _, a := range script {
		if c := a.qemuIO(); c != "" {
			cmds = append(cmds, "-c", c)
			continue
		}
		flush()
		switch a.kind {
		case "snapshot":
			testutil.Run(t, "qemu-img", "snapshot", "-c", a.snapshot, path)
		case "apply":
			testutil.Run(t, "qemu-img", "snapshot", "-a", a.snapshot, path)
		case "delete":
			testutil.Run(t, "qemu-img", "snapshot", "-d", a.snapshot, path)
		case "resize":
			testutil.Run(t, "qemu-img", "resize", "-q", "--shrink", "-f", "qcow2", path, fmt.Sprint(a.n))
		}
	}
	flush()
}

// runOurs runs the script with Platter.
func runOurs(t testing.TB, path string, script []act) {
	t.Helper()
	use(t, path, false, nil, func(c *bt.Client) {
		for i, a := range script {
			if err := a.run(c); err != nil {
				t.Fatalf("act %d, %+v: %v", i, a, err)
			}
		}
	})
}

func (a act) run(c *bt.Client) error {
	able := func(f func(rq *block.Req, s *block.SnapshotAbility) error) error {
		return c.Do(block.OpStatus, func(rq *block.Req) error {
			return c.Child.Exclusive(rq, block.PermWrite, func(b *block.Abilities) error { return f(rq, b.Snapshots) })
		})
	}
	switch a.kind {
	case "write":
		return c.Write(a.off, 0, slices.Repeat([]byte{a.pattern}, int(a.n)))
	case "zero":
		return c.Zero(a.off, a.n, 0)
	case "unmap":
		return c.Zero(a.off, a.n, block.MayUnmap)
	case "discard":
		return c.Discard(a.off, a.n)
	case "resize":
		return c.Truncate(a.n)
	case "snapshot":
		return able(func(rq *block.Req, s *block.SnapshotAbility) error {
			_, err := s.Create(rq, block.Snapshot{Name: a.snapshot, DateSec: 1700000000})
			return err
		})
	case "apply":
		return able(func(rq *block.Req, s *block.SnapshotAbility) error { return s.Apply(rq, a.snapshot) })
	case "delete":
		return able(func(rq *block.Req, s *block.SnapshotAbility) error { return s.Delete(rq, a.snapshot) })
	}
	return c.Flush()
}

// script draws acts on a disk of a kind. Positions are multiples of k.unit, or, of
// what makes zeroes, of cluster.
func script(rng *rand.Rand, k kind, count int, cluster int64) (all []act) {
	var live []string
	original, size, unit, snapshots, resize := k.size, k.size, k.unit, k.snap, k.resize
	for i := range count {
		n := (1 + rng.Int64N(1+rng.Int64N(40))) * unit
		n = min(n, size)
		a := act{n: n, off: rng.Int64N((size-n)/unit+1) * unit, pattern: byte(1 + rng.IntN(255))}
		switch d := rng.IntN(20); {
		case d < 9:
			a.kind = "write"
		case d < 11:
			a.kind = "zero"
		case d < 13:
			a.kind = "unmap"
		case d < 15:
			a.kind = "discard"
		case d < 17 || !snapshots && d < 19:
			a.kind = "flush"
		case d < 19:
			a.snapshot = fmt.Sprintf("s%d", i)
			switch how := rng.IntN(3); {
			case len(live) == 0 || how == 0:
				a.kind, live = "snapshot", append(live, a.snapshot)
			case how == 1:
				a.kind, a.snapshot = "apply", live[rng.IntN(len(live))]
			default:
				at := rng.IntN(len(live))
				a.kind, a.snapshot = "delete", live[at]
				live = slices.Delete(live, at, at+1)
			}
		case resize && len(live) == 0:
			// What was cut off within a cluster comes back with the
			// reference, and does not with us (docs/qcow2-proof.md).
			size = (1 + rng.Int64N(original*3/2/k.span())) * k.span()
			a.kind, a.n = "resize", size
		default:
			a.kind = "flush"
		}
		if slices.Contains([]string{"zero", "unmap", "discard"}, a.kind) {
			a.off -= a.off % cluster
			a.n = min((a.n+cluster-1)/cluster*cluster, size-a.off)
		}
		all = append(all, a)
	}
	return all
}

// mapped is one extent of qemu-img map.
type mapped struct {
	Start, Length int64
	Depth         int
	Present       bool
	Zero, Data    bool
}

// theirMap is what qemu-img map says, without host offsets, neighbours of one
// kind joined.
func theirMap(t testing.TB, path string) (all []mapped) {
	t.Helper()
	var list []mapped
	if err := json.Unmarshal([]byte(testutil.Run(t, "qemu-img", "map", "-f", "qcow2", "--output=json", path)), &list); err != nil {
		t.Fatal(err)
	}
	for _, m := range list {
		// A hole in the file below a cluster with data, which is zeroes for
		// the file system only, is its own affair.
		m.Zero = m.Zero && !m.Data
		if k := len(all) - 1; k >= 0 && all[k].Depth == m.Depth && all[k].Present == m.Present && all[k].Zero == m.Zero && all[k].Data == m.Data {
			all[k].Length += m.Length
			continue
		}
		all = append(all, m)
	}
	return all
}

// kind is a kind of image: options of qemu-img create, size, and unit of
// requests.
type kind struct {
	name, opts   string
	size, unit   int64
	backing      bool
	snap, resize bool
}

// span is a length that is whole clusters.
func (k kind) span() int64 {
	if k.size <= 8<<20 {
		return 64 << 10
	}
	return 2 << 20
}

var kindsOf = []kind{
	{"plain", "", 8 << 20, 512, false, true, true},
	{"512", "cluster_size=512", 1 << 20, 512, false, true, true},
	{"4K", "cluster_size=4k", 4 << 20, 512, false, true, true},
	{"2M", "cluster_size=2M", 32 << 20, 65536, false, true, true},
	{"v2", "compat=0.10,cluster_size=4k", 4 << 20, 512, false, true, true},
	{"refcount1", "refcount_bits=1,cluster_size=4k", 4 << 20, 512, false, false, true},
	{"refcount64", "refcount_bits=64,cluster_size=1k", 2 << 20, 512, false, true, true},
	{"extended", "extended_l2=on,cluster_size=32k", 8 << 20, 512, false, true, true},
	{"lazy", "lazy_refcounts=on,cluster_size=4k", 4 << 20, 512, false, true, true},
	{"prealloc", "preallocation=metadata,cluster_size=8k", 4 << 20, 512, false, false, false},
	{"backing", "cluster_size=4k", 4 << 20, 512, true, true, false},
	{"extendedbacking", "extended_l2=on,cluster_size=16k", 4 << 20, 512, true, true, false},
	{"odd", "cluster_size=4k", 4<<20 + 1024, 512, false, false, false},
}

// create makes an image of a kind.
func (k kind) create(t testing.TB, dir, name string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	args := []string{"create", "-q", "-f", "qcow2"}
	if k.opts != "" {
		args = append(args, "-o", k.opts)
	}
	if k.backing {
		base := filepath.Join(dir, "base.qcow2")
		if _, err := os.Stat(base); err != nil {
			testutil.Run(t, "qemu-img", "create", "-q", "-f", "qcow2", base, fmt.Sprint(k.size-300*1024))
			testutil.Run(t, "qemu-io", "-f", "qcow2", "-c", "write -P 7 0 2M", "-c", "write -P 8 3M 100k", base)
		}
		args = append(args, "-b", "base.qcow2", "-F", "qcow2")
	}
	testutil.Run(t, "qemu-img", append(args, path, fmt.Sprint(k.size))...)
	return path
}

// TestScripts: one random script through the reference's tools and through
// Platter gives images of the same content, sound for both, with the same map.
func TestScripts(t *testing.T) {
	seeds := uint64(2)
	if soak() {
		seeds = 80
	} else if race.Enabled {
		seeds = 1
	}
	for _, k := range kindsOf {
		t.Run(k.name, func(t *testing.T) {
			for seed := range seeds {
				if oneScript(t, k, seed); t.Failed() {
					return
				}
			}
		})
	}
}

func oneScript(t *testing.T, k kind, seed uint64) {
	dir := t.TempDir()
	rng := rand.New(rand.NewPCG(seed, 11))
	// Half of the scripts make zeroes of whole clusters only: where they do
	// not, the maps differ (docs/qcow2-proof.md).
	cluster := k.span()
	if seed%2 == 1 {
		cluster = k.unit
	}
	acts := script(rng, k, 30, cluster)
	theirs, ours := k.create(t, dir, "theirs.qcow2"), k.create(t, dir, "ours.qcow2")
	runTheirs(t, theirs, acts)
	runOurs(t, ours, acts)
	what := fmt.Sprintf("%s, seed %d", k.name, seed)
	sound(t, what+", theirs", theirs)
	sound(t, what+", ours", ours)
	want := readTheirs(t, theirs)
	equal(t, what+", their image through us", readOurs(t, theirs, nil), want)
	equal(t, what+", our image through us", readOurs(t, ours, nil), want)
	equal(t, what+", our image through them", readTheirs(t, ours), want)
	if seed%2 == 0 && k.mapsAgree(acts) {
		sameMap(t, what, theirMap(t, theirs), theirMap(t, ours))
	}
}

// mapsAgree is false where the maps are known to differ (docs/qcow2-proof.md):
// the reference unmaps what is zeroed in version 2, and keeps subclusters apart
// when it copies a cluster that a snapshot shares.
func (k kind) mapsAgree(acts []act) bool {
	shared := slices.ContainsFunc(acts, func(a act) bool { return a.kind == "snapshot" })
	return k.name != "v2" && !(strings.HasPrefix(k.name, "extended") && shared)
}

func sameMap(t *testing.T, what string, theirs, ours []mapped) {
	t.Helper()
	for i := range min(len(theirs), len(ours)) {
		if theirs[i] != ours[i] {
			t.Errorf("%s: the maps differ: theirs %+v, ours %+v", what, theirs[i], ours[i])
			return
		}
	}
	if len(theirs) != len(ours) {
		t.Errorf("%s: the maps have %d and %d extents", what, len(theirs), len(ours))
	}
}
