//go:build linux && amd64

package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/platter-storage/platter/test/guest/scenario"
)

// Rounds of crashes, in make test and in a soak.
const (
	serverRounds     = 5
	serverRoundsSoak = 200
	guestRounds      = 2
	guestRoundsSoak  = 40
)

func rounds(t *testing.T, usual, soak int) int {
	t.Helper()
	if os.Getenv("PLATTER_SOAK") != "" {
		return soak
	}
	return usual
}

// trafficTimeout bounds the wait for a load to make headway, a front end's
// connecting again included.
const trafficTimeout = 2 * time.Minute

// load is a scenario.Writer that runs in a guest, as its host knows it.
type load struct {
	scenario.Writer
	m *machine

	mu      sync.Mutex
	acked   []uint64 // the newest version acknowledged to the guest, of each block
	durable []uint64 // the newest one covered by a flush
	writes  int
	flushes int
	garbled error // news that were none
	done    chan struct{}
	ended   error // once done: how
}

// startLoad starts one of depth 32 on a disk, over blocks that are rewritten
// all the time, so that a write that comes late has something to destroy.
func startLoad(t *testing.T, m *machine, device string, seed, base uint64) *load {
	t.Helper()
	l := &load{m: m, done: make(chan struct{}), Writer: scenario.Writer{
		Name: "load-" + device, Device: device, Seed: seed, Base: base, Depth: 32, Block: 4096, PerWorker: 16, MaxRun: 4,
		Offset: 1 << 20, FlushEvery: 16, Report: true,
	}}
	l.acked, l.durable = make([]uint64, l.Blocks()), make([]uint64, l.Blocks())
	go func() {
		defer close(l.done)
		l.ended = m.Follow(context.Background(), scenario.WriterStart, l.Writer, nil, l.hear)
	}()
	return l
}

// hear takes the guest's news.
func (l *load) hear(raw json.RawMessage) {
	var news []scenario.Ack
	err := json.Unmarshal(raw, &news)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.garbled = err
		return
	}
	for _, a := range news {
		for _, w := range a.Writes {
			for i := range w[1] {
				l.acked[w[0]+i] = w[2] + i
			}
			l.writes++
		}
		if a.Flushed {
			first := a.Worker * l.PerWorker
			copy(l.durable[first:first+l.PerWorker], l.acked[first:])
			l.flushes++
		}
	}
}

func (l *load) counted() (writes, flushes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.writes, l.flushes
}

// advance waits until the guest has had n more writes acknowledged, and half
// as many flushes as belong to them.
func (l *load) advance(t *testing.T, n int) {
	t.Helper()
	w0, f0 := l.counted()
	for deadline := time.Now().Add(trafficTimeout); ; time.Sleep(time.Millisecond) {
		w, f := l.counted()
		if w-w0 >= n && f-f0 >= n/l.FlushEvery/2 {
			return
		}
		select {
		case <-l.done:
			t.Fatalf("the load on %s ended: %v", l.Device, l.ended)
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %d writes and %d flushes in %v; want %d and %d: requests are lost, or the front end does not connect again\n%s",
				l.Device, w-w0, f-f0, trafficTimeout, n, n/l.FlushEvery/2, l.m.Console())
		}
	}
}

// check lets everything in flight end and verifies each block.
func (l *load) check(t *testing.T) {
	t.Helper()
	var got scenario.Written
	l.m.ask(t, scenario.WriterCheck, scenario.WriterName{Name: l.Name}, &got)
	if got.Checked != l.Blocks() || got.Reads == 0 {
		t.Errorf("%s: %d of %d blocks checked, %d reads on the way", l.Device, got.Checked, l.Blocks(), got.Reads)
	}
}

func (l *load) stop(t *testing.T) {
	t.Helper()
	l.m.ask(t, scenario.WriterStop, scenario.WriterName{Name: l.Name}, nil)
	<-l.done
	if err := errors.Join(l.ended, l.garbled); err != nil {
		t.Errorf("the load on %s: %v", l.Device, err)
	}
}

// traffic is how many writes go by between two events of a round.
const traffic = 150

