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
			contentRun(t, q, f, model, align, 2000)
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
		r.io = rawio.IO{Kind: rawio.Kind(rng.IntN(2)), Sync: rng.IntN(8) == 0, Off: int64(b*block + align*rng.IntN(4))}
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
