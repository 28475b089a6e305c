package engine

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/platter-storage/platter/internal/rawio"
)

// eachShared runs f with a Shared of each kind, once with calls on the
// callers' threads and once without, and sees that it leaves no goroutine.
func eachShared(t *testing.T, cfg Config, f func(t *testing.T, s *Shared)) {
	for _, kind := range kindsHere() {
		for _, inline := range []int32{0, inlineCalls} {
			name := kind.String()
			if inline == 0 {
				name += " never inline"
			}
			t.Run(name, func(t *testing.T) {
				before := runtime.NumGoroutine()
				s, err := newShared(kind, cfg, inline)
				if err != nil {
					t.Fatal(err)
				}
				if inline == 0 {
					s.inline = 0
				}
				f(t, s)
				if err := s.Close(); err != nil {
					t.Error(err)
				}
				for _, l := range s.loops {
					if n := l.load.Load(); n != 0 {
						t.Errorf("load of a closed loop is %d", n)
					}
				}
				expectGoroutines(t, before)
			})
		}
	}
}

// expectGoroutines waits until goroutines that have ended are gone.
func expectGoroutines(t *testing.T, want int) {
	t.Helper()
	for range 6000 { // a minute: test machines are slow
		if runtime.NumGoroutine() <= want {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	buf := make([]byte, 1<<16)
	t.Errorf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), want, buf[:runtime.Stack(buf, true)])
}

// Many goroutines, 10^5 operations on each kind: each owns a stripe of the file,
// stamps blocks of it and reads them back, by Do and by Submit in batches.
func TestSharedStress(t *testing.T) {
	ops := 100_000
	if testing.Short() || len(kindsHere()) < 4 {
		ops = 10_000
	}
	f := openTest(t, Registrable)
	eachShared(t, Config{Depth: 8, Workers: 4}, func(t *testing.T, s *Shared) {
		const goroutines = 16
		var wg sync.WaitGroup
		for g := range goroutines {
			wg.Go(func() {
				w := stamper{s: s, f: f, base: int64(g) * fileSize / goroutines, rng: rand.New(rand.NewPCG(3, uint64(g)))}
				w.run(t, ops/goroutines/2)
			})
		}
		wg.Wait()
	})
}

// stamper is a goroutine of the stress test.
type stamper struct {
	s     *Shared
	f     *File
	base  int64
	rng   *rand.Rand
	stamp [64]uint64
}

const stampBlock = 512

func (w *stamper) run(t *testing.T, ops int) {
	p := NewParker()
	one := &rawio.IO{Vec: [][]byte{make([]byte, stampBlock)}}
	batch := make([]*rawio.IO, 12)
	for i := range batch {
		half := make([]byte, stampBlock)
		batch[i] = &rawio.IO{Vec: [][]byte{half[:100], half[100:]}}
	}
	for n := 0; n < ops; {
		if w.rng.IntN(3) > 0 {
			w.prepare(one, w.rng.IntN(len(w.stamp)))
			_ = w.s.Do(w.f, one, p)
			w.check(t, one)
			n++
			continue
		}
		first := w.rng.IntN(len(w.stamp) - len(batch))
		var left atomic.Int32
		left.Store(int32(len(batch)))
		all := make(chan struct{})
		for i, io := range batch {
			w.prepare(io, first+i)
			io.Done = func(*rawio.IO) {
				if left.Add(-1) == 0 {
					close(all)
				}
			}
		}
		w.s.Submit(w.f, batch)
		<-all
		for _, io := range batch {
			w.check(t, io)
		}
		n += len(batch)
	}
}

// prepare makes io a read of block i, or a write of a new stamp.
func (w *stamper) prepare(io *rawio.IO, i int) {
	io.Owner = uint64(i)
	io.Off = w.base + int64(i)*stampBlock
	io.Kind = rawio.Kind(w.rng.IntN(2))
	if io.Kind == rawio.Write {
		w.stamp[i] = w.rng.Uint64()
		binary.LittleEndian.PutUint64(io.Vec[0], w.stamp[i])
	} else {
		clear(io.Vec[0][:8])
	}
}

func (w *stamper) check(t *testing.T, io *rawio.IO) {
	if io.Err != nil || io.N != stampBlock && w.stamp[io.Owner] != 0 {
		t.Errorf("%v at %d: %d bytes, error %v", io.Kind, io.Off, io.N, io.Err)
	}
	if got := binary.LittleEndian.Uint64(io.Vec[0]); w.stamp[io.Owner] != 0 && got != w.stamp[io.Owner] {
		t.Errorf("%v at %d: stamp %#x, want %#x", io.Kind, io.Off, got, w.stamp[io.Owner])
	}
}

