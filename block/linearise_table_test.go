package block_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/platter-storage/platter/block"
	bt "github.com/platter-storage/platter/block/blocktest"
	"github.com/platter-storage/platter/internal/race"
)

// tableRows are the workloads of the published table; each request is pages
// pages that do not touch.
var tableRows = []struct {
	name  string
	pages func(i int) int
	op    func(i int) block.Op
	n     int
	slots int // the server's: many where it reads ahead, few where its disk has to work
}{
	{"large file creates 256 KB", always(64), opAlways(block.OpWrite), 6000, 4},
	{"sequential reads 256 KB", always(64), opAlways(block.OpRead), 6000, 16},
	{"large file creates 8 KB", always(2), opAlways(block.OpWrite), 20000, 4},
	{"sequential reads 8 KB", always(2), opAlways(block.OpRead), 20000, 4},
	{"random reads 8 KB", always(2), opAlways(block.OpRead), 20000, 4},
	{"random writes 8 KB", always(2), opAlways(block.OpWrite), 20000, 4},
	{"mail server 8 KB", mailPages, mailOp, 20000, 4},
}

func always(n int) func(int) int              { return func(int) int { return n } }
func opAlways(op block.Op) func(int) block.Op { return func(int) block.Op { return op } }
func mix(i int) int                           { return int(uint32(i*2654435761) >> 16 % 100) }
func mailPages(i int) int                     { return 1 + min(mix(i)/15, 1) } // a sixth are short last blocks
func mailOp(i int) block.Op {
	if mix(i+7) < 67 { // of read and create by 4 to 2
		return block.OpRead
	}
	return block.OpWrite
}

// tableCell runs one cell and gives MB/s.
func tableCell(t *testing.T, row, threads int, mode block.LineariseMode) float64 {
	r := &tableRows[row]
	cost := nfs(true)
	cost.Slots = r.slots
	s := openLine(t, cost, &block.LineariseConfig{Mode: mode}, false)
	var bytes int64
	vecs := map[int]block.Vec{}
	for _, n := range []int{1, 2, 64} {
		vecs[n] = s.scattered(n, 4096, 0)
	}
	rnd := bt.NewRand(uint64(row))
	n := r.n
	if race.Enabled {
		n /= 10 // the loss that is allowed below is then larger
	}
	ns := s.cost.Run(threads, n, func(_, i int) {
		v := vecs[r.pages(i)]
		bytes += v.Len()
		s.one(t, r.op(i), int64(rnd()%uint64(lineStoreSize/v.Len()))*v.Len(), v)
	})
	if st := s.Queue.Stats(); int64(st.Bytes[block.OpRead]+st.Bytes[block.OpWrite]) != bytes {
		t.Errorf("%s: %d bytes were counted, %d moved", r.name, st.Bytes[block.OpRead]+st.Bytes[block.OpWrite], bytes)
	}
	return float64(bytes) * 1e3 / float64(ns)
}

// The published table, all 14 cells, over emulated storage in a time of its
// own: auto loses at most 3 % against the better of never and always in each.
func TestC5Table(t *testing.T) {
	var table strings.Builder
	fmt.Fprintf(&table, "%-28s %7s %9s %9s %9s\n", "MB/s", "threads", "never", "always", "auto")
	loses := 0
	for row := range tableRows {
		for _, threads := range []int{8, 1} {
			never := tableCell(t, row, threads, block.LineariseNever)
			always := tableCell(t, row, threads, block.LineariseAlways)
			auto := tableCell(t, row, threads, block.LineariseAuto)
			fmt.Fprintf(&table, "%-28s %7d %9.2f %9.2f %9.2f\n", tableRows[row].name, threads, never, always, auto)
			allowed := 0.97
			if race.Enabled {
				allowed = 0.90 // learning is a tenth of so few requests
			}
			if auto < allowed*max(never, always) {
				t.Errorf("%s, %d threads: auto %.2f MB/s, never %.2f, always %.2f", tableRows[row].name, threads, auto, never, always)
			}
			if always < never {
				loses++
			}
		}
	}
	t.Log("\n" + table.String())
	if loses < 3 {
		t.Errorf("always loses in %d cells: in the published table in three, so this model is another", loses)
	}
}
