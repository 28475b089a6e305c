package blocktest

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// probe is a testing.TB that keeps failures to itself, for runs that may fail.
type probe struct {
	testing.TB
	mu       sync.Mutex
	errs     []string
	cleanups []func()
}

func (p *probe) Helper() {}

func (p *probe) Cleanup(f func()) {
	p.mu.Lock()
	p.cleanups = append(p.cleanups, f)
	p.mu.Unlock()
}

func (p *probe) add(s string) {
	p.mu.Lock()
	p.errs = append(p.errs, strings.TrimSpace(s))
	p.mu.Unlock()
}

func (p *probe) Error(args ...any)                 { p.add(fmt.Sprintln(args...)) }
func (p *probe) Errorf(format string, args ...any) { p.add(fmt.Sprintf(format, args...)) }
func (p *probe) Fatal(args ...any)                 { p.Error(args...); runtime.Goexit() }
func (p *probe) Fatalf(format string, args ...any) { p.Errorf(format, args...); runtime.Goexit() }
func (p *probe) Fail()                             { p.add("failed") }
func (p *probe) FailNow()                          { p.Fail(); runtime.Goexit() }
func (p *probe) Log(...any)                        {}
func (p *probe) Logf(string, ...any)               {}

// Failed reports whether an error was noted.
func (p *probe) Failed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.errs) > 0
}

// err joins what was noted.
func (p *probe) err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.errs) == 0 {
		return nil
	}
	return errors.New(strings.Join(p.errs, "; "))
}

// attempt runs f with a testing.TB of its own, cleans up after it, and returns
// its error or what it failed with.
func (r *runner) attempt(f func(t testing.TB) error) error {
	p := &probe{TB: r.t}
	p.inside(func() {
		if err := f(p); err != nil {
			p.Error(err)
		}
	})
	for i := len(p.cleanups) - 1; i >= 0; i-- {
		p.inside(p.cleanups[i])
	}
	return p.err()
}

// inside runs f where Fatal may end it.
func (p *probe) inside(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

// failure is a failed run and the shortest list found that fails too.
type failure struct {
	seed       uint64
	err        error
	ops        []ModelOp
	was        int
	sequential bool
}

// Bounds of shrinking.
const (
	shrinkTime = 20 * time.Second
	shrinkRuns = 500
)

// shrink looks for a shorter list of operations that fails. One that fails on
// a single goroutine is preferred: it fails each time.
func (r *runner) shrink(ops []ModelOp, err error) *failure {
	f := &failure{seed: r.cfg.Seed, err: err, ops: ops, was: len(ops)}
	end, runs := time.Now().Add(shrinkTime), 0
	tries := 3
	fails := func(ops []ModelOp) error {
		for range tries {
			if runs++; runs > shrinkRuns || time.Now().After(end) {
				return nil
			}
			if err := r.run(ops); err != nil {
				return err
			}
		}
		return nil
	}
	sequentially := func() {
		one := append([]ModelOp{}, f.ops...)
		for i := range one {
			one[i].Worker = 0
		}
		if e := r.run(one); e != nil {
			f.ops, f.err, f.sequential, tries = one, e, true, 1
		}
	}
	sequentially()
	f.remove(fails)
	if !f.sequential {
		sequentially() // what hid the failure may be gone
		f.remove(fails)
	}
	f.simplify(fails)
	return f
}

// remove takes out ever smaller parts of the list for as long as it fails.
func (f *failure) remove(fails func([]ModelOp) error) {
	for size := len(f.ops) / 2; size > 0; size /= 2 {
		for from := 0; from+size <= len(f.ops); {
			less := append(append([]ModelOp{}, f.ops[:from]...), f.ops[from+size:]...)
			if e := fails(less); e != nil {
				f.ops, f.err = less, e
			} else {
				from += size
			}
		}
	}
}

// simplify makes each operation plainer for as long as the list fails.
func (f *failure) simplify(fails func([]ModelOp) error) {
	for i := range f.ops {
		for _, plainer := range []func(o *ModelOp){
			func(o *ModelOp) { o.Fast = false },
			func(o *ModelOp) { o.Cuts, o.Gap = nil, 0 },
			func(o *ModelOp) { o.Mem = 0 },
			func(o *ModelOp) { o.Flags = 0 },
			func(o *ModelOp) { o.Edge = 0 },
		} {
			ops := append([]ModelOp{}, f.ops...)
			plainer(&ops[i])
			if ops[i].String() == f.ops[i].String() {
				continue
			}
			if e := fails(ops); e != nil {
				f.ops, f.err = ops, e
			}
		}
	}
}

// report is the failure with a Go test that repeats it.
func (f *failure) report(name string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "the model test failed with seed %d: %v\n", f.seed, f.err)
	fmt.Fprintf(&b, "run it again:  PLATTER_SEED=%d go test -run '^%s$'\n", f.seed, strings.ReplaceAll(name, "/", "$/^"))
	how := "on one goroutine"
	if !f.sequential {
		how = "on several goroutines (not each time)"
	}
	fmt.Fprintf(&b, "%d of %d operations fail too, %s; as a test, with open and cfg as where it failed:\n\n", len(f.ops), f.was, how)
	fmt.Fprintf(&b, "func TestReplay(t *testing.T) {\n\tblocktest.Replay(t, open, cfg, []blocktest.ModelOp{\n")
	for _, o := range f.ops {
		fmt.Fprintf(&b, "\t\t%s,\n", o)
	}
	fmt.Fprintf(&b, "\t})\n}\n")
	return b.String()
}
