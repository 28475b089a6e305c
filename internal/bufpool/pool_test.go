package bufpool

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/platter-storage/platter/internal/sys"
)

func newPool(t testing.TB, cfg Config) *Pool {
	p := New(cfg)
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// Every buffer of every size is aligned, also with pages of 64 KiB.
func TestAlignment(t *testing.T) {
	for _, align := range []int{0, 512, 4096, 16384, 65536, 1 << 20} {
		p := newPool(t, Config{Limit: 16 << 20, Align: align})
		want := max(align, MinBuf, sys.PageSize())
		if p.Align() != want {
			t.Errorf("align %d: pool says %d, want %d", align, p.Align(), want)
		}
		for _, n := range []int{0, 1, 511, 512, 4095, 4096, 4097, 16384, 16385, 65536, 65537, 262144, 262145, MaxBuf - 1, MaxBuf} {
			a, b := p.GetWait(n), p.GetWait(n)
			for _, buf := range [][]byte{a, b} {
				if len(buf) != n || cap(buf) < n || sys.Addr(buf)%uintptr(want) != 0 {
					t.Errorf("align %d size %d: len %d cap %d address %#x", align, n, len(buf), cap(buf), sys.Addr(buf))
				}
			}
			if c := cap(a); c < want || (c != 4096 && c != 16384 && c != 65536 && c != 262144 && c != MaxBuf) {
				t.Errorf("align %d size %d: capacity %d is no class", align, n, c)
			}
			p.Put(a)
			p.Put(b[:0])
		}
	}
}

func mustPanic(t *testing.T, what string, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s: no panic", what)
		}
	}()
	f()
}

func TestMistakesPanic(t *testing.T) {
	p, other := newPool(t, Config{}), newPool(t, Config{})
	var w Waiter
	mustPanic(t, "one past MaxBuf", func() { p.Get(&w, MaxBuf+1) })
	mustPanic(t, "negative size", func() { p.Get(&w, -1) })
	b, foreign := p.GetWait(5000), other.GetWait(5000)
	mustPanic(t, "foreign buffer", func() { p.Put(foreign) })
	mustPanic(t, "heap buffer", func() { p.Put(make([]byte, 4096)) })
	mustPanic(t, "nil buffer", func() { p.Put(nil) })
	mustPanic(t, "inside of a buffer", func() { p.Put(b[1:]) })
	mustPanic(t, "later unit of a buffer", func() { p.Put(b[:cap(b)][4096:]) })
	mustPanic(t, "close with a buffer out", func() { p.Close() })
	p.Put(b)
	mustPanic(t, "second Put", func() { p.Put(b) })
	other.Put(foreign)
	mustPanic(t, "alignment that is no power of two", func() { New(Config{Align: 12288}) })
	mustPanic(t, "alignment one past", func() { New(Config{Align: 2 << 20}) })
	mustPanic(t, "limit one past", func() { New(Config{Limit: MaxLimit + MaxBuf}) })
}

func TestLimitIsRoundedAndKept(t *testing.T) {
	for _, c := range []struct{ limit, want int64 }{{0, DefaultLimit}, {1, MaxBuf}, {MaxBuf, MaxBuf}, {5<<20 + 17, 5 << 20}} {
		p := newPool(t, Config{Limit: c.limit})
		var bufs [][]byte
		w := Waiter{Ready: func(*Waiter) {}}
		for p.Get(&w, MinBuf) {
			bufs = append(bufs, w.Buf)
		}
		if got := int64(len(bufs)) * int64(cap(bufs[0])); got != c.want || p.Stats().InUse != got || p.Stats().Peak != got {
			t.Errorf("limit %d: %d bytes handed out, want %d; %+v", c.limit, got, c.want, p.Stats())
		}
		if !p.Cancel(&w) || p.Cancel(&w) {
			t.Error("cancel of a queued waiter must work once")
		}
		for _, b := range bufs {
			p.Put(b)
		}
		// All of it joins again.
		p.Put(p.GetWait(MaxBuf))
		if s := p.Stats(); s.InUse != 0 || s.Waits != 1 {
			t.Errorf("%+v", s)
		}
	}
}

// 64 requests of the largest size with one such buffer: all complete, in order.
func TestOneBufferForMany(t *testing.T) {
	p := newPool(t, Config{Limit: MaxBuf})
	var order []int
	var ready []*Waiter
	ws := make([]Waiter, 64)
	for i := range ws {
		ws[i].Ready = func(w *Waiter) { order = append(order, i); ready = append(ready, w) }
		if p.Get(&ws[i], MaxBuf) {
			order, ready = append(order, i), append(ready, &ws[i])
		}
	}
	for len(ready) > 0 {
		w := ready[0]
		ready = ready[1:]
		p.Put(w.Buf)
	}
	for i := range ws {
		if i >= len(order) || order[i] != i {
			t.Fatalf("order %v", order)
		}
	}
	if s := p.Stats(); s.Waits != 63 || s.Peak != MaxBuf || s.InUse != 0 || s.Waiting != 0 {
		t.Errorf("%+v", s)
	}
}

