package block_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/platter-storage/platter/block"
	bt "github.com/platter-storage/platter/block/blocktest"
	"github.com/platter-storage/platter/internal/race"
)

// lineStore is emulated storage with a cost, and a Lineariser in front of it.
type lineStore struct {
	*bt.Client
	cost *bt.Cost
	line *block.Lineariser
	log  *strings.Builder
	mem  []byte
}

const lineStoreSize = 2 << 20

// openLine opens such storage; line nil means none.
func openLine(t testing.TB, cost *bt.Cost, cfg *block.LineariseConfig, fast bool) *lineStore {
	t.Helper()
	s := &lineStore{cost: cost, log: new(strings.Builder), mem: bt.Memory(t, 4<<20)}
	env := bt.NewEnv(t)
	env.Now = cost.Now
	e := bt.NewEmulator(t, bt.EmulatorConfig{Size: lineStoreSize, Fast: fast})
	e.KeepCalls(false)
	e.SetCost(cost)
	if cfg != nil {
		cfg.Name, cfg.Log = "disk", slog.New(slog.NewTextHandler(s.log, nil))
		s.line = block.NewLineariser(*cfg)
		e.Info().Linearise = s.line
	}
	s.Client = bt.NewClient(t, bt.Edge(t, bt.Attach(t, env, e, "disk")))
	return s
}

// scattered is n elements of size bytes, none of which touches the next, each
// off bytes past the beginning of a page.
func (s *lineStore) scattered(n, size, off int) block.Vec {
	v, step := make(block.Vec, n), (size+off+4095)&^4095+4096
	for i := range v {
		at := i*step + off
		v[i] = s.mem[at : at+size : at+size]
	}
	return v
}

// run issues n requests of v in a closed loop of threads.
func (s *lineStore) run(t testing.TB, threads, n int, op block.Op, v block.Vec) int64 {
	t.Helper()
	slots := lineStoreSize / v.Len()
	return s.cost.Run(threads, n, func(_, i int) { s.one(t, op, int64(i)%slots*v.Len(), v) })
}

