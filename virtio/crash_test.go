package virtio

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
)

// A crashed is thrown out of a ring where a test lets it crash.
type crashed struct{ at Step }

// A story is a fixed run of requests through a ring with records, which can be
// cut off at any step of the device and told on by a successor.
type story struct {
	*guest
	records []byte
	inflight
	variant variant

	left int // steps before the crash; negative: none

	added    int            // requests offered so far
	out      map[uint16]int // number of a request by its identity
	executed map[int]int    // how often each was given out
	answered map[int]int    // how often each came back
	crashes  int
	held     []Chain // what the device works on
	steps    [numSteps]int
}

// inflight is what the record is of.
type inflight struct {
	features uint64
	size     uint16
	recSize  uint16
}

// variant is how the world around the device goes on.
type variant struct {
	batch     int  // chains pushed before they are published together
	then      int  // the same for successors
	reverse   bool // given back latest first
	driver    bool // the driver goes on while the device is dead
	requests  int
	indirects bool
}

func (v variant) String() string {
	return fmt.Sprintf("batch=%d,then=%d,reverse=%v,driver=%v", v.batch, v.then, v.reverse, v.driver)
}

// newStory begins one in memory that others were told in.
func newStory(t *testing.T, mem []byte, f inflight, v variant) *story {
	clear(mem[:3*4096])
	clear(mem[guestTables:][:4096])
	clear(mem[guestData:][:4096])
	g := &guest{mem: mem, tables: 16}
	g.attach(f.size, f.features)
	s := &story{guest: g, inflight: f, variant: v, out: map[uint16]int{}, executed: map[int]int{}, answered: map[int]int{}}
	s.records = make([]byte, InflightSize(f.recSize, s.l.packed()))
	var err error
	if s.driver, err = NewDriver(s.l, s.t); err != nil {
		t.Fatal(err)
	}
	return s
}

// device starts one, the first or a successor, on what memory has.
func (s *story) device(t *testing.T) {
	f, err := NewInflight(s.records, s.recSize, s.l.packed())
	if err != nil {
		t.Fatal(err)
	}
	s.ring, err = NewRing(s.l, s.m, Options{Base: StartBase(s.features), Inflight: f, Crash: func(at Step) {
		s.steps[at]++
		if s.left--; s.left == -1 {
			panic(crashed{at})
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	s.held = nil
}

// until runs f and tells whether it was cut off.
func until(f func()) (cut bool) {
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(crashed); !ok {
				panic(r)
			}
			cut = true
		}
	}()
	f()
	return false
}

// tell runs the story, with crashes after so many steps of the first device,
// the second and so on. It answers how many steps the last device made.
func (s *story) tell(t *testing.T, crashes ...int) int {
	const never = 1 << 30
	for _, n := range append(slices.Clone(crashes), never) {
		s.left = n
		if !until(func() { s.run(t) }) {
			steps := n - s.left
			s.check(t)
			return steps
		}
		s.crashes++
		if s.variant.driver {
			s.reap(t)
			s.offer(t, 3)
		}
	}
	t.Fatal("the story ended before its end")
	return 0
}

func (s *story) run(t *testing.T) {
	s.device(t)
	for round := 0; len(s.answered) < s.variant.requests; round++ {
		if round > 10*s.variant.requests {
			t.Fatalf("%d of %d requests were answered, and no more are", len(s.answered), s.variant.requests)
		}
		s.offer(t, 2)
		s.pop(t, 3)
		n := min(s.variant.batch, len(s.held))
		if s.crashes > 0 {
			n = min(s.variant.then, len(s.held))
		}
		if round%2 == 0 || s.added == s.variant.requests {
			s.finish(n)
		}
		s.reap(t)
	}
}

// offer adds up to n requests and kicks.
func (s *story) offer(t *testing.T, n int) {
	for ; n > 0 && s.added < s.variant.requests; n-- {
		gpa := uint64(guestBase + guestData + s.added*256)
		binary.LittleEndian.PutUint64(s.at(gpa), uint64(s.added))
		out, in := segs(gpa, 4, 4), segs(gpa+8, 1)
		id, ok := s.driver.Add(out, in, s.variant.indirects && s.added%3 == 0)
		if !ok {
			break
		}
		s.out[id] = s.added
		s.added++
	}
	s.driver.Kick()
}

// pop takes up to n chains, and checks that each is one that is out, was not
// answered, and comes in its turn.
func (s *story) pop(t *testing.T, n int) {
	for ; n > 0; n-- {
		c := Chain{}
		ok, err := s.ring.Pop(&c)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return
		}
		seq, isOut := s.out[c.Head]
		if !isOut {
			t.Fatalf("%d was given out and is with the driver", c.Head)
		}
		if got := binary.LittleEndian.Uint64(content(c.Out)); got != uint64(seq) || c.InBytes != 1 {
			t.Fatalf("request %d was given out as %d, %d bytes to write", seq, got, c.InBytes)
		}
		if k := len(s.held); k > 0 && s.out[s.held[k-1].Head] >= seq {
			t.Fatalf("request %d was given out after %d", seq, s.out[s.held[k-1].Head])
		}
		if s.executed[seq]++; s.executed[seq] > 1+s.crashes {
			t.Fatalf("request %d was given out %d times in %d crashes", seq, s.executed[seq], s.crashes)
		}
		s.held = append(s.held, c)
	}
}

// finish gives n of the held chains back at once.
func (s *story) finish(n int) {
	if s.variant.reverse {
		slices.Reverse(s.held)
	}
	batch := slices.Clone(s.held[:n])
	s.held = s.held[n:]
	if s.variant.reverse {
		slices.Reverse(s.held)
	}
	for _, c := range batch {
		s.ring.Push(c.Handle, 1)
	}
	s.ring.Publish()
}

// reap takes back what the driver finds.
func (s *story) reap(t *testing.T) {
	for {
		id, _, ok, err := s.driver.Next()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return
		}
		seq, isOut := s.out[id]
		if !isOut {
			t.Fatalf("%d came back twice", id)
		}
		delete(s.out, id)
		s.answered[seq]++
	}
}