// A batch much larger than the queue: all of it completes, and in order where
// the engine has one thread.
func TestSharedBacklog(t *testing.T) {
	f := openTest(t, 0)
	eachShared(t, Config{Depth: 2, Workers: 1}, func(t *testing.T, s *Shared) {
		const n = 500
		ios := make([]*rawio.IO, n)
		var done sync.WaitGroup
		done.Add(n)
		var count atomic.Int32
		for i := range ios {
			ios[i] = &rawio.IO{Kind: rawio.Write, Off: int64(i) * 100, Vec: [][]byte{bytes.Repeat([]byte{byte(i)}, 100)},
				Done: func(io *rawio.IO) { count.Add(1); done.Done() }}
		}
		s.Submit(f, ios)
		done.Wait()
		for i, io := range ios {
			if io.Err != nil || io.N != 100 {
				t.Fatalf("write %d: %d bytes, error %v", i, io.N, io.Err)
			}
		}
		back := &rawio.IO{Vec: [][]byte{make([]byte, 100*n)}}
		if err := s.Do(f, back, NewParker()); err != nil || back.N != 100*n || count.Load() != n {
			t.Fatalf("read %d bytes, error %v, %d completions", back.N, err, count.Load())
		}
		for i, b := range back.Vec[0] {
			if b != byte(i/100) {
				t.Fatalf("byte %d is %d", i, b)
			}
		}
	})
}

func TestSharedErrors(t *testing.T) {
	eachShared(t, Config{Depth: 2}, func(t *testing.T, s *Shared) {
		p := NewParker()
		io := &rawio.IO{Vec: [][]byte{make([]byte, 10)}}
		for range 3 {
			if err := s.Do(OpenFile(1<<20, 0), io, p); err == nil || io.N != 0 {
				t.Errorf("read of a closed descriptor: %d bytes, error %v", io.N, err)
			}
		}
		if s.Reason() == "" {
			t.Error("no reason")
		}
	})
}

// Requests in flight are done when Close returns.
func TestSharedCloseWaits(t *testing.T) {
	f := openTest(t, 0)
	eachShared(t, Config{Depth: 4, Workers: 2}, func(t *testing.T, s *Shared) {
		var done atomic.Int32
		ios := make([]*rawio.IO, 64)
		for i := range ios {
			ios[i] = &rawio.IO{Kind: rawio.Write, Off: int64(i) << 16, Vec: [][]byte{make([]byte, 1<<16)}, Done: func(*rawio.IO) { done.Add(1) }}
		}
		s.Submit(f, ios)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if done.Load() != 64 {
			t.Errorf("%d of 64 done when Close returned", done.Load())
		}
		s.loops, s.workers = nil, nil // eachShared closes once more
	})
}

func TestSubmittingTwicePanics(t *testing.T) {
	f := openTest(t, 0)
	s, err := NewShared(Threads, Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	held := make(chan struct{})
	io := &rawio.IO{Kind: rawio.Fsync, Done: func(*rawio.IO) { <-held }}
	s.Submit(f, []*rawio.IO{io})
	io2 := &rawio.IO{Engine: inFlight}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("a request in flight could be submitted again")
			}
		}()
		s.Submit(f, []*rawio.IO{io2})
	}()
	close(held)
}

func TestSharedAllocatesNothing(t *testing.T) {
	f := openTest(t, Registrable)
	eachShared(t, Config{Depth: 8, Workers: 2}, func(t *testing.T, s *Shared) {
		w := &rawio.IO{Kind: rawio.Write, Vec: [][]byte{make([]byte, 8192)}}
		p := NewParker()
		if err := s.Do(f, w, p); err != nil {
			t.Fatal(err)
		}
		one := &rawio.IO{Vec: [][]byte{make([]byte, 4096)}}
		many := &rawio.IO{Vec: [][]byte{make([]byte, 100), make([]byte, 200)}}
		do := func() {
			_ = s.Do(f, one, p)
			_ = s.Do(f, many, p)
		}
		all := make(chan struct{}, 1)
		var left atomic.Int32
		done := func(*rawio.IO) {
			if left.Add(-1) == 0 {
				all <- struct{}{}
			}
		}
		batch := make([]*rawio.IO, 12)
		for i := range batch {
			batch[i] = &rawio.IO{Vec: [][]byte{make([]byte, 512)}, Done: done}
		}
		submit := func() {
			left.Store(int32(len(batch)))
			s.Submit(f, batch)
			<-all
		}
		for name, f := range map[string]func(){"Do": do, "Submit": submit} {
			for range 20 {
				f()
			}
			if n := testing.AllocsPerRun(200, f); n != 0 {
				t.Errorf("%s: %v allocations", name, n)
			}
		}
	})
}
