package queue

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/block/blocktest"
	"github.com/platter-storage/platter/engine"
	"github.com/platter-storage/platter/internal/race"
	"github.com/platter-storage/platter/internal/rawio"
	"github.com/platter-storage/platter/virtio"
)

// striped is a disk whose areas lie in turn on several others: a request in the
// fast lane may lead to any of their files.
type striped struct {
	info block.Info
	on   []*block.Child
}

func (s *striped) Info() *block.Info { return &s.info }
func (s *striped) of(off int64) *block.Child {
	return s.on[off/(area*512)%int64(len(s.on))]
}

func (s *striped) Preadv(rq *block.Req, off int64, v block.Vec, fl block.Flags) error {
	return s.of(off).Preadv(rq, off, v, fl)
}

func (s *striped) Pwritev(rq *block.Req, off int64, v block.Vec, fl block.Flags) error {
	return s.of(off).Pwritev(rq, off, v, fl)
}

func (s *striped) WriteZeroes(rq *block.Req, off, n int64, fl block.Flags) error {
	return s.of(off).WriteZeroes(rq, off, n, fl)
}
func (s *striped) Discard(rq *block.Req, off, n int64) error { return s.of(off).Discard(rq, off, n) }
func (s *striped) Flush(rq *block.Req) error {
	for _, c := range s.on {
		if err := c.Flush(rq); err != nil {
			return err
		}
	}
	return nil
}

func (s *striped) BlockStatus(_ *block.Req, _, n int64) (block.Extent, error) {
	return block.Extent{Len: n, Data: true, Host: -1}, nil
}
func (s *striped) Truncate(*block.Req, int64, block.Prealloc) error { return block.ErrNotSupported }
func (s *striped) Close() error                                     { return nil }
func (s *striped) Map(rq *block.Req, op block.Op, off int64, v block.Vec, fl block.Flags) (block.Mapping, bool) {
	return s.of(off).Map(rq, op, off, v, fl)
}
func (s *striped) Done(block.Op, uint64, error) {}

// A disk that leads to several files, with engines of several kinds: each
// request reaches the one that it is for.
func TestSeveralFiles(t *testing.T) {
	all := disks(t)
	for name, parts := range map[string][]string{
		"two of a kind":    {"direct,auto", "direct,io_uring"},
		"three kinds":      {"tmpfs", "direct,auto", "direct,native"},
		"with memory":      {"direct,auto", "mem", "tmpfs"},
		"through the leaf": {"directsync", "direct,auto"},
	} {
		t.Run(name, func(t *testing.T) {
			env := newEnv()
			var texts []string
			for _, p := range parts {
				texts = append(texts, all[p])
			}
			c := stripedOver(t, env, texts...)
			g := newGuest(t, guestConfig{size: 128, features: virtio.FeatureEventIdx | virtio.FeatureIndirectDesc})
			m := newModeller(g, 32, 11)
			startOver(t, g, Config{Child: c, Serial: "a serial number", Env: env})
			m.run(1500)
		})
	}
}

// A queue that gets no engine of its own says so, and its requests go through
// the one that the disk's other users share.
func TestNoEngineOfItsOwn(t *testing.T) {
	var log lines
	_, c := disk(t, newEnv(), disks(t)["direct,auto"], false)
	g := newGuest(t, guestConfig{size: 64})
	m := newModeller(g, 16, 12)
	q := startOver(t, g, Config{Child: c, Serial: "a serial number", Log: log.log()})
	whileIdle(t, q, func() {
		if err := q.open(engine.Inline, "as at the start"); err != nil {
			t.Error(err)
		}
		q.leaf, q.file, q.chosen = nil, nil, false
		q.choose(engine.Kind(99))
	})
	m.run(500)
	if s := q.Stats(); s.Shared == 0 {
		t.Errorf("%+v", s)
	}
	if !strings.Contains(log.String(), "no engine of its own") || !strings.Contains(q.Reason(), "there is none of the queue's own") {
		t.Errorf("the log: %s; the reason: %s", log.String(), q.Reason())
	}
}

// stripedOver is a disk striped over others.
func stripedOver(t *testing.T, env *block.Env, parts ...string) *block.Child {
	s := &striped{}
	s.info.WriteFlags, s.info.ZeroFlags = block.FUA, block.MayUnmap
	l := block.ByteLimits()
	for _, p := range parts {
		_, c := disk(t, env, p, false)
		s.on = append(s.on, c)
		l = block.Merge(l, c.Limits())
	}
	s.info.Abilities.Mapper = s
	s.info.SetLimits(l)
	s.info.SetSize(64 << 20)
	return blocktest.Edge(t, blocktest.Attach(t, env, s, "striped"))
}

