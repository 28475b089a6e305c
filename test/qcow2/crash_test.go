// Package qcow2 proves the format qcow2 as a whole: what a power cut leaves,
// and against the reference's tools.
package qcow2

import (
	"os"
	"strings"
	"testing"

	"github.com/platter-storage/platter/block"
	_ "github.com/platter-storage/platter/format/all"
	"github.com/platter-storage/platter/internal/race"
	"github.com/platter-storage/platter/sim"
)

// soak reports whether tests are to take their time.
func soak() bool { return os.Getenv("PLATTER_SOAK") != "" }

// proof is that of small clusters, where each operation meets many tables.
func proof(seed uint64, vals block.Values, w sim.Weights) sim.Proof {
	p := sim.Proof{
		Driver: "qcow2", Create: vals, Sectors: 160, Steps: 24, Longest: 24, Seed: seed, PerMoment: 4, Deep: 16, Weights: w,
	}
	if race.Enabled { // where each state costs much more, and one goroutine makes them
		p.PerMoment = 1
	}
	return p
}

var small = block.Values{"cluster_size": "512"}

// plain are the operations of a guest.
var plain = sim.Weights{Write: 10, FUA: 2, Zero: 3, Flush: 3}

// ways of using an image, each with its own order of writes to get right.
var ways = map[string]func(seed uint64) sim.Proof{
	"writes": func(s uint64) sim.Proof { return proof(s, small, plain) },
	"side by side": func(s uint64) sim.Proof {
		return proof(s, small, sim.Weights{Write: 3, Burst: 6, Flush: 2, Reopen: 1})
	},
	"zero and discard": func(s uint64) sim.Proof {
		return proof(s, small, sim.Weights{Write: 8, Zero: 6, Discard: 6, Flush: 3, Reopen: 1})
	},
	"large clusters":   func(s uint64) sim.Proof { return large(s, block.Values{"cluster_size": "4K"}) },
	"refcounts 1 bit":  func(s uint64) sim.Proof { return proof(s, with("refcount_bits", "1"), plain) },
	"refcounts 64 bit": func(s uint64) sim.Proof { return proof(s, with("refcount_bits", "64"), plain) },
	"version 2": func(s uint64) sim.Proof {
		return proof(s, with("compat", "0.10"), sim.Weights{Write: 8, Zero: 3, Discard: 3, Flush: 3, Reopen: 1})
	},
	"lazy refcounts": func(s uint64) sim.Proof { return proof(s, with("lazy_refcounts", "on"), plain) },
	"preallocated":   func(s uint64) sim.Proof { return proof(s, with("preallocation", "metadata"), plain) },
	"extended L2": func(s uint64) sim.Proof {
		p := large(s, block.Values{"cluster_size": "16K", "extended_l2": "on"})
		p.Weights = sim.Weights{Write: 8, Zero: 4, Discard: 3, Flush: 3}
		return p
	},
	"copies of backing": func(s uint64) sim.Proof {
		p := large(s, block.Values{"cluster_size": "2K"})
		p.Backing, p.Weights = 150, sim.Weights{Write: 8, Zero: 4, Discard: 4, Flush: 3, Burst: 2, Reopen: 1}
		return p
	},
	"extended L2 over backing": func(s uint64) sim.Proof {
		p := large(s, block.Values{"cluster_size": "16K", "extended_l2": "on"})
		p.Backing, p.Weights = 200, sim.Weights{Write: 8, Zero: 4, Discard: 3, Flush: 3, Burst: 2}
		return p
	},
	"snapshots": func(s uint64) sim.Proof {
		return proof(s, with("cluster_size", "1K"), sim.Weights{Write: 10, Zero: 1, Discard: 1, Flush: 3, Snapshot: 5, Reopen: 1})
	},
	"snapshots of version 2": func(s uint64) sim.Proof {
		// There is no dirty bit that tells the next user to repair: refcounts
		// that are too high lie beside flags that say they are 1.
		p := proof(s, block.Values{"cluster_size": "1K", "compat": "0.10"}, sim.Weights{Write: 10, Flush: 3, Snapshot: 5, Reopen: 1})
		p.Repair = true
		return p
	},
	"resize": func(s uint64) sim.Proof {
		return proof(s, small, sim.Weights{Write: 10, Flush: 3, Resize: 4, Reopen: 1})
	},
	"resize over backing": func(s uint64) sim.Proof {
		p := proof(s, with("cluster_size", "1K"), sim.Weights{Write: 10, Flush: 3, Resize: 4, Reopen: 1})
		p.Backing = 100
		return p
	},
	"bitmaps": func(s uint64) sim.Proof {
		return proof(s, small, sim.Weights{Write: 10, Flush: 3, Bitmap: 4, Reopen: 2})
	},
	"amend": func(s uint64) sim.Proof {
		p := proof(s, small, sim.Weights{Write: 10, Flush: 3, Amend: 3, Reopen: 1})
		for _, v := range []string{"8", "16", "32", "64"} {
			p.Amends = append(p.Amends, block.Values{"refcount_bits": v})
		}
		p.Amends = append(p.Amends, block.Values{"lazy_refcounts": "on"}, block.Values{"lazy_refcounts": "off"})
		return p
	},
	"compressed": func(s uint64) sim.Proof {
		return proof(s, with("cluster_size", "4K"), sim.Weights{Write: 6, Compressed: 8, Flush: 3, Discard: 2, Reopen: 1})
	},
	"compressed with zstd and snapshots": func(s uint64) sim.Proof {
		return proof(s, block.Values{"cluster_size": "2K", "compression_type": "zstd"}, sim.Weights{Write: 6, Compressed: 8, Flush: 3, Snapshot: 2, Reopen: 1})
	},
	"data file": func(s uint64) sim.Proof {
		p := proof(s, with("data_file", "data"), sim.Weights{Write: 8, FUA: 2, Zero: 3, Discard: 3, Flush: 3, Reopen: 1})
		p.DataFile = true
		return p
	},
	"small caches": func(s uint64) sim.Proof {
		p := proof(s, small, sim.Weights{Write: 10, FUA: 1, Zero: 2, Discard: 2, Flush: 1})
		p.Sectors, p.Steps = 800, 40
		p.Open = block.Values{"l2-cache-size": "4K", "l2-cache-entry-size": "512", "refcount-cache-size": "2K"}
		return p
	},
	"everything": func(s uint64) sim.Proof {
		p := proof(s, with("cluster_size", "1K"), sim.Weights{Write: 12, FUA: 2, Zero: 3, Discard: 3, Flush: 4, Snapshot: 2, Resize: 1, Burst: 2, Reopen: 1})
		p.Steps, p.Backing = 40, 80
		return p
	},
}

