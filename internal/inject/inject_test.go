package inject

import (
	"math"
	"testing"
)

func TestRule(t *testing.T) {
	never := func() uint64 { t.Error("asked for chance"); return 0 }
	hits := func(r *Rule, op uint8, off, n int64) (s string) {
		for range 5 {
			if r.Strikes(op, off, n, never) {
				s += "x"
			} else {
				s += "."
			}
		}
		return s
	}
	for _, c := range []struct {
		name   string
		r      *Rule
		op     uint8
		off, n int64
		want   string
	}{
		{"all", &Rule{}, 3, 0, 0, "xxxxx"},
		{"op", &Rule{Ops: 1 << 3}, 3, 0, 1, "xxxxx"},
		{"other op", &Rule{Ops: 1 << 3}, 2, 0, 1, "....."},
		{"last byte", &Rule{Off: 10, Len: 5}, 0, 14, 1, "xxxxx"},
		{"one past", &Rule{Off: 10, Len: 5}, 0, 15, 1, "....."},
		{"up to", &Rule{Off: 10, Len: 5}, 0, 0, 10, "....."},
		{"into", &Rule{Off: 10, Len: 5}, 0, 0, 11, "xxxxx"},
		{"to the end", &Rule{Off: 10}, 0, math.MaxInt64 - 1, 1, "xxxxx"},
		{"long", &Rule{Off: 10, Len: math.MaxInt64}, 0, 10, 1, "xxxxx"},
		{"no range", &Rule{Off: 10, Len: 5}, 0, 0, 0, "xxxxx"},
		{"nth", &Rule{Nth: 3}, 0, 0, 1, "..xxx"},
		{"nth once", &Rule{Nth: 3, Times: 1}, 0, 0, 1, "..x.."},
		{"twice", &Rule{Times: 2}, 0, 0, 1, "xx..."},
	} {
		if got := hits(c.r, c.op, c.off, c.n); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestChance(t *testing.T) {
	r := &Rule{Chance: 0.5}
	for _, c := range []struct {
		rand uint64
		want bool
	}{{0, true}, {1<<63 - 1, true}, {1 << 63, false}, {math.MaxUint64, false}} {
		if got := r.Strikes(0, 0, 0, func() uint64 { return c.rand }); got != c.want {
			t.Errorf("at %#x: %v", c.rand, got)
		}
	}
	if r.Fired() != 2 {
		t.Errorf("fired %d times", r.Fired())
	}
}
