package blocktest

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/platter-storage/platter/block"
)

// ModelOp is one operation of the model test.
type ModelOp struct {
	Op    block.Op
	Off   int64
	Len   int64
	Flags block.Flags
	// Mem is the address of the data modulo 64 KiB, Cuts the lengths of its
	// elements but the last, Gap the memory between two of them.
	Mem, Gap int
	Cuts     []int
	// Edge is the number of the edge, Worker that of the goroutine. Fast
	// asks the fast lane first.
	Edge, Worker int
	Fast         bool
}

// maxCuts and maxGap bound the memory that an operation takes beside its data.
const (
	maxCuts = 12
	maxGap  = 4096
)

// writeOps are the ways of changing content, by how often they are taken.
var modelWeights = []struct {
	op     block.Op
	weight int
}{
	{block.OpRead, 34}, {block.OpWrite, 36}, {block.OpZero, 12}, {block.OpDiscard, 5}, {block.OpStatus, 8}, {block.OpFlush, 5},
}

// generator makes operations.
type generator struct {
	*rand.Rand
	cfg  ModelConfig
	from int64 // the part of the disk that is used
	end  int64
}

// ops makes all operations of a run.
func (g *generator) ops(edges int, writable bool) []ModelOp {
	list := make([]ModelOp, 0, g.cfg.Ops)
	for len(list) < g.cfg.Ops {
		o := g.op(writable)
		o.Edge, o.Worker = g.IntN(edges), g.IntN(g.cfg.Workers)
		list = append(list, o)
	}
	return list
}

func (g *generator) op(writable bool) ModelOp {
	o := ModelOp{Op: g.kind(writable)}
	if o.Op == block.OpFlush {
		return o
	}
	o.Off, o.Len = g.where()
	switch o.Op {
	case block.OpRead, block.OpWrite:
		o.Fast = g.IntN(2) == 0
		g.memory(&o)
		if o.Op == block.OpWrite && g.IntN(6) == 0 {
			o.Flags |= block.FUA
		}
		if g.IntN(12) == 0 {
			o.Flags |= block.Serialising
		}
	case block.OpZero:
		o.Flags = block.Flags(g.IntN(4)) // FUA, MayUnmap
		if !g.cfg.exact && g.IntN(4) == 0 {
			o.Flags |= block.NoFallback
		}
	}
	return o
}

func (g *generator) kind(writable bool) block.Op {
	if !writable {
		return []block.Op{block.OpRead, block.OpRead, block.OpRead, block.OpStatus, block.OpFlush}[g.IntN(5)]
	}
	for {
		at := g.IntN(100)
		for _, w := range modelWeights {
			if at -= w.weight; at < 0 {
				if w.op == block.OpDiscard && g.cfg.exact {
					break
				}
				return w.op
			}
		}
	}
}

// where makes a range: of all sizes alike, aligned to anything, often near
// others, sometimes up to the end.
func (g *generator) where() (off, n int64) {
	area := g.end - g.from
	if g.IntN(3) == 0 {
		area = min(area, 12<<10)
	}
	most := min(g.cfg.MaxLen, area)
	n = 1 + g.Int64N(most)>>g.IntN(17)
	off = g.Int64N(area - n + 1)
	align := []int64{1, 1, 512, 512, 4096, 4096, 4096, 65536}[g.IntN(8)]
	off &^= align - 1
	if g.IntN(3) > 0 {
		n = max(n&^(align-1), min(align, area-off))
	}
	if g.IntN(16) == 0 {
		off = g.end - g.from - n // the end of the disk
	}
	return g.from + off, n
}

// memory makes the addresses and elements of an operation.
func (g *generator) memory(o *ModelOp) {
	o.Mem = []int{0, 0, 0, 4096, 512, 512, 256, 64, 8, 4, 1}[g.IntN(11)]
	unit := []int{1, 4, 512, 512, 4096, 4096}[g.IntN(6)]
	for left := int(o.Len); g.IntN(3) > 0 && len(o.Cuts) < maxCuts; {
		n := g.IntN(min(left, 20000)+1) / unit * unit
		o.Cuts = append(o.Cuts, n)
		left -= n
	}
	if len(o.Cuts) > 0 {
		o.Gap = []int{0, 0, 1, 4, 512, maxGap}[g.IntN(6)]
	}
}

// vec lays the operation's elements out in mem.
func (o *ModelOp) vec(mem []byte) block.Vec {
	mem = mem[o.Mem:]
	left := int(o.Len)
	var v block.Vec
	for _, n := range append(o.Cuts[:len(o.Cuts):len(o.Cuts)], left) {
		n = min(n, left)
		v = append(v, mem[:n:n])
		mem, left = mem[n+o.Gap:], left-n
	}
	if left > 0 {
		v = append(v, mem[:left:left])
	}
	return v
}

// memoryFor is how much memory an operation of n bytes may take.
func memoryFor(n int64) int { return int(n) + 2*block.MaxAlign + (maxCuts+2)*maxGap }

var opGoNames = map[block.Op]string{
	block.OpRead: "block.OpRead", block.OpWrite: "block.OpWrite", block.OpZero: "block.OpZero",
	block.OpDiscard: "block.OpDiscard", block.OpFlush: "block.OpFlush", block.OpStatus: "block.OpStatus",
}

// String writes the operation as Go.
func (o ModelOp) String() string {
	s := "{Op: " + opGoNames[o.Op]
	add := func(name string, x int64) {
		if x != 0 {
			s += fmt.Sprintf(", %s: %d", name, x)
		}
	}
	add("Off", o.Off)
	add("Len", o.Len)
	if o.Flags != 0 {
		s += ", Flags: " + flagsGo(o.Flags)
	}
	add("Mem", int64(o.Mem))
	add("Gap", int64(o.Gap))
	if len(o.Cuts) > 0 {
		s += fmt.Sprintf(", Cuts: %#v", o.Cuts)
	}
	add("Edge", int64(o.Edge))
	add("Worker", int64(o.Worker))
	if o.Fast {
		s += ", Fast: true"
	}
	return s + "}"
}

func flagsGo(fl block.Flags) string {
	var s []string
	for _, f := range []struct {
		fl   block.Flags
		name string
	}{{block.FUA, "block.FUA"}, {block.MayUnmap, "block.MayUnmap"}, {block.NoFallback, "block.NoFallback"}, {block.Serialising, "block.Serialising"}} {
		if fl&f.fl != 0 {
			s = append(s, f.name)
		}
	}
	return strings.Join(s, "|")
}
