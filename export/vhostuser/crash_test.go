package vhostuser

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/platter-storage/platter/internal/testutil"
	"github.com/platter-storage/platter/virtio"
)

func TestMain(m *testing.M) { testutil.Main(m) }

// server is platter serve as a process of its own.
type server struct {
	t   *testing.T
	cmd *exec.Cmd
	log *testutil.Output
}

// startServer starts platter serve and waits until it is ready.
func startServer(t *testing.T, args ...string) *server {
	t.Helper()
	s := &server{t: t, cmd: exec.Command(testutil.Binary(t), append([]string{"serve"}, args...)...), log: &testutil.Output{}}
	s.cmd.Stderr = s.log
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.kill)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "ready:") {
			go func() { // it may say more
				for lines.Scan() {
				}
			}()
			return s
		}
	}
	s.kill()
	t.Fatalf("platter serve %v is not ready:\n%s", args, s.log)
	return nil
}

// kill ends the server at once.
func (s *server) kill() {
	if s.cmd.ProcessState != nil {
		return
	}
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

// stop ends it in the ordinary way.
func (s *server) stop() {
	s.t.Helper()
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	if err := s.cmd.Wait(); err != nil {
		s.t.Errorf("the server ended with %v:\n%s", err, s.log)
	}
}

const (
	crashDisk   = 8 * mib
	crashBlock  = 4096
	crashBlocks = crashDisk / crashBlock
	crashDepth  = 32
)

// storm writes blocks whose content tells how often they have been written.
// No block is written by two requests at once, so what was written last has to
// be there in the end, however often the server died meanwhile.
type storm struct {
	m       *vm
	rng     *rand.Rand
	version [crashBlocks]uint64 // of the last write that was offered
	busy    [crashBlocks]bool
	block   map[[2]int]int // by queue and slot; -1: a flush
	done    int
}

func (s *storm) fill(b []byte, blk int) {
	for i := 0; i < crashBlock; i += 16 {
		binary.LittleEndian.PutUint64(b[i:], s.version[blk])
		binary.LittleEndian.PutUint64(b[i+8:], uint64(blk))
	}
}

// offer keeps crashDepth requests in each queue.
func (s *storm) offer() {
	for _, q := range s.m.queues {
		for q.driver.Out() < crashDepth {
			blk := s.rng.IntN(crashBlocks)
			if s.busy[blk] {
				continue
			}
			k := 0
			for q.busy[k] {
				k++
			}
			if s.rng.IntN(20) == 0 {
				s.block[[2]int{q.index, k}] = -1
				q.offerSlot(k, virtio.BlkFlush, 0, 0, false)
				continue
			}
			s.version[blk]++
			s.busy[blk] = true
			s.fill(q.data(k), blk)
			s.block[[2]int{q.index, k}] = blk
			q.offerSlot(k, virtio.BlkOut, uint64(blk)*crashBlock/512, crashBlock, true)
		}
	}
}

// reap takes what is done.
func (s *storm) reap() {
	for _, q := range s.m.queues {
		for {
			k, ok := q.poll()
			if !ok {
				break
			}
			if st := q.status(k); st != virtio.BlkOK {
				s.m.t.Fatalf("queue %d: status %d", q.index, st)
			}
			if blk := s.block[[2]int{q.index, k}]; blk >= 0 {
				s.busy[blk] = false
			}
			s.done++
		}
	}
}

// drain waits for all that is out.
func (s *storm) drain() {
	s.m.t.Helper()
	for _, q := range s.m.queues {
		for q.driver.Out() > 0 {
			k := q.next()
			if st := q.status(k); st != virtio.BlkOK {
				s.m.t.Fatalf("queue %d: status %d", q.index, st)
			}
			if blk := s.block[[2]int{q.index, k}]; blk >= 0 {
				s.busy[blk] = false
			}
			s.done++
		}
	}
}

// check reads all blocks back.
func (s *storm) check() {
	s.m.t.Helper()
	const atOnce = slotData / crashBlock
	q := s.m.queues[0]
	want := make([]byte, crashBlock)
	for first := 0; first < crashBlocks; first += atOnce {
		if st := q.do(virtio.BlkIn, uint64(first)*crashBlock/512, slotData, false); st != virtio.BlkOK {
			s.m.t.Fatalf("block %d: status %d", first, st)
		}
		for i := range atOnce {
			blk, got := first+i, q.data(0)[i*crashBlock:][:crashBlock]
			if s.fill(want, blk); s.version[blk] > 0 && string(want) != string(got) {
				s.m.t.Errorf("block %d has version %d, written last was %d", blk, binary.LittleEndian.Uint64(got), s.version[blk])
			}
		}
	}
}

// TestKillInWriteStorm kills the server with two queues full of writes, starts
// it again on the same socket, and lets the machine go on, again and again: every
// request ends, once, and nothing old comes after something new.
func TestKillInWriteStorm(t *testing.T) {
	rounds := 5
	if os.Getenv("PLATTER_SOAK") != "" {
		rounds = 100
	}
	for _, c := range []struct{ kind, cache string }{{"split", "none"}, {"packed", "none"}, {"plain", "writeback"}, {"packed", "writeback"}} {
		t.Run(c.kind+"/"+c.cache, func(t *testing.T) { killStorm(t, rings[c.kind], c.cache, rounds) })
	}
}

func killStorm(t *testing.T, features uint64, cache string, rounds int) {
	seed := uint64(7)
	if text := os.Getenv("PLATTER_SEED"); text != "" {
		seed, _ = strconv.ParseUint(text, 10, 64)
	}
	dir := shortDir(t)
	socket := filepath.Join(dir, "s")
	args := []string{"--create", fmt.Sprint(crashDisk), "--cache", cache, "--vhost-user", socket + ",queues=2", filepath.Join(dir, "disk")}
	srv := startServer(t, args...)
	m := newVM(t, 2, 128, features|virtio.BlkFeatureConfigWCE)
	r := &rig{t: t, socket: socket, log: srv.log}
	m.realize(r)
	m.driverOK()
	s := &storm{m: m, rng: rand.New(rand.NewPCG(seed, uint64(rounds))), block: map[[2]int]int{}}
	var waited, resumed int
	// A slow machine may have nothing in flight when the server dies, for a while.
	for round := 0; round < rounds || resumed == 0 && round < 20*rounds; round++ {
		for until := s.done + 50 + s.rng.IntN(1500); s.done < until; {
			before := s.done
			s.offer()
			if s.reap(); s.done == before {
				time.Sleep(100 * time.Microsecond) // the server needs the processor
			}
		}
		srv.kill()
		waited += strings.Count(srv.log.String(), "waited until the kernel had finished")
		resumed += strings.Count(srv.log.String(), "were in flight when the former process ended")
		m.Close()
		s.reap() // what was published before the end
		s.offer()
		srv = startServer(t, args...)
		r.log = srv.log
		m.shared = false
		m.reconnect(r, allProtocol)
		if round%2 == 0 {
			s.drain()
			s.check()
		}
		if t.Failed() {
			t.Fatalf("round %d, seed %d", round, seed)
		}
	}
	s.drain()
	s.check()
	m.pause()
	m.Close()
	srv.stop()
	if log := srv.log.String(); strings.Contains(log, "level=ERROR") || strings.Contains(log, "refused") {
		t.Errorf("log:\n%s", log)
	}
	if resumed += strings.Count(srv.log.String(), "were in flight when the former process ended"); resumed == 0 {
		t.Error("no queue had anything in flight when the server died: the test shows nothing")
	}
	t.Logf("%d rounds, seed %d: %d requests ended, each once; %d queues had some in flight, %d starts waited for the kernel", rounds, seed, s.done, resumed, waited)
}
