package raw_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/block/blocktest"
	_ "github.com/platter-storage/platter/format/raw"
	_ "github.com/platter-storage/platter/protocol/mem"
)

// over opens a mem node of size bytes and raw over it.
func over(t testing.TB, size string, vals block.Values) (below, top *blocktest.Client) {
	t.Helper()
	env := blocktest.NewEnv(t)
	mem := blocktest.Open(t, env, block.Values{"driver": "mem", "size": size}, nil)
	c, err := mem.NewChild("watcher", block.RoleRoot, block.PermRead, block.PermAll)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	vals["driver"] = "raw"
	raw := blocktest.Open(t, env, vals, map[string]*block.Instance{"file": mem})
	return blocktest.NewClient(t, c), blocktest.NewClient(t, blocktest.Edge(t, raw))
}

// A window begins at its offset, in both lanes, and its neighbours stay as
// they were.
func TestWindow(t *testing.T) {
	below, top := over(t, "1M", block.Values{"offset": "1000", "size": "5000"})
	if n := top.Child.Size(); n != 5000 {
		t.Fatalf("size %d", n)
	}
	data := bytes.Repeat([]byte{1, 2, 3, 4, 5}, 1000)
	if err := top.Write(0, 0, data); err != nil {
		t.Fatal(err)
	}
	if ok, err := top.WriteFast(10, 0, []byte("abc")); !ok || err != nil {
		t.Fatal(ok, err)
	}
	copy(data[10:], "abc")
	got := make([]byte, 7000)
	if err := below.Read(0, got); err != nil {
		t.Fatal(err)
	}
	want := append(append(make([]byte, 1000), data...), make([]byte, 1000)...)
	if !bytes.Equal(got, want) {
		t.Error("the file below does not have the window's bytes in their place, and zeroes around them")
	}
	if err := top.Write(4999, 0, []byte("ab")); err == nil {
		t.Error("a write passed the end of the window")
	}
	if err := top.Truncate(6000); err == nil || !strings.Contains(err.Error(), "option size") {
		t.Errorf("resize of a window: %v", err)
	}
	e, err := top.Status(0, 5000)
	if err != nil || e.Len != 5000 || !e.EOF || !e.Data {
		t.Errorf("status %+v, %v", e, err)
	}
}

// Without the option size the disk grows and shrinks with its file.
func TestSizeFollows(t *testing.T) {
	below, top := over(t, "1M", block.Values{"offset": "4K"})
	if n := top.Child.Size(); n != 1<<20-4096 {
		t.Fatalf("size %d", n)
	}
	if err := top.Truncate(8192); err != nil {
		t.Fatal(err)
	}
	if a, b := top.Child.Size(), below.Child.Size(); a != 8192 || b != 8192+4096 {
		t.Errorf("after resizing: %d over %d", a, b)
	}
	if err := top.Write(8192, 0, []byte("a")); err == nil {
		t.Error("a write passed the end")
	}
}

func TestPlaceIsChecked(t *testing.T) {
	for _, c := range []struct {
		offset, size string
		ok           bool
	}{
		{"0", "1M", true}, {"1M", "0", true}, {"512", "1M", false}, {"1048577", "0", false}, {"7.9E", "7.9E", false},
	} {
		env := blocktest.NewEnv(t)
		mem := blocktest.Open(t, env, block.Values{"driver": "mem", "size": "1M"}, nil)
		_, err := blocktest.TryOpen(t, env, block.Values{"driver": "raw", "offset": c.offset, "size": c.size}, map[string]*block.Instance{"file": mem}, false)
		if (err == nil) != c.ok {
			t.Errorf("offset=%s,size=%s over 1M: %v", c.offset, c.size, err)
		}
	}
}
