package block

import "testing"

// elements64 are 64 elements as a guest's driver sends them.
func elements64() Vec {
	mem := alignedZeroes(64 * 4096)
	var v Vec
	for i := range 64 {
		v = append(v, mem[i*4096:(i+1)*4096])
	}
	return v
}

func direct() *Limits {
	l := ByteLimits()
	l.ReadAlign, l.WriteAlign, l.SegmentAlign, l.MinMem, l.MaxSegments = 512, 512, 512, 512, 254
	return l
}

// The check that decides whether a request goes as it is allocates nothing.
func TestA14CheckAllocatesNothing(t *testing.T) {
	l, v := direct(), elements64()
	if n := testing.AllocsPerRun(1000, func() {
		if l.misfit(v, 1<<20, 1<<30) != 0 || !l.fitsOnce(v, 64*4096) {
			t.Fatal("64 pages do not fit")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkA14Check is the check of a vector of 64 elements: under 100 ns.
func BenchmarkA14Check(b *testing.B) {
	l, v := direct(), elements64()
	b.ReportAllocs()
	for b.Loop() {
		if l.misfit(v, 1<<20, 1<<30) != 0 || !l.fitsOnce(v, 64*4096) {
			b.Fatal("64 pages do not fit")
		}
	}
}

// Pages are counted once where elements follow each other in memory.
func TestFragments(t *testing.T) {
	l, mem := direct(), alignedZeroes(1<<20)
	page := int(pageSize)
	cut := func(from int, lens ...int) (v Vec) {
		for _, n := range lens {
			v = append(v, mem[from:from+n])
			from += n
		}
		return v
	}
	for _, c := range []struct {
		name string
		v    Vec
		want int64
	}{
		{"empty", Vec{nil, {}, mem[1:1]}, 0},
		{"from a page on", cut(0, page, 100, 7*page), 0},
		{"one page, not at its start", cut(512, page-512), 1},
		{"two pages", cut(512, page), 2},
		{"two pages in two elements", cut(512, page-512, 512), 2},
		{"two pages in many", cut(512, 100, 200, page-300), 2},
		{"apart", Vec{mem[512:600], mem[600+1 : 700]}, 2},
		{"from the middle on", cut(page/2, 10*page), 11},
	} {
		if got := l.fragments(c.v); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}
