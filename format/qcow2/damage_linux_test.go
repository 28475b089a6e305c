package qcow2

import (
	"encoding/binary"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/testutil"
)

// harm is one way to break an image. The figures are what qemu-img check
// says where nothing else is given.
type harm struct {
	name string
	kind string // of image
	do   func(p *patient)
	// other are our corruptions and leaks, where they differ, and why.
	other [2]int64
	why   string
	// stays: repair leaves it, as its remedy would lose what may be saved.
	stays bool
}

var harms = []harm{
	{name: "leak", do: func(p *patient) { p.setRef(p.l.clusters(int64(len(p.b)))-1, 3) }},
	{name: "refcount of data too low", do: func(p *patient) { p.setRef(p.data(1), 0) }},
	{name: "refcount of data too high", do: func(p *patient) { p.setRef(p.data(1), 2) }},
	{name: "refcount of the header", do: func(p *patient) { p.setRef(0, 0) }},
	{name: "refcount of its own block", do: func(p *patient) { p.setRef(int64(p.refcounts()>>p.l.clusterBits), 0) }},
	{name: "no COPIED on data", do: func(p *patient) { p.put(p.l2(2), p.get(p.l2(2))&^entryCopied) }},
	{name: "no COPIED on a table", do: func(p *patient) { p.put(p.l.l1Off, p.get(p.l.l1Off)&^entryCopied) }},
	{name: "COPIED on shared data", kind: "snapshots", do: func(p *patient) { p.put(p.l2(2), p.get(p.l2(2))|entryCopied) }},
	{name: "data used twice", do: func(p *patient) { p.put(p.l2(1), p.get(p.l2(2))) }},
	{name: "data misaligned", do: func(p *patient) { p.put(p.l2(1), p.get(p.l2(1))+512) }, stays: true},
	{name: "data beyond the end", do: func(p *patient) { p.put(p.l2(1), 1<<40|entryCopied) }, stays: true},
	{name: "reserved bits of data", do: func(p *patient) { p.put(p.l2(1), p.get(p.l2(1))|1<<57) }, stays: true},
	{name: "zero cluster misaligned", do: func(p *patient) { p.put(p.l2(1), p.get(p.l2(1))+512|entryZero) }},
	{name: "table misaligned", do: func(p *patient) { p.put(p.l.l1Off, p.get(p.l.l1Off)+512) }, stays: true,
		other: [2]int64{1, 64}, why: "an L2 table that is misaligned is not read as one"},
	{name: "table beyond the end", do: func(p *patient) { p.put(p.l.l1Off, 1<<40|entryCopied) }, stays: true,
		other: [2]int64{1, 66}, why: "its flag COPIED is not a second finding"},
	{name: "reserved bits of L1", do: func(p *patient) { p.put(p.l.l1Off, p.get(p.l.l1Off)|1<<57) }, stays: true},
	{name: "compressed with COPIED", kind: "zstd", do: func(p *patient) { p.put(p.l2(96), p.get(p.l2(96))|entryCopied) }},
	{name: "subclusters both", kind: "extended", do: func(p *patient) { p.put(p.l2(1)+8, p.get(p.l2(1)+8)|1<<33) }},
	{name: "refcount block beyond the end", do: func(p *patient) { p.put(p.l.tableOff, 1<<40) }},
	{name: "refcount block misaligned", do: func(p *patient) { p.put(p.l.tableOff, p.get(p.l.tableOff)+512) },
		other: [2]int64{135, 0}, why: "all clusters are counted, where qemu-img gives up"},
	{name: "refcount block missing", do: func(p *patient) { p.put(p.l.tableOff, 0) }},
	{name: "refcount block twice", do: func(p *patient) { p.put(p.l.tableOff+8, p.get(p.l.tableOff)) },
		other: [2]int64{1, 0}, why: "the entry is wrong, its block is not"},
	{name: "refcount block over data", do: func(p *patient) { p.put(p.l.tableOff, uint64(p.data(3))<<p.l.clusterBits) },
		other: [2]int64{66, 32768}, why: "refcounts beyond the end of the file are lost space as well"},
	{name: "table over data", do: func(p *patient) { p.put(p.l2(1), p.get(p.l.l1Off)) }, stays: true,
		other: [2]int64{2, 1}, why: "that structures overlap is a finding of its own"},
	{name: "L1 over data", do: func(p *patient) { p.put(p.l2(1), p.l.l1Off|entryCopied) }, stays: true,
		other: [2]int64{2, 1}, why: "that structures overlap is a finding of its own"},
	{name: "snapshot's L1 misaligned", kind: "snapshots", do: func(p *patient) { p.put(p.l.snapOff, p.get(p.l.snapOff)+8) }, stays: true},
	{name: "snapshot's L1 beyond the end", kind: "snapshots", do: func(p *patient) { p.put(p.l.snapOff, 1<<40) }, stays: true},
	{name: "bitmap's data beyond the end", kind: "bitmaps", do: func(p *patient) { p.put(firstBitmap(p), 1<<40) }, stays: true},
	{name: "bitmap's entry reserved", kind: "bitmaps", do: func(p *patient) { p.put(firstBitmap(p), p.get(firstBitmap(p))|4) }, stays: true,
		other: [2]int64{1, 1}, why: "qemu-img does not open such an image"},
}

