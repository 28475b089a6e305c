package nbd

import (
	"bytes"
	"testing"

	"github.com/platter-storage/platter/block/blocktest"
	wire "github.com/platter-storage/platter/wire/nbd"
)

// Every command, in every mode of replies, on a disk in memory and on a file.
func TestCommands(t *testing.T) {
	for _, kind := range []string{"mem", "file"} {
		for _, m := range modes {
			t.Run(kind+"/"+m.name, func(t *testing.T) { testCommands(t, kind, m.cfg) })
		}
	}
}

func testCommands(t *testing.T, kind string, cfg wire.ClientConfig) {
	env := blocktest.NewEnv(t)
	r := newRig(t, env, Config{}, Export{Name: "d", Child: disk(t, env, kind, 12*mib), AllocationDepth: true})
	cfg.Export = "d"
	c := r.dial(cfg, wire.ClientOptions{})
	shadow := make([]byte, c.Size())
	check := func(off, n int) {
		t.Helper()
		b := pattern(n, 99)
		if err := c.Pread(b, uint64(off), 0); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(b, shadow[off:off+n]) {
			t.Fatalf("%d bytes at %d differ", n, off)
		}
	}
	lengths := []int{1, 511, 512, 4096, 4097, maxBuffered, maxBuffered + 1, 100000, 1 << 20, 1<<20 + 1, 3<<20 + 12345, 8 << 20}
	for i, n := range lengths {
		off := i * 777
		p := pattern(n, byte(i))
		fl := wire.CmdFlags(0)
		if i%2 == 1 {
			fl = wire.CmdFlagFUA
		}
		if err := c.Pwrite(p, uint64(off), fl); err != nil {
			t.Fatal(err)
		}
		copy(shadow[off:], p)
		check(off, n)
		check(max(0, off-5000), n+5000-max(0, n+5000-wire.MaxPayload))
	}
	for _, z := range []struct {
		off, n int
		fl     wire.CmdFlags
	}{{100, 200, 0}, {4096, 65536, wire.CmdFlagNoHole}, {1 << 20, 3<<20 + 17, wire.CmdFlagFUA}, {4 << 20, 6 << 20, 0}} {
		if err := c.WriteZeroes(uint64(z.off), uint64(z.n), z.fl); err != nil {
			t.Fatal(err)
		}
		clear(shadow[z.off : z.off+z.n])
		check(max(0, z.off-1000), z.n+2000)
	}
	if err := c.Trim(10<<20, 1<<20, wire.CmdFlagFUA); err != nil {
		t.Fatal(err)
	}
	if err := c.Pwrite(shadow[10<<20:11<<20], 10<<20, 0); err != nil { // what was trimmed may read as anything
		t.Fatal(err)
	}
	if err := c.Cache(0, uint64(len(shadow))); err != nil {
		t.Fatal(err)
	}
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	for range 3 * loneAfter { // served in place by now
		check(12345, 4096)
	}
	if cfg.WantStructured || cfg.WantExtended {
		testStatus(t, c, shadow)
	}
	if err := c.Disconnect(); err != nil {
		t.Fatal(err)
	}
}

func testStatus(t *testing.T, c *wire.Client, shadow []byte) {
	for _, fl := range []wire.CmdFlags{0, wire.CmdFlagReqOne} {
		for off := uint64(0); off < c.Size(); {
			sts, err := c.BlockStatus(off, c.Size()-off, fl)
			if err != nil {
				t.Fatal(err)
			}
			if want := len(c.Session().Contexts); len(sts) != want {
				t.Fatalf("%d contexts answered, want %d", len(sts), want)
			}
			at := off
			for _, e := range sts[0].Extents {
				if e.Flags&wire.StateZero != 0 && bytes.Count(shadow[at:at+e.Length], []byte{0}) != int(e.Length) {
					t.Errorf("%d bytes at %d are said to be zero and are not", e.Length, at)
				}
				at += e.Length
			}
			if fl != 0 && len(sts[0].Extents) != 1 {
				t.Errorf("%d extents, one was asked for", len(sts[0].Extents))
			}
			off = at
		}
	}
}
