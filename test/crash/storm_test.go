// Package crash ends a server in the middle of writing, as kill -9 does, and
// checks that what had been acknowledged and flushed is there afterwards.
package crash

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/platter-storage/platter/internal/testutil"
	"github.com/platter-storage/platter/wire/nbd"
)

func TestMain(m *testing.M) { testutil.Main(m) }

const (
	diskSize  = 16 << 20
	blockSize = 4096
	numBlocks = diskSize / blockSize
	writers   = 4
)

// history is what one writer knows of its blocks, each written by it alone:
// versions count up.
type history struct {
	issued  [numBlocks]uint64 // the newest version sent
	acked   [numBlocks]uint64 // the newest version acknowledged
	durable [numBlocks]uint64 // the newest version covered by an acknowledged flush or FUA
}

// fill writes a block's content for a version: every word tells both, so that
// a torn block shows.
func fill(p []byte, blk int, version uint64) {
	for i := 0; i < len(p); i += 16 {
		binary.LittleEndian.PutUint64(p[i:], version)
		binary.LittleEndian.PutUint64(p[i+8:], uint64(blk))
	}
}

// write storms blocks of one writer until the connection breaks.
func (h *history) write(c *nbd.Client, who int, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, uint64(who)))
	buf := make([]byte, 8*blockSize)
	for n := 0; ; n++ {
		blk := (rng.IntN(numBlocks/writers/8)*writers + who) * 8
		count := 1 + rng.IntN(8)
		for i := range count {
			h.issued[blk+i]++
			fill(buf[i*blockSize:(i+1)*blockSize], blk+i, h.issued[blk+i])
		}
		var fl nbd.CmdFlags
		if rng.IntN(4) == 0 {
			fl = nbd.CmdFlagFUA
		}
		if c.Pwrite(buf[:count*blockSize], uint64(blk)*blockSize, fl) != nil {
			return
		}
		for i := range count {
			h.acked[blk+i] = h.issued[blk+i]
			if fl != 0 {
				h.durable[blk+i] = h.issued[blk+i]
			}
		}
		if n%8 == 7 {
			before := h.acked
			if c.Flush() != nil {
				return
			}
			for i, v := range before {
				h.durable[i] = max(h.durable[i], v)
			}
		}
	}
}

// check reads everything back. A block holds one whole version, not older than
// the durable one, not newer than what was sent.
func (h *history) check(t *testing.T, disk []byte, who int) (lost int) {
	t.Helper()
	want := make([]byte, blockSize)
	for blk := range h.issued {
		if h.issued[blk] == 0 {
			continue
		}
		got := disk[blk*blockSize : (blk+1)*blockSize]
		version := binary.LittleEndian.Uint64(got)
		if version < h.durable[blk] || version > h.issued[blk] {
			t.Errorf("writer %d, block %d: version %d; durable was %d, sent were up to %d", who, blk, version, h.durable[blk], h.issued[blk])
			lost++
		}
		if fill(want, blk, version); version > 0 && string(want) != string(got) {
			t.Errorf("writer %d, block %d is torn", who, blk)
			lost++
		}
		// What is on the disk now is where the next round goes on from.
		h.durable[blk], h.acked[blk] = version, version
	}
	return lost
}

// readAll reads the whole disk.
func readAll(t *testing.T, c *nbd.Client) []byte {
	t.Helper()
	disk := make([]byte, diskSize)
	const step = 1 << 20
	for off := 0; off < len(disk); off += step {
		if err := c.Pread(disk[off:off+step], uint64(off), 0); err != nil {
			t.Fatal(err)
		}
	}
	return disk
}

func dial(t *testing.T, s *testutil.Server) *nbd.Client {
	t.Helper()
	c, err := nbd.Dial(t.Context(), s.URI(""), nbd.DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestKillInWriteStorm kills the server at a random moment of a storm of
// writes, flushes and FUA writes, starts it again on the same file, and checks
// every block; again and again on the same disk.
func TestKillInWriteStorm(t *testing.T) {
	rounds := 100
	if os.Getenv("PLATTER_SOAK") != "" {
		rounds = 1000
	}
	for _, args := range [][]string{{"--cache", "none"}, {"--cache", "writeback"}, {"--cache", "none", "--aio", "threads"}, {"--cache", "directsync"}} {
		t.Run(fmt.Sprint(args), func(t *testing.T) { storm(t, args, rounds/4) })
	}
}

func storm(t *testing.T, args []string, rounds int) {
	const seed = 42
	rng := rand.New(rand.NewPCG(seed, 0))
	path := filepath.Join(t.TempDir(), "disk.img")
	args = append([]string{"--create", fmt.Sprint(diskSize), path}, args...)
	var hist [writers]history
	var checked, acked uint64
	for round := range rounds + 1 {
		s := testutil.Serve(t, args...)
		var wg sync.WaitGroup
		killer := dial(t, s)
		disk := readAll(t, killer)
		for w := range writers {
			if lost := hist[w].check(t, disk, w); lost > 0 {
				t.Fatalf("round %d: %d blocks lost", round, lost)
			}
			checked += numBlocks / writers
		}
		if round == rounds {
			killer.Close()
			s.Stop(t)
			break
		}
		for w := range writers {
			c := dial(t, s)
			wg.Go(func() {
				hist[w].write(c, w, seed+uint64(round))
				c.Close()
			})
		}
		// The moment of the kill is a number of requests, not a time.
		probe := make([]byte, 512)
		for range 20 + rng.IntN(300) {
			if err := killer.Pread(probe, 0, 0); err != nil {
				t.Fatal(err)
			}
		}
		s.Kill()
		wg.Wait()
		killer.Close()
	}
	for w := range hist {
		for _, v := range hist[w].acked {
			acked += v
		}
	}
	t.Logf("%d rounds, seed %d: about %d block versions acknowledged, %d block checks, none lost", rounds, seed, acked, checked)
}