// firstBitmap is where the table of the first bitmap lies.
func firstBitmap(p *patient) uint64 {
	x, _, _ := p.l.bitmapHeader()
	return p.get(x.offset)
}

// Each kind of harm is found as qemu-img check finds it, or the table says
// why not; what repair mends is whole for qemu-img too, and reads the same.
func TestDamage(t *testing.T) {
	images := kinds(t)
	for _, d := range harms {
		t.Run(d.name, func(t *testing.T) {
			kind := d.kind
			if kind == "" {
				kind = "plain"
			}
			x := load(t, images[kind])
			p := &patient{b: x.b}
			p.l, _ = parseLayout(x.b)
			d.do(p)
			x = newTape(p.b)
			path := filepath.Join(t.TempDir(), "damaged.qcow2")
			save(t, x.b, path)
			want := theirs(t, path)
			got, told, err := x.check(t, 0)
			if err != nil {
				t.Fatal(err)
			}
			if d.why != "" {
				want.Corruptions, want.Leaks = d.other[0], d.other[1]
			}
			if got.Corruptions != want.Corruptions || got.Leaks != want.Leaks {
				t.Errorf("ours corruptions %d, leaks %d, errors %d; wanted %d, %d, %d\n%s", got.Corruptions, got.Leaks, got.CheckErrors, want.Corruptions, want.Leaks, want.CheckErrors, strings.Join(told[:min(len(told), 5)], "\n"))
			}
			repairAndCompare(t, x, path, d, images[kind])
		})
	}
}

func repairAndCompare(t *testing.T, x *tape, path string, d harm, original string) {
	res, told, err := x.check(t, block.FixErrors|block.FixLeaks)
	if err != nil {
		t.Fatalf("repair: %v", err)
	}
	save(t, x.b, path)
	left := theirs(t, path)
	if d.stays {
		if res.Corruptions+res.CheckErrors == 0 {
			t.Errorf("repaired: %+v", res)
		}
		return
	}
	if res.Corruptions+res.Leaks+res.CheckErrors != 0 || left.Corruptions+left.Leaks+left.CheckErrors != 0 {
		t.Errorf("after repair %+v, and qemu-img says %+v\n%s", res, left, strings.Join(told, "\n"))
	}
	if res.CorruptionsFixed+res.LeaksFixed == 0 {
		t.Error("nothing was repaired")
	}
	if d.name != "data used twice" && d.name != "zero cluster misaligned" && d.name != "subclusters both" {
		testutil.Run(t, "qemu-img", "compare", "-f", "qcow2", "-F", "qcow2", path, original)
	}
}

// A repair that is cut off at any write is finished by the next one, and the
// disk reads as before.
func TestRepairCutOff(t *testing.T) {
	images := kinds(t)
	states := 0
	for i, d := range harms {
		if d.stays {
			continue
		}
		kind := d.kind
		if kind == "" {
			kind = "plain"
		}
		p := &patient{b: load(t, images[kind]).b}
		p.l, _ = parseLayout(p.b)
		d.do(p)
		x := newTape(p.b)
		if _, _, err := x.check(t, block.FixErrors|block.FixLeaks); err != nil {
			t.Fatal(err)
		}
		want := disk(t, x.b)
		x.cuts(uint64(i), func(n int, b []byte) {
			states++
			y := newTape(b)
			res, told, err := y.check(t, block.FixErrors|block.FixLeaks)
			if err != nil || res.Corruptions+res.Leaks+res.CheckErrors != 0 {
				t.Errorf("%s, cut off at %d of %d: %v, %+v\n%s", d.name, n, len(x.ops), err, res, strings.Join(told, "\n"))
			}
			if !reflect.DeepEqual(disk(t, y.b), want) {
				t.Errorf("%s, cut off at %d of %d: the disk reads otherwise", d.name, n, len(x.ops))
			}
		})
	}
	t.Logf("%d states", states)
}

// With so little memory for counters that a check needs many walks, it finds
// and mends the same.
func TestLittleMemory(t *testing.T) {
	for name, path := range kinds(t) {
		x := load(t, path)
		want, _, err := x.check(t, 0)
		if err != nil {
			t.Fatal(err)
		}
		err = x.with(t, func(rq *block.Req, file *block.Child) error {
			got, err := checkWithin(rq, file, block.CheckOptions{}, 0)
			if got != want {
				t.Errorf("%s: %+v, with enough memory %+v", name, got, want)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		l, _ := parseLayout(x.b)
		binary.BigEndian.PutUint64(x.b[l.tableOff:], 512)
		err = x.with(t, func(rq *block.Req, file *block.Child) error {
			got, err := checkWithin(rq, file, block.CheckOptions{Fix: block.FixErrors | block.FixLeaks}, 0)
			if got.Corruptions+got.Leaks+got.CheckErrors != 0 || got.CorruptionsFixed == 0 {
				t.Errorf("%s: after refcounts were made anew: %+v", name, got)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		again := filepath.Join(t.TempDir(), "again.qcow2")
		save(t, x.b, again)
		if r := theirs(t, again); r.Corruptions+r.Leaks+r.CheckErrors != 0 {
			t.Errorf("%s: qemu-img says %+v", name, r)
		}
	}
}