// with is small with one option more, or another.
func with(name, value string) block.Values {
	v := block.Values{"cluster_size": "512"}
	v[name] = value
	return v
}

// large is a proof of clusters of several sectors.
func large(seed uint64, vals block.Values) sim.Proof {
	p := proof(seed, vals, plain)
	p.Sectors, p.Longest = 256, 40
	return p
}

func TestCrashStates(t *testing.T) {
	seeds := uint64(2)
	if soak() {
		seeds = 16
	} else if race.Enabled {
		seeds = 1
	}
	var all sim.Result
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			var sum sim.Result
			for seed := range seeds {
				r, err := way(seed).Run()
				sum.Add(r)
				if err != nil {
					t.Fatalf("after %d states: %v", sum.States, err)
				}
			}
			t.Logf("%+v", sum)
			all.Add(sum)
		})
	}
	t.Logf("%d states after %d operations: %d with leaks, %d clusters in all; %d mended, %d used further", all.States, all.Steps, all.Leaking, all.Leaks, all.Mended, all.Deep)
}

// TestDisorderIsFound: writes that reach the file in no order, as of a format
// that writes a mapping before the data or the refcount, are found out; so is a
// flush that is only said to be one.
func TestDisorderIsFound(t *testing.T) {
	for _, c := range []struct {
		name string
		way  func(p *sim.Proof)
	}{
		{"no order", disorderly},
		{"no flush", func(p *sim.Proof) {
			p.Between = func(c *block.Child) block.Node { return sim.Through(c, func(*block.Req) error { return nil }) }
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			const tries = 4
			found := 0
			for seed := range uint64(tries) {
				p := proof(seed, small, sim.Weights{Write: 10, Flush: 4})
				p.PerMoment = 4
				c.way(&p)
				if _, err := p.Run(); err != nil {
					found++
					t.Log(strings.SplitN(err.Error(), "\n", 2)[0])
				}
			}
			if found < tries {
				t.Errorf("found with %d of %d seeds", found, tries)
			}
		})
	}
}

// disorderly leaves of all flushes that the format does for one the last, which
// makes all durable at once, in no order.
func disorderly(p *sim.Proof) {
	var edge *block.Child
	p.Between = func(c *block.Child) block.Node {
		edge = c
		return sim.Through(c, func(*block.Req) error { return nil })
	}
	p.Flushed = func() error {
		q := block.NewQueue(edge.Instance().Env(), block.NewQueueGroup())
		defer q.Close()
		rq := q.Begin()
		err := edge.Flush(rq)
		q.End(rq, block.OpFlush, 0, err)
		return err
	}
}