// check is for the end: each request answered once, nothing left anywhere.
func (s *story) check(t *testing.T) {
	for seq := range s.variant.requests {
		if s.answered[seq] != 1 || s.executed[seq] < 1 {
			t.Fatalf("request %d was given out %d times and answered %d times", seq, s.executed[seq], s.answered[seq])
		}
	}
	if s.ring.Out() != 0 || s.driver.Out() != 0 || s.driver.Free() != int(s.size) {
		t.Fatalf("%d chains with the device, %d with the driver, %d descriptors free", s.ring.Out(), s.driver.Out(), s.driver.Free())
	}
	base := s.ring.Base()
	s.left = 1 << 30
	s.device(t)
	if s.ring.Out() != 0 || s.ring.Base() != base {
		t.Fatalf("after the end %d chains are out, and the base %#x is %#x", s.ring.Out(), base, s.ring.Base())
	}
}

// TestCrash cuts the device off at every step, and its successor at every step,
// and looks that no request is lost, none is answered twice, and none is given
// out again once it was answered.
func TestCrash(t *testing.T) {
	eachKind(t, func(t *testing.T, features uint64) {
		if features&(FeatureEventIdx|FeatureInOrder) == FeatureEventIdx {
			return // notifications are no part of the records
		}
		f := inflight{features: features, size: 8, recSize: 8}
		if features&FeatureRingPacked != 0 {
			f.size, f.recSize = 11, 16
		}
		for _, v := range []variant{
			{batch: 1, then: 3, requests: 9},
			{batch: 3, then: 1, requests: 9, indirects: true},
			{batch: 3, then: 3, requests: 9, reverse: true, driver: true, indirects: true},
			{batch: 4, then: 2, requests: 9, driver: true},
		} {
			t.Run(v.String(), func(t *testing.T) {
				mem := make([]byte, guestSize)
				whole := newStory(t, mem, f, v)
				steps := whole.tell(t)
				for at, n := range whole.steps[:StepRecovering] {
					if n == 0 {
						t.Errorf("step %d never comes", at)
					}
				}
				pairs, recovering := 0, 0
				for i := range steps {
					again := newStory(t, mem, f, v)
					more := again.tell(t, i)
					recovering += again.steps[StepRecovering]
					for j := range more {
						newStory(t, mem, f, v).tell(t, i, j)
						pairs++
					}
				}
				if recovering == 0 {
					t.Error("no successor ever had anything to put right")
				}
				t.Logf("%d steps, %d pairs of crashes", steps, pairs)
			})
		}
	})
}
