package workload_test

import (
	"context"
	"testing"

	"github.com/platter-storage/platter/block"
	bt "github.com/platter-storage/platter/block/blocktest"
	"github.com/platter-storage/platter/workload"
)

// TestC12 runs every profile in every shape with 1, 8 and 16 threads: the bytes
// that the threads count are those that reach the storage, and the same seed
// makes the same requests.
func TestC12(t *testing.T) {
	for i := range workload.Profiles {
		p := &workload.Profiles[i]
		for _, threads := range []int{1, 8, 16} {
			for _, shape := range shapes(threads) {
				c := workload.Config{Profile: p, Threads: threads, Scale: 0.0005, Shape: shape, Seed: 7}
				a := runOnce(t, c)
				b := a
				if threads == 1 {
					b = runOnce(t, c)
				}
				if a.Read+a.Written == 0 || a.Read != b.Read || a.Written != b.Written || a.Requests != b.Requests {
					t.Errorf("%s, %d threads, %s: %d and %d bytes in %d requests, again %d and %d in %d", p.Name, threads, shape, a.Read, a.Written, a.Requests, b.Read, b.Written, b.Requests)
				}
				if (a.Written > 0) != p.Changes() && p.Name != "mail-server-8k" {
					t.Errorf("%s wrote %d bytes", p.Name, a.Written)
				}
				if a.P50 <= 0 || a.P999 < a.P99 || a.P99 < a.P50 {
					t.Errorf("%s: quantiles %d, %d, %d", p.Name, a.P50, a.P99, a.P999)
				}
			}
		}
	}
}

// shapes are all with one thread, and the hardest with more.
func shapes(threads int) []workload.Shape {
	if threads == 1 {
		return workload.Shapes
	}
	return []workload.Shape{workload.Mixed}
}

func runOnce(t *testing.T, c workload.Config) *workload.Result {
	t.Helper()
	e := bt.NewEmulator(t, bt.EmulatorConfig{Size: min(c.Need(), int64(c.Threads)*4<<20)})
	child := bt.Edge(t, bt.Attach(t, bt.NewEnv(t), e, "disk"))
	r, err := workload.Run(context.Background(), child, c)
	if err != nil {
		t.Fatal(err)
	}
	var read, written int64
	for _, x := range e.Calls() {
		switch x.Op {
		case block.OpRead:
			read += x.Len
		case block.OpWrite:
			written += x.Len
		}
	}
	if read != r.Read || written != r.Written {
		t.Errorf("%s: %d bytes read and %d written reached the storage, %d and %d were counted", c.Profile.Name, read, written, r.Read, r.Written)
	}
	return r
}

// The mail server's operations come as 4 to 2 to 1.
func TestMailWeights(t *testing.T) {
	p, err := workload.Find("mail-server-8k")
	if err != nil {
		t.Fatal(err)
	}
	c := workload.Config{Profile: p, Threads: 1, Scale: 0.03, Shape: workload.Contig, Seed: 1}
	e := bt.NewEmulator(t, bt.EmulatorConfig{Size: 8 << 20}) // each flush copies all of it
	child := bt.Edge(t, bt.Attach(t, bt.NewEnv(t), e, "disk"))
	if _, err := workload.Run(context.Background(), child, c); err != nil {
		t.Fatal(err)
	}
	flushes, discards := e.Count(block.OpFlush), e.Count(block.OpDiscard)
	if ratio := float64(flushes) / float64(discards); ratio < 1.7 || ratio > 2.3 {
		t.Errorf("%d creates and %d deletes", flushes, discards)
	}
}

// A run that makes no sense is refused.
func TestConfigIsChecked(t *testing.T) {
	p, _ := workload.Find("readers-8k")
	good := workload.Config{Profile: p, Threads: 4, Scale: 0.001, Shape: workload.Pages}
	e := bt.NewEmulator(t, bt.EmulatorConfig{Size: good.Need()})
	child := bt.Edge(t, bt.Attach(t, bt.NewEnv(t), e, "disk"))
	for name, change := range map[string]func(c *workload.Config){
		"no threads": func(c *workload.Config) { c.Threads = 0 }, "too many": func(c *workload.Config) { c.Threads = workload.MaxThreads + 1 },
		"scale": func(c *workload.Config) { c.Scale = 0 }, "shape": func(c *workload.Config) { c.Shape = "round" },
		"disk too small": func(c *workload.Config) { c.Scale = 1 },
	} {
		c := good
		change(&c)
		if _, err := workload.Run(context.Background(), child, c); err == nil {
			t.Errorf("%s: was run", name)
		}
	}
	if _, err := workload.Find("none"); err == nil {
		t.Error("found a profile that is not there")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := workload.Run(ctx, child, good); err == nil {
		t.Error("a run that was cancelled came to an end")
	}
}
