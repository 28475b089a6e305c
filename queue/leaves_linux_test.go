package queue

import (
	"strings"
	"testing"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/block/blocktest"
	"github.com/platter-storage/platter/engine"
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
			s := &striped{}
			s.info.WriteFlags, s.info.ZeroFlags = block.FUA, block.MayUnmap
			l := block.ByteLimits()
			for _, p := range parts {
				_, c := disk(t, env, all[p], false)
				s.on = append(s.on, c)
				l = block.Merge(l, c.Limits())
			}
			s.info.Abilities.Mapper = s
			s.info.SetLimits(l)
			s.info.SetSize(64 << 20)
			c := blocktest.Edge(t, blocktest.Attach(t, env, s, "striped"))
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