// A disk whose requests lead now to one file and now to another allocates no
// more than any other, whether or not the queue's own engine reaches them.
func TestB1NoAllocationBetweenLeaves(t *testing.T) {
	n := 3000
	if race.Enabled {
		n = 300
	}
	text := func(cache string) string {
		return "driver=file,cache=" + cache + ",filename=" + onDisk(t, memDir(t), 64<<20)
	}
	for name, caches := range map[string][]string{
		"through leaves": {"writethrough", "writethrough", "writethrough"}, "own engine": {"writeback", "writeback", "writeback"},
		"both": {"writeback", "writethrough", "writeback"},
	} {
		t.Run(name, func(t *testing.T) {
			var parts []string
			for _, c := range caches {
				parts = append(parts, text(c))
			}
			c := stripedOver(t, newEnv(), parts...)
			p := newPump(t, &load{name: name, typ: virtio.BlkIn, n: 4096, parts: 1}, 8)
			startOver(t, p.guest, Config{Child: c})
			p.run(300)
			defer debug.SetGCPercent(debug.SetGCPercent(-1))
			from := mallocs()
			p.run(n)
			if got := mallocs() - from; got > 100 && !race.Enabled {
				t.Errorf("%d allocations for %d requests", got, n)
			}
		})
	}
}

// Where nothing is ever to be durable, a write of a guest that does not flush
// is not made so by the queue's own engine either.
func TestUnsafeIsNeverDurable(t *testing.T) {
	for _, kind := range []string{"io_uring", "native", "threads"} {
		for cache, durable := range map[string]bool{"unsafe": false, "writeback": true, "none": true} {
			if kind == "native" && cache != "none" {
				continue
			}
			t.Run(kind+"/"+cache, func(t *testing.T) {
				_, c := disk(t, newEnv(), "driver=file,aio="+kind+",cache="+cache+",filename="+onDisk(t, ".", 1<<20), false)
				g := newGuest(t, guestConfig{size: 32})
				q := start(t, g, Config{Child: c})
				q.SetWriteback(false)
				if st, _ := g.one(uint32(virtio.BlkOut), 8, 4096, 1, true); st != virtio.BlkOK {
					t.Fatalf("status %d", st)
				}
				whileIdle(t, q, func() {
					io := &q.table.refs[0].io
					if q.file == nil || io.Kind != rawio.Write || io.Sync != durable {
						t.Errorf("own engine %v, kind %v, durable %v; want it durable: %v", q.file != nil, io.Kind, io.Sync, durable)
					}
				})
			})
		}
	}
}

// stubborn is an engine that does not close cleanly.
type stubborn struct{ engine.Queue }

func (s stubborn) Close() error { return errors.Join(s.Queue.Close(), syscall.EBUSY) }

// An engine that closes badly is not the fault of the one in its place.
func TestFormerEngineClosesBadly(t *testing.T) {
	var log lines
	_, c := disk(t, newEnv(), disks(t)["direct,auto"], false)
	q := startDetached(t, Config{Child: c, Log: log.log()})
	whileIdle(t, q, func() {
		q.wakeMu.Lock()
		q.eng = stubborn{q.eng}
		q.wakeMu.Unlock()
		if err := q.open(engine.Inline, "another one"); err != nil {
			t.Error(err)
		}
	})
	if !strings.Contains(log.String(), "has not closed cleanly") || strings.Contains(log.String(), "no engine of its own") || !strings.Contains(q.Reason(), "another one") {
		t.Errorf("the log: %s; the reason: %s", log.String(), q.Reason())
	}
}

// A queue that looks at a disk which is smaller than one block of its own keeps
// nothing of it.
func TestTinyDiskLeavesNothingMapped(t *testing.T) {
	n := &sick{}
	l := block.ByteLimits()
	l.ReadAlign, l.WriteAlign = 4096, 4096
	n.info.SetLimits(l)
	n.info.SetSize(512)
	q := startDetached(t, Config{Child: blocktest.Edge(t, blocktest.Attach(t, newEnv(), n, "tiny"))})
	const looks = 1 << 12 // 256 MiB would be left: more than the runtime's threads map
	whileIdle(t, q, func() {
		var grown int64
		for range 5 { // what is left, is left each time; what the runtime maps is not
			before := addressSpace(t)
			for range looks {
				q.meetStorage()
			}
			if grown = addressSpace(t) - before; grown <= looks*block.MaxAlign/4*3 {
				return
			}
		}
		t.Errorf("%d looks at the disk took %d bytes of address space, and not for the first time", looks, grown)
	})
}

// addressSpace is how many bytes this process has mapped outside Go's heap,
// which reserves what it likes.
func addressSpace(t *testing.T) (n int64) {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscan(string(b), &n); err != nil {
		t.Fatal(err)
	}
	return n*int64(os.Getpagesize()) - int64(m.Sys)
}