// TestServerCrash kills the server under a load of depth 32 and starts it
// again, many times, by turns on the split and on the packed ring, on disks
// that are fast and on slow ones with all their requests in flight, while the
// other disks go on. No request may be lost, fail, or be overtaken by one
// that the dead process left behind.
func TestServerCrash(t *testing.T) {
	o := Options{CPUs: 2}
	var servers []*server
	for i := range 4 {
		d := newTarget(t, diskSize)
		d.queues, d.slow = 2, i >= 2
		servers = append(servers, start(t, chosen(), d))
		o.Disks = append(o.Disks, Disk{Socket: d.socket, Packed: i%2 == 1, Queues: 2})
	}
	m := boot(t, o)
	var loads []*load
	for i := range servers {
		loads = append(loads, startLoad(t, m, fmt.Sprintf("vd%c", 'a'+i), uint64(i), 0))
	}
	for round := range rounds(t, serverRounds, serverRoundsSoak) {
		s, l := servers[round%len(servers)], loads[round%len(servers)]
		l.advance(t, traffic)
		s.kill()
		s.start(t)
		l.advance(t, traffic)
		l.check(t)
		m.quiet(t)
		if t.Failed() {
			t.Fatalf("after round %d, on %s", round, l.Device)
		}
		if round%20 == 19 {
			t.Logf("%d servers killed", round+1)
		}
	}
	for i, l := range loads {
		l.check(t)
		l.stop(t)
		l.noticesChange(t, servers[i].path)
		w, f := l.counted()
		t.Logf("%s: %d writes, %d flushes", l.Device, w, f)
	}
	m.off(t)
}

// noticesChange makes sure that the checker would have seen one wrong bit.
func (l *load) noticesChange(t *testing.T, image string) {
	t.Helper()
	f, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	at := l.Offset + int64(l.Blocks()/2*l.Block) + 1000
	var one [1]byte
	if _, err := f.ReadAt(one[:], at); err != nil {
		t.Fatal(err)
	}
	one[0] ^= 4
	if _, err := f.WriteAt(one[:], at); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := l.m.Ask(context.Background(), scenario.WriterCheck, scenario.WriterName{Name: l.Name}, nil); err == nil {
		t.Errorf("%s: a bit was turned in the image and the check found nothing", l.Device)
	}
}

// TestGuestCrash kills the machine under a load of depth 32 on both rings, and
// boots another one on the same servers, which finds what was acknowledged and
// is the next to go.
func TestGuestCrash(t *testing.T) {
	o := Options{CPUs: 2}
	for _, packed := range []bool{false, true} {
		d := newTarget(t, diskSize)
		start(t, chosen(), d)
		o.Disks = append(o.Disks, Disk{Socket: d.socket, Packed: packed})
	}
	least := make([][]uint64, len(o.Disks))
	m := boot(t, o)
	for round := range rounds(t, guestRounds, guestRoundsSoak) {
		var loads []*load
		for i := range o.Disks {
			// Versions of one guest are above all of those before it.
			loads = append(loads, startLoad(t, m, fmt.Sprintf("vd%c", 'a'+i), uint64(i), uint64(round)<<40))
		}
		for _, l := range loads {
			l.advance(t, traffic)
		}
		m.Kill()
		m = boot(t, o)
		for i, l := range loads {
			<-l.done // its news have all been heard
			least[i] = l.survived(t, m, least[i])
		}
		m.quiet(t)
		if t.Failed() {
			t.Fatalf("after round %d", round)
		}
	}
	m.off(t)
}

// survived checks in a new guest what the load's dead guest had been told, on
// top of what was there before it, and returns what is there now.
func (l *load) survived(t *testing.T, after *machine, before []uint64) []uint64 {
	t.Helper()
	for i := range l.acked {
		if l.durable[i] > l.acked[i] {
			t.Fatalf("block %d: version %d is durable and %d acknowledged: the host has lost count", i, l.durable[i], l.acked[i])
		}
		if before != nil {
			l.acked[i] = max(l.acked[i], before[i])
		}
	}
	var got scenario.Written
	after.ask(t, scenario.Verify, scenario.VerifyWork{Writer: l.Writer, Least: l.acked}, &got)
	if got.Checked != l.Blocks() || l.flushes == 0 {
		t.Errorf("%s: %d of %d blocks checked, %d flushes", l.Device, got.Checked, l.Blocks(), l.flushes)
	}
	// The checker would have seen that a write is missing.
	more := slices.Clone(got.Versions)
	more[len(more)/2]++
	if err := after.Ask(context.Background(), scenario.Verify, scenario.VerifyWork{Writer: l.Writer, Least: more}, nil); err == nil {
		t.Errorf("%s: a version that was never written is not missed", l.Device)
	}
	return got.Versions
}
