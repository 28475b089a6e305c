package fault

import (
	"bytes"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/block/blocktest"
)

// over opens the filter over emulated storage.
func over(t testing.TB, text string) (*blocktest.Emulator, *blocktest.Client) {
	t.Helper()
	vals, err := block.ParseOptions("driver=fault," + text)
	if err != nil {
		t.Fatal(err)
	}
	env := blocktest.NewEnv(t)
	l := block.ByteLimits()
	l.ReadAlign, l.WriteAlign, l.SegmentAlign, l.MinMem = 512, 512, 512, 512
	e := blocktest.NewEmulator(t, blocktest.EmulatorConfig{Size: 1 << 20, Limits: l, Fast: true, WriteFlags: block.FUA, ZeroFlags: block.FUA | block.MayUnmap})
	in := blocktest.Open(t, env, vals, map[string]*block.Instance{"file": blocktest.Attach(t, env, e, "storage")})
	return e, blocktest.NewClient(t, blocktest.Edge(t, in))
}

// A filter that strikes nothing changes nothing, in either lane.
func TestConformanceWithoutFaults(t *testing.T) {
	for _, text := range []string{"nth=1000000000", "errno=none", "op=truncate,errno=none,delay-ns=1"} {
		blocktest.Run(t, func(t testing.TB) *block.Child {
			_, c := over(t, text)
			return c.Child
		}, blocktest.Options{})
	}
}

// Each operation fails alone, with the error that was ordered, and says who
// ordered it.
func TestEachOperationFails(t *testing.T) {
	b := make([]byte, 512)
	for name, f := range map[string]func(c *blocktest.Client) error{
		"read":     func(c *blocktest.Client) error { return c.Read(0, b) },
		"write":    func(c *blocktest.Client) error { return c.Write(0, 0, b) },
		"zero":     func(c *blocktest.Client) error { return c.Zero(0, 512, 0) },
		"discard":  func(c *blocktest.Client) error { return c.Discard(0, 512) },
		"flush":    func(c *blocktest.Client) error { return c.Flush() },
		"status":   func(c *blocktest.Client) error { _, err := c.Status(0, 512); return err },
		"truncate": func(c *blocktest.Client) error { return c.Truncate(4096) },
	} {
		for ordered := range ops {
			_, c := over(t, "op="+ordered+",errno=ETIMEDOUT")
			change := ordered == "change" && (name == "write" || name == "zero" || name == "discard")
			err := f(c)
			if want := ordered == name || ordered == "any" || change; errors.Is(err, syscall.ETIMEDOUT) != want || !want && err != nil {
				t.Errorf("op=%s: %s gave %v", ordered, name, err)
			}
		}
	}
}

// In the fast lane what may be struck is declined and the rest passes.
func TestFastLane(t *testing.T) {
	_, c := over(t, "op=read,offset=4K,length=512")
	b := blocktest.Memory(t, 512)
	for off, fast := range map[int64]bool{0: true, 4096: false, 4608: true} {
		if ok, err := c.ReadFast(off, b); ok != fast || err != nil {
			t.Errorf("read at %d: fast %v, %v", off, ok, err)
		}
		if ok, err := c.WriteFast(off, 0, b); !ok || err != nil {
			t.Errorf("write at %d: fast %v, %v", off, ok, err)
		}
	}
	if err := c.Read(4096, b); !errors.Is(err, syscall.EIO) {
		t.Errorf("read in the range: %v", err)
	}
}

// nth, times and a seed make a failure that comes again.
func TestWhen(t *testing.T) {
	run := func(text string) (s string) {
		_, c := over(t, text)
		for range 12 {
			if c.Read(0, make([]byte, 512)) == nil {
				s += "."
			} else {
				s += "x"
			}
		}
		return s
	}
	for text, want := range map[string]string{
		"nth=3,times=2": "..xx........", "nth=11": "..........xx", "times=1": "x...........",
	} {
		if got := run(text); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
	one, two := run("probability=0.5,seed=7"), run("probability=0.5,seed=7")
	if one != two || one == "............" || one == "xxxxxxxxxxxx" {
		t.Errorf("seed 7 gave %s and %s", one, two)
	}
}

// A torn write stores its beginning and fails.
func TestTorn(t *testing.T) {
	for _, torn := range []int{0, 1, 512, 1000, 4096} {
		e, c := over(t, fmt.Sprintf("op=change,errno=ENOSPC,times=2,torn=%d", torn))
		data := bytes.Repeat([]byte{7}, 2048)
		if err := c.Write(4096, 0, data); !errors.Is(err, syscall.ENOSPC) {
			t.Error(err)
		}
		want := make([]byte, 2048)
		copy(want, data[:min(torn, 2048)])
		if !bytes.Equal(e.Part(4096, 2048), want) {
			t.Errorf("torn=%d: something else is stored", torn)
		}
		if err := c.Zero(4096, 512, 0); !errors.Is(err, syscall.ENOSPC) {
			t.Error(err)
		}
		if err := c.Write(4096, 0, data); err != nil || !bytes.Equal(e.Part(4096, 2048), data) {
			t.Errorf("torn=%d: the write after it: %v", torn, err)
		}
	}
}

func TestDelay(t *testing.T) {
	_, c := over(t, "op=flush,errno=none,delay-ns=20000000")
	start := time.Now()
	if err := c.Flush(); err != nil || time.Since(start) < 20*time.Millisecond {
		t.Errorf("flush took %v, %v", time.Since(start), err)
	}
}

func TestOptionsAreBounded(t *testing.T) {
	env := blocktest.NewEnv(t)
	file := blocktest.Attach(t, env, blocktest.NewEmulator(t, blocktest.EmulatorConfig{Size: 4096}), "file")
	for text, ok := range map[string]bool{
		"probability=1": true, "probability=0": false, "probability=1.1": false, "probability=NaN": false, "probability=x": false,
		"nth=-1": false, "times=-1": false, "delay-ns=3600000000000": true, "delay-ns=3600000000001": false, "delay-ns=-1": false,
		"errno=EWRONG": false, "op=eat": false, "length=7.9E,offset=7.9E": true,
	} {
		vals, err := block.ParseOptions("driver=fault," + text)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := blocktest.TryOpen(t, env, vals, map[string]*block.Instance{"file": file}, true); (err == nil) != ok {
			t.Errorf("%s: %v", text, err)
		}
	}
}