// A large request at the head holds back small ones until it has been served,
// and its cancellation lets them through.
func TestLargeIsNotStarved(t *testing.T) {
	p := newPool(t, Config{Limit: MaxBuf})
	small := p.GetWait(1)
	var got []string
	wait := func(name string) *Waiter { return &Waiter{Ready: func(*Waiter) { got = append(got, name) }} }
	large, late, later := wait("large"), wait("late"), wait("later")
	if p.Get(large, MaxBuf) || p.Get(late, 1) || p.Get(later, 1) {
		t.Fatal("granted past the head of the queue")
	}
	p.Put(small)
	if fmt.Sprint(got) != "[large]" {
		t.Fatalf("granted %v, want the large one alone", got)
	}
	p.Put(large.Buf)
	if fmt.Sprint(got) != "[large late later]" {
		t.Fatalf("granted %v", got)
	}
	if p.Get(large, MaxBuf) || p.Get(wait("never"), MaxBuf) {
		t.Fatal("granted what is not there")
	}
	fourth := wait("fourth")
	if p.Get(fourth, 1) {
		t.Fatal("granted past the head of the queue")
	}
	if !p.Cancel(large) {
		t.Fatal("large was not queued")
	}
	p.Put(late.Buf)
	p.Put(later.Buf) // "never" gets it all
	if fmt.Sprint(got) != "[large late later never]" || p.Cancel(large) {
		t.Fatalf("granted %v", got)
	}
	if !p.Cancel(fourth) {
		t.Fatal("fourth was not queued")
	}
	p.Put(p.mem[:0]) // the one buffer, which "never" has
}

func TestCancelServesThoseBehind(t *testing.T) {
	p := newPool(t, Config{Limit: MaxBuf})
	held := p.GetWait(1)
	n := 0
	large, small := &Waiter{Ready: func(*Waiter) {}}, &Waiter{Ready: func(*Waiter) { n++ }}
	p.Get(large, MaxBuf)
	p.Get(small, 1)
	mustPanic(t, "Get with a queued waiter", func() { p.Get(large, 1) })
	if n != 0 || !p.Cancel(large) || n != 1 {
		t.Fatalf("small was granted %d times", n)
	}
	p.Put(held)
	p.Put(small.Buf)
}

// Random gets and puts against a model: buffers never overlap, the limit
// holds, and what a buffer was filled with stays until its owner puts it.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := int64(rapid.IntRange(1, 6).Draw(t, "MiB")) << 20
		m := &poolModel{t: t, p: New(Config{Limit: limit, Align: rapid.SampledFrom([]int{4096, 65536}).Draw(t, "align")})}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			switch k := rapid.IntRange(0, 9).Draw(t, "op"); {
			case k < 5:
				m.get(rapid.SampledFrom([]int{1, 4096, 5000, 20000, 65536, 100000, 262144, MaxBuf}).Draw(t, "n"))
			case k < 9 && len(m.out) > 0:
				m.put(rapid.IntRange(0, len(m.out)-1).Draw(t, "which"))
			case len(m.queue) > 0:
				m.cancel(rapid.IntRange(0, len(m.queue)-1).Draw(t, "cancelled"))
			}
			if s := m.p.Stats(); s.InUse > limit || s.Waiting != len(m.queue) {
				t.Fatalf("%+v with %d queued", s, len(m.queue))
			}
		}
		for len(m.out) > 0 {
			m.put(0)
		}
		if len(m.queue) != 0 {
			t.Fatalf("%d waiters left with nothing in use", len(m.queue))
		}
		for range limit >> 20 { // all of it has joined again
			m.get(MaxBuf)
		}
		if len(m.queue) != 0 {
			t.Fatal("the pool is in pieces with nothing in use")
		}
		for len(m.out) > 0 {
			m.put(0)
		}
		m.p.Close()
	})
}

// poolModel knows who has what.
type poolModel struct {
	t     *rapid.T
	p     *Pool
	out   []heldBuf
	queue []*Waiter
	tag   byte
}

type heldBuf struct {
	b   []byte
	tag byte
}

func (m *poolModel) get(n int) {
	w := &Waiter{Ready: m.ready}
	if !m.p.Get(w, n) {
		m.queue = append(m.queue, w)
		return
	}
	if len(m.queue) > 0 {
		m.t.Fatal("overtook the queue")
	}
	m.take(w)
}

