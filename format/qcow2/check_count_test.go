package qcow2

import (
	"math/rand/v2"
	"testing"

	"github.com/platter-storage/platter/block"
)

// Counters with little memory count, window by window, what a map counts.
func TestCounters(t *testing.T) {
	type reference struct {
		cluster int64
		own     uint16
		times   uint64
	}
	r := rand.New(rand.NewPCG(1, 2))
	var all []reference
	want := map[int64]uint64{}
	owns := map[int64]uint16{}
	for range 5000 {
		x := reference{r.Int64N(1 << 20), []uint16{usedMeta, usedL2, usedData}[r.IntN(3)], uint64(1 + r.IntN(3))}
		switch r.IntN(4) {
		case 0:
			x.cluster = r.Int64N(300)
		case 1:
			x.times = countMax + uint64(r.IntN(3)) - 1
		}
		all = append(all, x)
		want[x.cluster] += x.times
		owns[x.cluster] |= x.own
	}
	for _, memory := range []int{0, 1 << 14, maxCounterMemory} {
		seen, windows := 0, 0
		for lo := int64(0); lo < 1<<20; windows++ {
			c := newCounters(lo, 64, memory)
			for _, x := range all {
				c.add(x.cluster, x.own, x.times)
			}
			if len(c.chunks) > c.limit {
				t.Fatalf("%d chunks, %d are allowed", len(c.chunks), c.limit)
			}
			for cluster, n := range want {
				if cluster < lo || cluster >= c.hi {
					continue
				}
				seen++
				if got, own := c.get(cluster); got != n || own != owns[cluster] {
					t.Fatalf("cluster %d: %d references of %#x, want %d of %#x", cluster, got, own, n, owns[cluster])
				}
			}
			if c.hi <= lo {
				t.Fatalf("the window [%d, %d)", lo, c.hi)
			}
			lo = c.hi
		}
		if seen != len(want) {
			t.Errorf("%d clusters were seen, want %d", seen, len(want))
		}
		if many := memory < maxCounterMemory; many != (windows > 1) {
			t.Errorf("%d bytes: %d windows", memory, windows)
		}
	}
}

// A set of tables with little room gives each table once, with its count.
func TestTableSet(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	want := map[uint64]uint64{}
	var all []uint64
	for range 3000 {
		off := uint64(r.IntN(1000)) << 9
		all = append(all, off)
		want[off]++
	}
	for _, limit := range []int{2, 7, 1 << 20} {
		got := map[uint64]uint64{}
		for lo, done := uint64(0), false; !done; {
			set := newTableSet(lo, limit)
			for _, off := range all {
				set.add(off, 1)
			}
			if len(set.times) > limit {
				t.Fatalf("%d tables, %d are allowed", len(set.times), limit)
			}
			for _, off := range set.sorted() {
				got[off] += set.times[off]
			}
			lo, done = set.hi, set.hi == ^uint64(0)
		}
		if len(got) != len(want) {
			t.Errorf("%d tables, want %d", len(got), len(want))
		}
		for off, n := range want {
			if got[off] != n {
				t.Errorf("the table at %d: %d, want %d", off, got[off], n)
			}
		}
	}
}

// vast is a tape in a file that is, but for its beginning, a hole.
type vast struct {
	*tape
	size int64
}

func (x *vast) Preadv(rq *block.Req, off int64, v block.Vec, fl block.Flags) error {
	n := v.Len()
	v.Zero(0, n)
	if have := int64(len(x.b)); off < have {
		var part block.Vec
		return x.tape.Preadv(rq, off, v.AppendRange(part, 0, min(n, have-off)), fl)
	}
	return nil
}

func (x *vast) BlockStatus(rq *block.Req, off, n int64) (block.Extent, error) {
	if off >= int64(len(x.b)) {
		return block.Extent{Len: n, Zero: true, Allocated: true, Host: -1}, nil
	}
	return x.tape.BlockStatus(rq, off, min(n, int64(len(x.b))-off))
}

// A file of 2 EiB that is a hole, whose tables point all over it, is checked
// without reading or counting what is not there.
func TestCheckOfAVastHole(t *testing.T) {
	head := small(t, block.Values{"cluster_size": "64K"})
	l, err := parseLayout(head)
	if err != nil {
		t.Fatal(err)
	}
	b := append(head, make([]byte, 4<<20)...)
	p := &patient{b: b, l: l}
	p.l.l1Off = uint64(l.clusters(int64(len(head)))) << l.clusterBits
	p.put(atL1Offset, p.l.l1Off)
	const entries = 1 << 14
	p.put(atL1Size-4, entries) // crypt_method is 0
	r := rand.New(rand.NewPCG(5, 6))
	for i := range uint64(entries) {
		p.put(p.l.l1Off+i*8, uint64(r.Int64N(1<<39))<<16)
	}
	for i := range uint64(l.tableLen) << l.clusterBits / 8 {
		if i > 0 {
			p.put(l.tableOff+i*8, uint64(r.Int64N(1<<40))<<16)
		}
	}
	x := &vast{newTape(b), 1 << 61}
	x.info.SetSize(x.size)
	var res block.CheckResult
	err = withNode(t, x, func(rq *block.Req, file *block.Child) (err error) {
		res, err = checkWithin(rq, file, block.CheckOptions{}, 1<<20)
		return err
	})
	if err != nil || res.Corruptions < entries {
		t.Errorf("%+v, %v", res, err)
	}
}
