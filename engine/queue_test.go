package engine

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/platter-storage/platter/internal/rawio"
)

// eachQueue runs f with a queue of each kind and owner that this system has,
// on a locked thread.
func eachQueue(t *testing.T, cfg Config, f func(t *testing.T, q Queue, kind Kind)) {
	for _, kind := range kindsHere() {
		for _, owner := range []Owner{AnyThread, Locked} {
			name := kind.String() + "/any thread"
			if owner == Locked {
				name = kind.String() + "/locked"
			}
			t.Run(name, func(t *testing.T) {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				cfg := cfg
				cfg.Owner = owner
				q, err := New(kind, cfg)
				if err != nil {
					t.Fatal(err)
				}
				f(t, q, kind)
				if s := q.Stats(); s.Stale != 0 {
					t.Errorf("%d stale completions", s.Stale)
				}
				if err := q.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// run takes one request through q.
func run(t *testing.T, q Queue, f *File, io *rawio.IO) {
	t.Helper()
	done := 0
	io.Done = func(got *rawio.IO) {
		if got != io {
			t.Error("Done was called with another request")
		}
		done++
	}
	if !q.Prep(io, f) {
		t.Fatal("an empty queue is full")
	}
	_ = q.Submit()
	wait(t, q, func() bool { return done > 0 })
	if done != 1 || q.InFlight() != 0 {
		t.Fatalf("Done was called %d times, %d in flight", done, q.InFlight())
	}
}

// wait reaps until cond.
func wait(t *testing.T, q Queue, cond func() bool) {
	t.Helper()
	for start := time.Now(); !cond(); {
		if q.Reap(0) > 0 {
			continue
		}
		if err := q.Wait(time.Second); err != nil {
			t.Fatal(err)
		}
		if time.Since(start) > 60*time.Second {
			t.Fatalf("nothing happens, %d in flight", q.InFlight())
		}
	}
}

// ok fails unless io moved n bytes.
func ok(t *testing.T, io *rawio.IO, n int) {
	t.Helper()
	if io.Err != nil || io.N != n {
		t.Fatalf("%v of %d elements at %d: %d bytes, error %v; want %d bytes", io.Kind, len(io.Vec), io.Off, io.N, io.Err, n)
	}
}

// modes are the ways to open the file of a test.
func eachMode(t *testing.T, f func(t *testing.T, fl *File, align int)) {
	for _, m := range testModes {
		t.Run(m.name, func(t *testing.T) {
			fl := openTest(t, m.flags)
			f(t, fl, m.align)
		})
	}
}

func openTest(t testing.TB, flags FileFlags) *File {
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return openAgain(t, f.Name(), flags)
}

const fileSize = 8 << 20

// Random vectored reads and writes, many in flight, never two on the same
// block, against a model.
func TestContent(t *testing.T) {
	eachMode(t, func(t *testing.T, f *File, align int) {
		model := make([]byte, fileSize)
		eachQueue(t, Config{Depth: 16}, func(t *testing.T, q Queue, kind Kind) {
			io := &rawio.IO{Kind: rawio.Write, Vec: [][]byte{aligned(fileSize)}}
			copy(io.Vec[0], model)
			run(t, q, f, io)
			ok(t, io, fileSize)
			contentRun(t, q, f, model, align, 800)
		})
	})
}

func contentRun(t *testing.T, q Queue, f *File, model []byte, align, ops int) {
	rng := rand.New(rand.NewPCG(7, uint64(align)))
	const block = fileSize / 32 // each request has a block for itself
	var busy [32]bool
	inFlight, done := 0, 0
	type request struct {
		io    rawio.IO
		block int
		want  []byte
	}
	free := make([]*request, 0, 32)
	for range 32 {
		free = append(free, &request{})
	}
	for done < ops {
		b := rng.IntN(32)
		if busy[b] || len(free) == 0 || inFlight == q.Depth() {
			_ = q.Submit()
			before := done
			wait(t, q, func() bool { return done > before })
			continue
		}
		r := free[len(free)-1]
		free = free[:len(free)-1]
		r.block = b
		busy[b] = true
		inFlight++
		r.io = rawio.IO{Kind: rawio.Kind(rng.IntN(2)), Sync: rng.IntN(64) == 0, Off: int64(b*block + align*rng.IntN(4))}
		total := 0
		for n := 1 + rng.IntN(5); n > 0; n-- {
			e := align * (1 + rng.IntN(4))
			r.io.Vec = append(r.io.Vec, aligned(e))
			total += e
		}
		r.want = model[r.io.Off : r.io.Off+int64(total)]
		if r.io.Kind == rawio.Write {
			at := r.want
			for _, e := range r.io.Vec {
				for i := range e {
					e[i] = byte(rng.Uint32())
				}
				at = at[copy(at, e):]
			}
		}
		r.io.Done = func(io *rawio.IO) {
			ok(t, io, total)
			if io.Kind == rawio.Read && !bytes.Equal(bytes.Join(io.Vec, nil), r.want) {
				t.Errorf("read at %d differs from what was written", io.Off)
			}
			busy[r.block] = false
			free = append(free, r)
			inFlight--
			done++
		}
		if !q.Prep(&r.io, f) {
			t.Fatalf("full with %d of %d", q.InFlight(), q.Depth())
		}
	}
	_ = q.Submit()
	wait(t, q, func() bool { return inFlight == 0 })
}

func TestErrors(t *testing.T) {
	f := openTest(t, 0)
	eachQueue(t, Config{Depth: 4}, func(t *testing.T, q Queue, kind Kind) {
		buf := aligned(8192)
		io := &rawio.IO{Vec: [][]byte{buf}}
		for _, c := range []struct {
			what string
			prep func()
			f    *File
			want error
		}{
			{"closed descriptor", func() { *io = rawio.IO{Vec: [][]byte{buf}} }, OpenFile(1<<20, 0), syscall.EBADF},
			{"closed descriptor, registrable", func() { *io = rawio.IO{Kind: rawio.Write, Vec: [][]byte{buf}} }, OpenFile(1<<20, Registrable), syscall.EBADF},
			{"closed descriptor, sync", func() { *io = rawio.IO{Kind: rawio.Fsync} }, OpenFile(1<<20, 0), syscall.EBADF},
			{"negative offset", func() { *io = rawio.IO{Off: -4096, Vec: [][]byte{buf}} }, f, syscall.EINVAL},
			{"negative offset, vectored", func() { *io = rawio.IO{Off: -4096, Vec: [][]byte{buf, buf}} }, f, syscall.EINVAL},
			{"one element too many", func() { *io = rawio.IO{Vec: make([][]byte, MaxVec+1)} }, f, syscall.EINVAL},
		} {
			c.prep()
			run(t, q, c.f, io)
			if !errors.Is(io.Err, c.want) || io.N != 0 {
				t.Errorf("%s: %d bytes, error %v, want %v", c.what, io.N, io.Err, c.want)
			}
			if _, is := io.Err.(syscall.Errno); !is {
				t.Errorf("%s: error is a %T, not a syscall.Errno", c.what, io.Err)
			}
		}
		// The queue is as good as before.
		*io = rawio.IO{Kind: rawio.Write, Vec: [][]byte{buf}}
		run(t, q, f, io)
		ok(t, io, len(buf))
	})
}

// Every number of elements up to the limit moves the right bytes, elements of
// no length among them.
func TestVectors(t *testing.T) {
	eachMode(t, func(t *testing.T, f *File, align int) {
		eachQueue(t, Config{Depth: 4}, func(t *testing.T, q Queue, kind Kind) {
			for _, n := range []int{1, 2, 8, 9, 63, 64, 1023, MaxVec} {
				w := &rawio.IO{Kind: rawio.Write, Off: int64(align * 3)}
				r := &rawio.IO{Off: w.Off}
				for i := range n {
					e := aligned(align)
					e[0] = byte(i * 7)
					if i%5 == 4 && align == 1 {
						e = e[:0]
					}
					w.Vec = append(w.Vec, e)
					r.Vec = append(r.Vec, aligned(len(e)))
				}
				want := bytes.Join(w.Vec, nil)
				run(t, q, f, w)
				ok(t, w, len(want))
				run(t, q, f, r)
				ok(t, r, len(want))
				if !bytes.Equal(bytes.Join(r.Vec, nil), want) {
					t.Errorf("%d elements: what was read is not what was written", n)
				}
			}
		})
	})
}

func TestNothingToMove(t *testing.T) {
	f := openTest(t, 0)
	eachQueue(t, Config{Depth: 4}, func(t *testing.T, q Queue, kind Kind) {
		for _, vec := range [][][]byte{nil, {nil}, {{}, {}}} {
			for _, k := range []rawio.Kind{rawio.Read, rawio.Write} {
				io := &rawio.IO{Kind: k, Vec: vec}
				run(t, q, f, io)
				ok(t, io, 0)
			}
		}
	})
}

// A read across the end of the file is short, and no error.
func TestEndOfFile(t *testing.T) {
	eachMode(t, func(t *testing.T, f *File, align int) {
		eachQueue(t, Config{Depth: 4}, func(t *testing.T, q Queue, kind Kind) {
			block := max(align, 512)
			w := &rawio.IO{Kind: rawio.Write, Vec: [][]byte{aligned(4 * block)}}
			run(t, q, f, w)
			ok(t, w, 4*block)
			for _, c := range []struct{ off, want int }{{2, 2 * block}, {3, block}, {4, 0}, {100, 0}} {
				one := &rawio.IO{Off: int64(c.off * block), Vec: [][]byte{aligned(8 * block)}}
				run(t, q, f, one)
				ok(t, one, c.want)
				many := &rawio.IO{Off: one.Off, Vec: [][]byte{aligned(block), aligned(7 * block)}}
				run(t, q, f, many)
				ok(t, many, c.want)
			}
			s := &rawio.IO{Kind: rawio.Fsync}
			run(t, q, f, s)
			ok(t, s, 0)
		})
	})
}

func TestFullQueue(t *testing.T) {
	f := openTest(t, 0)
	eachQueue(t, Config{Depth: 5}, func(t *testing.T, q Queue, kind Kind) {
		if q.Depth() != 5 {
			t.Fatalf("depth %d, want 5", q.Depth())
		}
		done := 0
		ios := make([]rawio.IO, 6)
		for range 3 {
			for i := range ios {
				ios[i] = rawio.IO{Kind: rawio.Write, Off: int64(i), Vec: [][]byte{{byte(i)}}, Done: func(*rawio.IO) { done++ }}
			}
			for i := range 5 {
				if !q.Prep(&ios[i], f) {
					t.Fatalf("full at %d of 5", i)
				}
			}
			if q.Prep(&ios[5], f) || q.InFlight() != 5 {
				t.Fatalf("one past the depth was taken; %d in flight", q.InFlight())
			}
			if err := q.Submit(); err != nil {
				t.Fatal(err)
			}
			wait(t, q, func() bool { return q.InFlight() == 0 })
			if !q.Prep(&ios[5], f) {
				t.Fatal("full after everything was reaped")
			}
			_ = q.Submit()
			wait(t, q, func() bool { return q.InFlight() == 0 })
		}
		if done != 18 {
			t.Errorf("%d of 18 done", done)
		}
	})
}

// Reap keeps to its limit, and Done may prepare the next request.
func TestReapLimit(t *testing.T) {
	f := openTest(t, 0)
	eachQueue(t, Config{Depth: 8}, func(t *testing.T, q Queue, kind Kind) {
		done, next := 0, 0
		ios := make([]rawio.IO, 16)
		for i := range ios {
			ios[i] = rawio.IO{Kind: rawio.Write, Off: int64(i), Vec: [][]byte{{1}}, Done: func(*rawio.IO) {
				if done++; next < len(ios) {
					next++
					if !q.Prep(&ios[next-1], f) {
						t.Error("no room within Done")
					}
				}
			}}
		}
		for next < 8 {
			next++
			q.Prep(&ios[next-1], f)
		}
		for done < len(ios) {
			_ = q.Submit()
			before := done
			if n := q.Reap(3); n > 3 || n != done-before {
				t.Fatalf("Reap(3) returned %d and delivered %d", n, done-before)
			}
			if done == before {
				_ = q.Wait(time.Second)
			}
		}
	})
}

func TestCloseWaits(t *testing.T) {
	f := openTest(t, 0)
	eachQueue(t, Config{Depth: 16}, func(t *testing.T, q Queue, kind Kind) {
		done := 0
		for i := range 16 {
			q.Prep(&rawio.IO{Kind: rawio.Write, Off: int64(i) << 18, Vec: [][]byte{aligned(1 << 18)}, Done: func(*rawio.IO) { done++ }}, f)
			if i == 10 {
				_ = q.Submit() // the rest is only prepared
			}
		}
		other, err := New(kind, Config{})
		if err != nil {
			t.Fatal(err)
		}
		if err := other.Close(); err != nil {
			t.Errorf("closing an unused queue: %v", err)
		}
		for q.InFlight() > 0 { // what Close does, on a queue that eachQueue closes after this
			if err := drain(q); err != nil {
				t.Fatal(err)
			}
		}
		if done != 16 {
			t.Errorf("%d of 16 done", done)
		}
	})
}

func TestWaitTimesOut(t *testing.T) {
	eachQueue(t, Config{Depth: 2}, func(t *testing.T, q Queue, kind Kind) {
		start := time.Now()
		for range 3 {
			if err := q.Wait(5 * time.Millisecond); err != nil {
				t.Fatal(err)
			}
		}
		if err := q.Wait(0); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); d < 5*time.Millisecond {
			t.Errorf("three waits of 5 ms took %v", d)
		}
		go func() {
			time.Sleep(20 * time.Millisecond)
			q.Wake()
		}()
		if err := q.Wait(-1); err != nil { // hangs if Wake does nothing
			t.Fatal(err)
		}
		q.Reap(0)
		q.Wake()
		if err := q.Wait(-1); err != nil { // Wake before Wait counts too
			t.Fatal(err)
		}
	})
}

func TestQueueAllocatesNothing(t *testing.T) {
	f := openTest(t, Registrable)
	eachQueue(t, Config{Depth: 8}, func(t *testing.T, q Queue, kind Kind) {
		done := 0
		ios := make([]*rawio.IO, 8)
		for i := range ios {
			ios[i] = &rawio.IO{Kind: rawio.Kind(i % 2), Off: int64(i) * 4096, Vec: [][]byte{aligned(4096)}, Done: func(*rawio.IO) { done++ }}
			if i > 3 {
				for range 20 {
					ios[i].Vec = append(ios[i].Vec, ios[i].Vec[0][:100])
				}
			}
		}
		bad := &rawio.IO{Off: -1, Vec: [][]byte{{1}}, Done: func(*rawio.IO) { done++ }}
		round := func() {
			want := done + len(ios)
			for _, io := range ios {
				q.Prep(io, f)
			}
			_ = q.Submit()
			for done < want {
				if q.Reap(0) == 0 {
					_ = q.Wait(time.Second)
				}
			}
			if kind == Native {
				return // there Submit makes an error of a refused request
			}
			q.Prep(bad, f)
			_ = q.Submit()
			for want++; done < want; {
				if q.Reap(0) == 0 {
					_ = q.Wait(time.Second)
				}
			}
		}
		for range 5 {
			round()
		}
		if n := testing.AllocsPerRun(100, round); n != 0 {
			t.Errorf("%v allocations for %d requests", n, len(ios)+1)
		}
	})
}

func TestConfigLimits(t *testing.T) {
	for _, c := range []struct {
		cfg Config
		ok  bool
	}{
		{Config{Depth: 1}, true}, {Config{Depth: MaxDepth}, true}, {Config{Workers: MaxWorkers}, true},
		{Config{Depth: MaxDepth + 1}, false}, {Config{Depth: -1}, false}, {Config{Workers: MaxWorkers + 1}, false}, {Config{Workers: -1}, false},
	} {
		for _, kind := range kindsHere() {
			q, err := New(kind, c.cfg)
			if (err == nil) != c.ok {
				t.Errorf("%v %+v: error %v", kind, c.cfg, err)
			}
			if err == nil {
				if err := q.Close(); err != nil {
					t.Error(err)
				}
			}
		}
		if s, err := NewShared(Threads, c.cfg); (err == nil) != c.ok {
			t.Errorf("Shared %+v: error %v", c.cfg, err)
		} else if err == nil {
			s.Close()
		}
	}
	if _, err := New(Kind(99), Config{}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("kind 99: %v", err)
	}
}
