package probe

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	_ "github.com/platter-storage/platter/format/all"
	"github.com/platter-storage/platter/internal/sys"
	_ "github.com/platter-storage/platter/protocol/all"
)

// disk writes n bytes of data to a file.
func disk(t *testing.T, n int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "d.img")
	if err := os.WriteFile(path, []byte(strings.Repeat("data", n/4)), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRunMeasuresEveryShapeAndLeavesTheDiskAlone(t *testing.T) {
	path := disk(t, 4<<20)
	before, _ := os.ReadFile(path)
	told := 0
	m, err := Run(t.Context(), Options{Path: path, Engines: []string{"threads", "none"}, Write: true, CellTime: 5 * time.Millisecond,
		Progress: func(done, total int, what string) {
			if want := told % 35; told < 35 && (done != want || total != 35) || what == "" {
				t.Errorf("progress %d of %d (%s), want %d of 35", done, total, what, want)
			}
			told++
		}})
	if err != nil {
		t.Fatal(err)
	}
	if told != 35+30 {
		t.Errorf("told %d times of progress, want 65", told)
	}
	if len(m.Rows) != 13 || m.Area < 3<<20 || m.Holes {
		t.Errorf("%d rows over %d bytes, holes %v", len(m.Rows), m.Area, m.Holes)
	}
	for _, r := range m.Rows {
		if r.Rate <= 0 || r.P50 <= 0 || r.P99 < r.P50 || r.MiBPerSecond() <= 0 || len(r.Ways) == 0 {
			t.Errorf("%+v", r)
		}
	}
	if after, _ := os.ReadFile(path); !slices.Equal(before, after) {
		t.Error("the disk has changed")
	}
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 1 {
		t.Errorf("files are left behind: %v", left)
	}
}

func TestSmallAndEmptyDisks(t *testing.T) {
	o := Options{CellTime: time.Millisecond}
	o.Path = disk(t, 4096)
	if m, err := Run(t.Context(), o); err != nil || len(m.Rows) != 2 {
		t.Errorf("4096 bytes: %+v, %v", m, err)
	}
	o.Path = disk(t, 4092)
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "too small to measure: 4092 bytes") {
		t.Errorf("4092 bytes: %v", err)
	}
	if err := os.Truncate(o.Path, 0); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(o.Path, 1<<30); err != nil {
		t.Fatal(err)
	}
	if m, err := Run(t.Context(), o); err != nil || !m.Holes || len(m.Rows) != len(shapes) {
		t.Errorf("nothing but a hole: %+v, %v", m, err)
	}
}

func TestOffsetsStayInTheArea(t *testing.T) {
	a := &area{runs: []run{{8192, 300 << 10}, {1 << 30, largestRead}}}
	seen := map[int64]bool{}
	for i := range uint64(10000) {
		off := a.at(i, largestRead)
		inside := off >= 8192 && off+largestRead <= 8192+300<<10 || off == 1<<30
		if !inside || off%areaAlign != 0 {
			t.Fatalf("request %d is at %d", i, off)
		}
		seen[off] = true
	}
	if len(seen) != 13 { // (300-256)/4+1 places in the first run, one in the second
		t.Errorf("%d places are used, want 13", len(seen))
	}
}

func TestMemoryShapes(t *testing.T) {
	for _, s := range append(slices.Clone(shapes), manyAtOnce) {
		v, free, err := s.memory()
		if err != nil {
			t.Fatal(err)
		}
		if v.Len() != int64(s.bytes) || len(v) != s.elements {
			t.Errorf("%s: %d bytes in %d elements", s.name, v.Len(), len(v))
		}
		var addrs []uintptr
		for i, e := range v {
			if int(sys.Addr(e)%4096) != s.misplaced {
				t.Errorf("%s: element %d is at %#x", s.name, i, sys.Addr(e))
			}
			addrs = append(addrs, sys.Addr(e))
		}
		slices.Sort(addrs)
		for i := 1; i < len(addrs); i++ {
			if addrs[i] == addrs[i-1]+uintptr(s.bytes/s.elements) || addrs[i] == addrs[i-1] {
				t.Errorf("%s: elements touch", s.name)
			}
		}
		free()
	}
}
