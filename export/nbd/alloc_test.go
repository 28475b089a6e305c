//go:build !race

package nbd

import (
	"io"
	"testing"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/block/blocktest"
	wire "github.com/platter-storage/platter/wire/nbd"
)

// Serving requests allocates nothing, whatever the command, the disk and the
// way: 100 000 requests each, in batches and alone. (Under the race detector
// the pools of the disks drop things at random.)
func TestNoAllocations(t *testing.T) {
	for _, d := range []struct {
		name string
		open func(t testing.TB, env *block.Env) *block.Child
	}{
		{"mem", func(t testing.TB, env *block.Env) *block.Child { return disk(t, env, "mem", 8*mib) }},
		{"null", func(t testing.TB, env *block.Env) *block.Child { return disk(t, env, "null", 8*mib) }},
		{"cached", func(t testing.TB, env *block.Env) *block.Child { return disk(t, env, "file", 8*mib) }},
		{"direct", func(t testing.TB, env *block.Env) *block.Child { return directFile(t, env, 8*mib) }},
	} {
		t.Run(d.name, func(t *testing.T) {
			env := blocktest.NewEnv(t)
			r := newRig(t, env, Config{}, Export{Child: d.open(t, env)})
			for _, tc := range []struct {
				name  string
				typ   wire.Cmd
				fl    wire.CmdFlags
				n     uint64
				reply int // bytes
			}{
				{"read", wire.CmdRead, wire.CmdFlagDF, 4096, wire.ChunkLen + 8 + 4096},
				{"long read", wire.CmdRead, wire.CmdFlagDF, 128 << 10, wire.ChunkLen + 8 + 128<<10},
				{"write", wire.CmdWrite, 0, 4096, wire.SimpleReplyLen},
				{"long write", wire.CmdWrite, 0, 128 << 10, wire.SimpleReplyLen},
				{"flush", wire.CmdFlush, 0, 0, wire.SimpleReplyLen},
				{"write zeroes", wire.CmdWriteZeroes, 0, 4096, wire.SimpleReplyLen},
				{"trim", wire.CmdTrim, 0, 4096, wire.SimpleReplyLen},
				{"block status", wire.CmdBlockStatus, wire.CmdFlagReqOne, 4096, wire.BlockStatusLen(false, 1)},
			} {
				for name, batch := range map[string]int{"alone": 1, "batch": 16} {
					t.Run(tc.name+"/"+name, func(t *testing.T) {
						c := r.raw(wire.ClientConfig{WantStructured: true, Contexts: []string{wire.ContextAllocation}})
						var b []byte
						for i := range batch {
							b = append(b, request(tc.typ, tc.fl, uint64(i), 0, tc.n)...)
							if tc.typ == wire.CmdWrite {
								b = append(b, make([]byte, tc.n)...)
							}
						}
						rounds := allocRounds(t, tc.name, d.name) / batch
						got := make([]byte, tc.reply*batch)
						var err error
						round := func() {
							if _, werr := c.Write(b); werr != nil {
								err = werr
							}
							if _, rerr := io.ReadFull(c, got); rerr != nil {
								err = rerr
							}
						}
						var least float64
						// Places, buffers and workers are made when they are first
						// needed, at any time: what happens in each try counts.
						for try := 0; try == 0 || try < 5 && least > 0; try++ {
							n := testing.AllocsPerRun(rounds, round)
							if try == 0 {
								least = n
							}
							least = min(least, n)
						}
						if least != 0 {
							t.Errorf("%v allocations in %d requests", least, batch)
						}
						if err != nil {
							t.Fatal(err)
						}
					})
				}
			}
		})
	}
}

// allocRounds is 100 000 requests in all, less where each is a device's.
func allocRounds(t *testing.T, what, disk string) int {
	if testing.Short() || disk != "mem" && disk != "null" && what != "read" {
		return 500
	}
	return 100_000 / 16
}