func (m *poolModel) ready(w *Waiter) {
	if m.queue[0] != w {
		m.t.Fatal("not first come first served")
	}
	m.queue = m.queue[1:]
	m.take(w)
}

func (m *poolModel) take(w *Waiter) {
	m.tag++
	b := w.Buf[:cap(w.Buf)]
	for i := 0; i < len(b); i += 512 {
		b[i] = m.tag
	}
	m.out = append(m.out, heldBuf{b, m.tag})
}

func (m *poolModel) put(i int) {
	h := m.out[i]
	m.out[i] = m.out[len(m.out)-1]
	m.out = m.out[:len(m.out)-1]
	for i := 0; i < len(h.b); i += 512 {
		if h.b[i] != h.tag {
			m.t.Fatalf("byte %d of a held buffer of %d changed", i, len(h.b))
		}
	}
	m.p.Put(h.b)
}

func (m *poolModel) cancel(i int) {
	w := m.queue[i]
	m.queue = append(m.queue[:i:i], m.queue[i+1:]...)
	if !m.p.Cancel(w) {
		m.t.Fatal("a queued waiter could not be cancelled")
	}
}

func TestConcurrent(t *testing.T) {
	p := newPool(t, Config{Limit: 2 << 20})
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(g)))
			for range 2000 {
				n := 1 + rng.IntN(MaxBuf>>(2*rng.IntN(5)))
				b := p.GetWait(n)
				b[0], b[n-1] = byte(g), byte(g)
				if b[0] != byte(g) || b[n-1] != byte(g) {
					t.Error("a buffer has two owners")
				}
				p.Put(b)
			}
		})
	}
	wg.Wait()
	if s := p.Stats(); s.InUse != 0 || s.Peak > 2<<20 {
		t.Errorf("%+v", s)
	}
	p.Put(p.GetWait(MaxBuf))
}

// Cancelling races with granting: exactly one of the two wins.
func TestCancelRace(t *testing.T) {
	p := newPool(t, Config{Limit: MaxBuf})
	for range 2000 {
		held := p.GetWait(MaxBuf)
		granted := make(chan struct{}, 1)
		w := &Waiter{Ready: func(*Waiter) { granted <- struct{}{} }}
		if p.Get(w, 1) {
			t.Fatal("granted with nothing left")
		}
		var wg sync.WaitGroup
		wg.Go(func() { p.Put(held) })
		if !p.Cancel(w) {
			<-granted
			p.Put(w.Buf)
		}
		wg.Wait()
	}
}

func TestAllocatesNothing(t *testing.T) {
	p := newPool(t, Config{Limit: 1 << 20})
	var w, w2 Waiter
	w2.Ready = func(*Waiter) {}
	steps := map[string]func(){
		"get and put": func() {
			p.Get(&w, 5000)
			p.Put(w.Buf)
		},
		"wait": func() {
			p.Get(&w, MaxBuf)
			p.Get(&w2, 4096)
			p.Put(w.Buf)
			p.Put(w2.Buf)
		},
		"GetWait": func() { p.Put(p.GetWait(70000)) },
	}
	for name, f := range steps {
		f()
		if n := testing.AllocsPerRun(200, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func TestArenas(t *testing.T) {
	p := newPool(t, Config{Limit: 8 << 20, Commit: 3 << 20})
	a := p.Arenas()
	if len(a) != 1 || len(a[0]) != 4<<20 {
		t.Fatalf("%d arenas, %d bytes; 3 MiB rounded up to huge pages were asked for", len(a), len(a[0]))
	}
	b := p.GetWait(100)
	lo := sys.Addr(a[0])
	if at := sys.Addr(b); at < lo || at >= lo+uintptr(len(a[0])) {
		t.Error("a buffer outside the arena while there is room in it")
	}
	p.Put(b)
	if newPool(t, Config{}).Arenas() != nil {
		t.Error("an arena before first use")
	}
}

func BenchmarkGetPut(b *testing.B) {
	p := newPool(b, Config{})
	b.Run("one", func(b *testing.B) {
		var w Waiter
		for b.Loop() {
			p.Get(&w, 4096)
			p.Put(w.Buf)
		}
	})
	b.Run("parallel", func(b *testing.B) {
		b.RunParallel(func(pb *testing.PB) {
			var w Waiter
			for pb.Next() {
				p.Get(&w, 4096)
				p.Put(w.Buf)
			}
		})
	})
	b.Run("waiting", func(b *testing.B) {
		p := newPool(b, Config{Limit: MaxBuf})
		var w, w2 Waiter
		w2.Ready = func(*Waiter) {}
		for b.Loop() {
			p.Get(&w, MaxBuf)
			p.Get(&w2, 4096)
			p.Put(w.Buf)
			p.Put(w2.Buf)
		}
	})
}