func (s *lineStore) one(t testing.TB, op block.Op, off int64, v block.Vec) {
	t.Helper()
	s.cost.Issue(v)
	var err error
	if op == block.OpWrite {
		err = s.Write(off, 0, v...)
	} else {
		err = s.Read(off, v...)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (s *lineStore) linearised() uint64 { return took(s.Client, block.PathLinearised) }

// nfs is a server 200 µs away over 1 Gbit/s.
func nfs(each bool) *bt.Cost {
	return &bt.Cost{RequestNs: 200_000, LinkBytesPerSecond: 125e6, CopyBytesPerSecond: 10e9, Slots: 16, MaxRequest: 1 << 20, EachElement: each, Commit: true}
}

// One request for each element: after at most 200 requests all go through one
// buffer, each as many requests as its bytes need, in at most 5 % more time
// than if that had been asked for.
func TestC1SplitRequestsAreLinearised(t *testing.T) {
	for _, wsize := range []int64{64 << 10, 1 << 20} {
		took := map[block.LineariseMode]int64{}
		for _, mode := range []block.LineariseMode{block.LineariseAuto, block.LineariseAlways} {
			cost := nfs(true)
			cost.MaxRequest, cost.Slots = wsize, 4
			s := openLine(t, cost, &block.LineariseConfig{Mode: mode}, false)
			v := s.scattered(64, 4096, 0)
			s.run(t, 1, 200, block.OpWrite, v)
			before, requests := s.linearised(), cost.Requests
			s.run(t, 1, 50, block.OpWrite, v)
			linear := int64(s.linearised() - before)
			if linear < 49 { // one may be a trial
				t.Errorf("mode %d, wsize %d: %d of 50 requests linear after 200", mode, wsize, linear)
			}
			want := linear*max((256<<10)/wsize, 1) + 64*(50-linear)
			if got := cost.Requests - requests; got != want {
				t.Errorf("mode %d, wsize %d: %d requests for 50 × 256 KiB, want %d", mode, wsize, got, want)
			}
			took[mode] = s.run(t, 1, 2000, block.OpWrite, v)
		}
		if a, b := took[block.LineariseAuto], took[block.LineariseAlways]; float64(a)*0.95 > float64(b) {
			t.Errorf("wsize %d: auto took %d ns, always %d", wsize, a, b)
		}
	}
}

// Where pages join nothing is gained: requests stay as they are but for trials,
// which become fewer.
func TestC2JoinedPagesStay(t *testing.T) {
	for _, predicted := range []int64{0, 1 << 20} {
		s := openLine(t, nfs(false), &block.LineariseConfig{MaxRead: predicted, MaxWrite: predicted}, false)
		v := s.scattered(64, 4096, 0)
		warm := uint64(32)
		if predicted > 0 {
			warm = 1
		}
		s.run(t, 1, 2000, block.OpWrite, v)
		first := s.linearised()
		if first > 2000/64+warm {
			t.Errorf("predicted %d: %d of 2000 requests were copied", predicted, first)
		}
		s.run(t, 1, 2000, block.OpWrite, v)
		if second := s.linearised() - first; second >= first || second > 2000/256 {
			t.Errorf("predicted %d: %d copied in the first 2000 requests, %d in the next", predicted, first, second)
		}
	}
}

// Elements off pages do not join, and are linearised; the prediction is what
// the emulated client counts, for any vector.
func TestC3Prediction(t *testing.T) {
	s := openLine(t, nfs(false), &block.LineariseConfig{MaxRead: 1 << 20, MaxWrite: 1 << 20}, false)
	s.one(t, block.OpWrite, 0, s.scattered(8, 32<<10, 512))
	s.one(t, block.OpRead, 0, s.scattered(64, 4096, 512))
	if s.linearised() != 2 || s.cost.Requests != 2 {
		t.Errorf("%d of the first 2 requests linear, %d reached the server", s.linearised(), s.cost.Requests)
	}
	rnd := rand.New(rand.NewPCG(1, 3))
	rounds := 100_000
	if race.Enabled {
		rounds = 10_000
	}
	for i := range rounds {
		s.cost.MaxRequest = 4096 << rnd.IntN(9)
		v := randomVec(rnd, s.mem)
		if got, want := block.PageJoinedRequests(v, s.cost.MaxRequest), int64(len(s.cost.Parts(v))); got != want {
			t.Fatalf("vector %d, at most %d bytes: %d predicted, %d made: %s", i, s.cost.MaxRequest, got, want, vecText(v))
		}
	}
}

// randomVec has elements of every alignment, some of which touch.
func randomVec(rnd *rand.Rand, mem []byte) block.Vec {
	var v block.Vec
	at := rnd.IntN(4) * 512
	for range 1 + rnd.IntN(24) {
		n := (1 + rnd.IntN(16)) * 512
		if rnd.IntN(2) == 0 {
			n = (1 + rnd.IntN(8)) * 4096
		}
		if rnd.IntN(8) == 0 {
			n = 0
		}
		v = append(v, mem[at:at+n:at+n])
		switch at += n; rnd.IntN(4) {
		case 0: // touches
		case 1:
			at += 512 * rnd.IntN(9)
		default:
			at = (at+4095)&^4095 + 4096*rnd.IntN(2)
		}
	}
	return v
}

func vecText(v block.Vec) string {
	var b strings.Builder
	for _, e := range v {
		fmt.Fprintf(&b, "%#x+%d ", bt.Address(e)&0xfffff, len(e))
	}
	return b.String()
}

// What is one piece of memory is never copied, however it is cut; nor is
// anything where the node has no Lineariser.
func TestC4JoinedFirst(t *testing.T) {
	s := openLine(t, nfs(true), &block.LineariseConfig{Mode: block.LineariseAlways}, false)
	s.one(t, block.OpWrite, 0, block.Vec{s.mem[:65536]})
	s.one(t, block.OpWrite, 0, block.Vec{s.mem[:4096], nil, s.mem[4096:8192], s.mem[8192:65536]})
	s.one(t, block.OpRead, 0, block.Vec{s.mem[512:1024], s.mem[1024:65536]})
	if st := s.Queue.Stats(); s.linearised() != 0 || st.NodeSegments != 3 || s.cost.Requests != 3 {
		t.Errorf("%d copied; 3 requests had %d segments at the node, %d at the server", s.linearised(), st.NodeSegments, s.cost.Requests)
	}
	s.one(t, block.OpRead, 0, s.scattered(2, 4096, 0))
	if s.linearised() != 1 {
		t.Error("always did not copy two pieces that do not touch")
	}
	bare := openLine(t, nfs(true), nil, false)
	bare.run(t, 1, 100, block.OpWrite, bare.scattered(64, 4096, 512))
	if bare.linearised() != 0 {
		t.Errorf("%d copied where no node asks for it", bare.linearised())
	}
}

// Reads and writes are decided apart, and sizes too.
func TestC6DirectionsAreApart(t *testing.T) {
	cost := nfs(true)
	s := openLine(t, cost, &block.LineariseConfig{}, false)
	small, large := s.scattered(2, 4096, 0), s.scattered(64, 4096, 0)
	cost.RequestNs, cost.LinkBytesPerSecond, cost.Slots, cost.Commit = 1000, 0, 1, true
	// A copy of 8 KiB costs 8 µs here: more than the request that it saves,
	// less than the two of a split write.
	cost.CopyBytesPerSecond = 8192 / 1.5e-6
	s.run(t, 1, 300, block.OpRead, small)
	s.run(t, 1, 300, block.OpWrite, small)
	s.run(t, 1, 300, block.OpRead, large)
	got := map[string]bool{}
	for _, x := range s.line.Classes() {
		got[fmt.Sprintf("%s %d", x.Op, x.MaxLen)] = x.Linear
	}
	want := map[string]bool{"read 8192": false, "write 8192": true, "read 262144": true}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("decisions %v, want %v", got, want)
	}
}

// The server becomes ten times faster and slower: decisions follow within 1000
// requests, with one change each time, and the log tells of both with the costs.
func TestC8DecisionsFollow(t *testing.T) {
	cost := &bt.Cost{RequestNs: 20_000, CopyBytesPerSecond: 1e9, Slots: 1, MaxRequest: 1 << 20, EachElement: true}
	s := openLine(t, cost, &block.LineariseConfig{}, false)
	v := s.scattered(2, 4096, 0)
	decision := func() block.LineariseClass {
		x := s.line.Classes()
		if len(x) != 1 {
			t.Fatalf("%d classes of one kind of request", len(x))
		}
		return x[0]
	}
	s.run(t, 1, 2000, block.OpRead, v)
	if x := decision(); !x.Linear || x.Flips != 0 {
		t.Fatalf("at first: %s", x)
	}
	for i, step := range []struct {
		ns     int64
		linear bool
	}{{2000, false}, {20_000, true}, {200_000, true}, {20_000, true}, {2000, false}} {
		cost.RequestNs = step.ns
		before := decision().Flips
		s.run(t, 1, 1000, block.OpRead, v)
		if x := decision(); x.Linear != step.linear || x.Flips > before+2 {
			t.Errorf("step %d, %d ns: %s", i, step.ns, x)
		}
	}
	if n := strings.Count(s.log.String(), "linearise: changed"); n != int(decision().Flips) || n == 0 {
		t.Errorf("%d changes in the log, %d counted:\n%s", n, decision().Flips, s.log)
	}
	if !strings.Contains(s.log.String(), "4 KiB cost") {
		t.Errorf("the log has no costs:\n%s", s.log)
	}
}

// A linear write that fits one request makes one, and no commit.
func TestC10LinearWritesNeedNoCommit(t *testing.T) {
	s := openLine(t, nfs(true), &block.LineariseConfig{Mode: block.LineariseAlways}, false)
	s.run(t, 1, 10, block.OpWrite, s.scattered(64, 4096, 512))
	if s.cost.Requests != 10 || s.cost.Commits != 0 {
		t.Errorf("always: 10 writes took %d requests and %d commits", s.cost.Requests, s.cost.Commits)
	}
	s = openLine(t, nfs(true), &block.LineariseConfig{Mode: block.LineariseNever}, false)
	s.run(t, 1, 10, block.OpWrite, s.scattered(64, 4096, 512))
	if s.cost.Requests != 640 || s.cost.Commits != 10 {
		t.Errorf("never: 10 writes took %d requests and %d commits", s.cost.Requests, s.cost.Commits)
	}
}

// After a change of the mount everything is learnt anew, from the new sizes.
func TestC11ResetForgets(t *testing.T) {
	s := openLine(t, nfs(false), &block.LineariseConfig{MaxRead: 1 << 20, MaxWrite: 1 << 20}, false)
	v := s.scattered(8, 32<<10, 512)
	s.run(t, 1, 100, block.OpWrite, v)
	if x := s.line.Classes(); len(x) != 1 || !x[0].Linear {
		t.Fatalf("before: %v", x)
	}
	s.line.Reset(4096, 4096) // as many requests either way
	if x := s.line.Classes(); len(x) != 0 {
		t.Errorf("still known: %v", x)
	}
	s.run(t, 1, 1, block.OpWrite, v)
	if x := s.line.Classes(); len(x) != 1 || x[0].Linear || x[0].AsIsSamples != 1 {
		t.Errorf("after: %v", x)
	}
}

// The fast lane takes what goes as it is, declines what is to be copied, and
// what it decided holds for the blocking methods: nothing is decided twice.
func TestFastLaneDeclinesLinear(t *testing.T) {
	for mode, taken := range map[block.LineariseMode]bool{block.LineariseNever: true, block.LineariseAlways: false} {
		s := openLine(t, nfs(true), &block.LineariseConfig{Mode: mode}, true)
		v := s.scattered(4, 4096, 0)
		rq := s.Queue.Begin()
		_, ok := s.Child.Map(rq, block.OpRead, 0, v, 0)
		if ok != taken {
			t.Errorf("mode %d: mapped %v", mode, ok)
		}
		if ok {
			if err, _ := s.Child.Finish(rq, v.Len(), v.Len(), nil); err != nil {
				t.Error(err)
			}
		}
		s.Queue.End(rq, block.OpRead, v.Len(), nil)
		s.cost.Run(1, 1, func(int, int) {
			if err := mapOrRead(s.Client, v); err != nil {
				t.Error(err)
			}
		})
		if got := s.linearised() == 1; got == taken {
			t.Errorf("mode %d: linearised %v", mode, got)
		}
	}
	s := openLine(t, nfs(true), &block.LineariseConfig{}, true)
	v := s.scattered(4, 4096, 0)
	s.cost.Run(1, 400, func(_, _ int) {
		if err := mapOrRead(s.Client, v); err != nil {
			t.Error(err)
		}
	})
	x := s.line.Classes()
	if len(x) != 1 || int(x[0].AsIsSamples+x[0].CopiedSamples) != 400 {
		t.Errorf("400 requests, learnt from: %v", x)
	}
}

// mapOrRead reads through the fast lane, or as it declines by Preadv.
func mapOrRead(c *bt.Client, v block.Vec) (err error) {
	rq := c.Queue.Begin()
	if _, ok := c.Child.Map(rq, block.OpRead, 0, v, 0); ok {
		err, _ = c.Child.Finish(rq, v.Len(), v.Len(), nil)
	} else {
		err = c.Child.Preadv(rq, 0, v, 0)
	}
	c.Queue.End(rq, block.OpRead, v.Len(), err)
	return err
}

// Content is the same in every mode, for vectors of all kinds.
func TestLinearisedContent(t *testing.T) {
	for _, mode := range []block.LineariseMode{block.LineariseAuto, block.LineariseAlways, block.LineariseNever} {
		s := openLine(t, nfs(true), &block.LineariseConfig{Mode: mode}, false)
		rnd := rand.New(rand.NewPCG(5, 6))
		back := bt.Memory(t, lineStoreSize)
		s.cost.Run(1, 150, func(_, i int) {
			v := randomVec(rnd, s.mem)
			n := v.Len()
			if n == 0 || n > lineStoreSize {
				return
			}
			want := make([]byte, n)
			bt.Pattern(want, uint64(i))
			v.CopyIn(want, 0)
			s.one(t, block.OpWrite, 0, v)
			v.Zero(0, n)
			s.one(t, block.OpRead, 0, v)
			if err := s.Read(0, back[:n]); err != nil || !bytes.Equal(back[:n], want) {
				t.Fatalf("mode %d: another content was stored (%v)", mode, err)
			}
			got := make([]byte, n)
			if v.CopyOut(got, 0); !bytes.Equal(got, want) {
				t.Fatalf("mode %d: another content was read", mode)
			}
		})
	}
}

// A decision costs no memory.
func TestLineariseAllocatesNothing(t *testing.T) {
	for _, mode := range []block.LineariseMode{block.LineariseAuto, block.LineariseAlways} {
		n := &sink{}
		n.info.SetLimits(block.ByteLimits())
		n.info.SetSize(1 << 20)
		n.info.Linearise = block.NewLineariser(block.LineariseConfig{Mode: mode})
		c := bt.NewClient(t, bt.Edge(t, bt.Attach(t, bt.NewEnv(t), n, "sink")))
		s := lineStore{mem: bt.Memory(t, 4<<20)}
		v := s.scattered(64, 4096, 512)
		v = append(v, v[63][4096:4096:4096], s.mem[:512], s.mem[512:1024])
		if allocs := testing.AllocsPerRun(1000, func() {
			rq := c.Queue.Begin()
			err := c.Child.Pwritev(rq, 0, v, 0)
			c.Queue.End(rq, block.OpWrite, v.Len(), err)
		}); allocs != 0 {
			t.Errorf("mode %d: %v allocations", mode, allocs)
		}
	}
}

// Where pieces are known to stay together requests go as they are, but for few
// trials, though a copy may look a little better; one that is much better wins
// all the same.
func TestWholeStorageKeepsToWhatIsKnown(t *testing.T) {
	for _, c := range []struct {
		pieces int // requests that the server gets for one that is not copied
		linear bool
	}{{1, false}, {8, true}} {
		cost := nfs(c.pieces > 1)
		cost.Slots = 1
		s := openLine(t, cost, &block.LineariseConfig{Whole: true}, false)
		v := s.scattered(8, 4096, 0)
		s.run(t, 1, 1000, block.OpRead, v)
		if n := s.linearised(); n > 1 {
			t.Errorf("%d pieces: %d of the first 1000 requests were copied", c.pieces, n)
		}
		s.run(t, 1, 20000, block.OpRead, v)
		before := s.linearised()
		s.run(t, 1, 2000, block.OpRead, v)
		if n := s.linearised() - before; c.linear && n < 1900 || !c.linear && n > 10 {
			t.Errorf("%d pieces: %d of 2000 requests were copied", c.pieces, n)
		}
	}
}
