package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/internal/rawio"
)

// Memory that is not there is EFAULT; a device's error is EIO.
func TestErrorsOfTheKernel(t *testing.T) {
	f := openTest(t, 0)
	hole, err := unix.Mmap(-1, 0, 8192, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(hole)
	self, err := os.Open("/proc/self/mem") // reading what is not mapped is EIO
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	eachQueue(t, Config{Depth: 4}, func(t *testing.T, q Queue, kind Kind) {
		w := &rawio.IO{Kind: rawio.Write, Vec: [][]byte{aligned(8192)}}
		run(t, q, f, w)
		ok(t, w, 8192)
		for _, k := range []rawio.Kind{rawio.Read, rawio.Write} {
			for _, vec := range [][][]byte{{hole}, {hole[:100], hole[4096:]}} {
				io := &rawio.IO{Kind: k, Vec: vec}
				run(t, q, f, io)
				if io.Err != syscall.EFAULT || io.N != 0 {
					t.Errorf("%v of %d elements that are not mapped: %d bytes, error %v, want EFAULT", k, len(vec), io.N, io.Err)
				}
			}
		}
		want := syscall.EIO
		if kind == Native {
			want = syscall.EINVAL // Linux AIO does not read such files at all
		}
		io := &rawio.IO{Off: 16, Vec: [][]byte{aligned(512)}}
		run(t, q, OpenFile(int(self.Fd()), 0), io)
		if io.Err != want {
			t.Errorf("error %v, want %v", io.Err, want)
		}
		full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer full.Close()
		if kind != Native {
			io = &rawio.IO{Kind: rawio.Write, Vec: [][]byte{aligned(512)}}
			run(t, q, OpenFile(int(full.Fd()), 0), io)
			if io.Err != syscall.ENOSPC {
				t.Errorf("error %v, want ENOSPC", io.Err)
			}
		}
	})
}

// Signals to the queue's thread and to the process, 1000 a second: no error,
// no completion lost or delivered twice.
func TestSignals(t *testing.T) {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, unix.SIGUSR1)
	defer signal.Stop(ch)
	f := openTest(t, Direct)
	eachQueue(t, Config{Depth: 8, Workers: 4}, func(t *testing.T, q Queue, kind Kind) {
		var stop atomic.Bool
		var wg sync.WaitGroup
		tid := unix.Gettid()
		wg.Go(func() {
			for !stop.Load() {
				_ = unix.Tgkill(os.Getpid(), tid, unix.SIGURG)
				_ = unix.Kill(os.Getpid(), unix.SIGUSR1)
				time.Sleep(time.Millisecond)
			}
		})
		model := make([]byte, fileSize)
		io := &rawio.IO{Kind: rawio.Write, Vec: [][]byte{aligned(fileSize)}}
		run(t, q, f, io)
		ok(t, io, fileSize)
		for start := time.Now(); time.Since(start) < 500*time.Millisecond; {
			contentRun(t, q, f, model, 4096, 50)
		}
		stop.Store(true)
		wg.Wait()
	})
	s, err := newShared(Uring, Config{Depth: 8}, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var stop atomic.Bool
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			w := stamper{s: s, f: openAgain(t, "/proc/self/fd/"+itoa(f.fd), 0), base: int64(g) << 16, rng: rand.New(rand.NewPCG(1, uint64(g)))}
			for !stop.Load() {
				w.run(t, 50)
			}
		})
	}
	for range 500 {
		_ = unix.Kill(os.Getpid(), unix.SIGUSR1)
		time.Sleep(time.Millisecond)
	}
	stop.Store(true)
	wg.Wait()
}

func itoa(n int) string { b, _ := json.Marshal(n); return string(b) }

// Neither goroutines nor descriptors nor mappings of a closed queue stay.
func TestNothingLeaks(t *testing.T) {
	f := openTest(t, Direct|Registrable)
	eachQueue(t, Config{}, func(*testing.T, Queue, Kind) {}) // what is made once
	goroutines, fds, maps := runtime.NumGoroutine(), count(t, "/proc/self/fd"), mappings(t)
	for range 20 {
		eachQueue(t, Config{Depth: 8}, func(t *testing.T, q Queue, kind Kind) {
			q.NotifyFd()
			io := &rawio.IO{Kind: rawio.Write, Vec: [][]byte{aligned(4096)}}
			run(t, q, f, io)
			ok(t, io, 4096)
		})
	}
	eachShared(t, Config{Depth: 8}, func(t *testing.T, s *Shared) {
		_ = s.Do(f, &rawio.IO{Vec: [][]byte{aligned(4096)}}, NewParker())
	})
	expectGoroutines(t, goroutines)
	if n := count(t, "/proc/self/fd"); n > fds {
		t.Errorf("%d descriptors, %d before", n, fds)
	}
	if n := mappings(t); n > maps {
		t.Errorf("%d mappings of rings, %d before", n, maps)
	}
}

func count(t *testing.T, dir string) int {
	e, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(e)
}

// mappings counts the mappings that rings and AIO contexts make.
func mappings(t *testing.T) int {
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(b), "io_uring") + strings.Count(string(b), "[aio]")
}

func TestWatch(t *testing.T) {
	eachQueue(t, Config{Depth: 2}, func(t *testing.T, q Queue, kind Kind) {
		efd, err := unix.Eventfd(1, unix.EFD_NONBLOCK) // readable from the start
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(efd)
		fired := 0
		if err := q.Watch(efd, func() { fired++ }); err != nil {
			t.Fatal(err)
		}
		for want := 1; want < 5; want++ {
			for start := time.Now(); fired < want && time.Since(start) < 10*time.Second; q.Reap(0) {
				if err := q.Wait(time.Second); err != nil {
					t.Fatal(err)
				}
			}
			if fired != want {
				t.Fatalf("fired %d times after %d writes", fired, want)
			}
			if err := q.Wait(time.Millisecond); err != nil { // edge: an unread descriptor does not fire again
				t.Fatal(err)
			}
			if q.Reap(0); fired != want {
				t.Fatalf("fired %d times after %d writes", fired, want)
			}
			wakeEventfd(efd)
		}
		_ = q.Wait(time.Second)
		q.Reap(0)
		fired = 0
		q.Unwatch(efd)
		wakeEventfd(efd)
		_ = q.Wait(5 * time.Millisecond)
		if q.Reap(0); fired != 0 {
			t.Error("fired after Unwatch")
		}
		for i := range MaxWatch {
			if err := q.Watch(efd, func() {}); err != nil && kind == Uring {
				t.Fatalf("watch %d of %d: %v", i+1, MaxWatch, err)
			} else if err != nil {
				return // epoll does not take one descriptor twice
			}
		}
		if q.Watch(efd, func() {}) == nil {
			t.Error("one watch past the limit was taken")
		}
	})
}

// More wake-ups than the completion ring holds: it overflows, and nothing is
// lost by it.
func TestWakeOverflow(t *testing.T) {
	f := openTest(t, 0)
	eachQueue(t, Config{Depth: 2}, func(t *testing.T, q Queue, kind Kind) {
		for range 3 {
			for range 300 {
				q.Wake()
			}
			io := &rawio.IO{Kind: rawio.Write, Vec: [][]byte{{1}}}
			run(t, q, f, io)
			ok(t, io, 1)
		}
		for q.Reap(0); q.Wait(time.Millisecond) == nil && q.Reap(0) > 0; {
		}
		q.Wake()
		if err := q.Wait(-1); err != nil { // hangs if the watch was lost
			t.Fatal(err)
		}
	})
}

func TestNotifyFd(t *testing.T) {
	f := openTest(t, Direct)
	eachQueue(t, Config{Depth: 2}, func(t *testing.T, q Queue, kind Kind) {
		efd := q.NotifyFd()
		if kind == Inline {
			if efd != -1 {
				t.Error("inline has nothing to notify of")
			}
			return
		}
		for range 3 {
			done := 0
			if !q.Prep(&rawio.IO{Kind: rawio.Write, Vec: [][]byte{aligned(4096)}, Done: func(*rawio.IO) { done++ }}, f) {
				t.Fatal("full")
			}
			if err := q.Submit(); err != nil {
				t.Fatal(err)
			}
			for start := time.Now(); done == 0 && time.Since(start) < 10*time.Second; q.Reap(0) {
				if err := pollFd(efd, time.Second); err != nil {
					t.Fatal(err)
				}
			}
			if done != 1 {
				t.Fatalf("done %d times", done)
			}
			var b [8]byte
			if _, err := unix.Read(efd, b[:]); err != nil {
				t.Fatalf("the descriptor was not written: %v", err)
			}
		}
	})
}

// A registered file stays open until Forget: then its pipe ends.
func TestForget(t *testing.T) {
	for _, shared := range []bool{false, true} {
		q, err := New(Uring, Config{Depth: 2})
		if err != nil {
			t.Fatal(err)
		}
		s, err := newShared(Uring, Config{Depth: 2}, 0)
		if err != nil {
			t.Fatal(err)
		}
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
			t.Fatal(err)
		}
		f := OpenFile(p[1], Registrable)
		io := &rawio.IO{Kind: rawio.Write, Vec: [][]byte{{42}}}
		use := func() {
			if shared {
				_ = s.Do(f, io, NewParker())
			} else {
				run(t, q, f, io)
			}
			ok(t, io, 1)
		}
		use()
		unix.Close(p[1])
		use() // by its place in the table
		var b [8]byte
		if n, err := unix.Read(p[0], b[:]); n != 2 || err != nil {
			t.Fatalf("%d bytes in the pipe, error %v", n, err)
		}
		if _, err := unix.Read(p[0], b[:]); err != unix.EAGAIN {
			t.Fatalf("read: %v, want EAGAIN: the file is not registered", err)
		}
		if shared {
			s.Forget(f)
		} else {
			q.Forget(f)
		}
		for range 6000 { // the kernel lets go of it a little later
			if _, err = unix.Read(p[0], b[:]); err == nil {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if err != nil {
			t.Errorf("shared %v: the file is still open after Forget: %v", shared, err)
		}
		unix.Close(p[0])
		q.Close()
		s.Close()
	}
}

// More files than a ring registers, and places used again.
func TestManyFiles(t *testing.T) {
	q, err := New(Uring, Config{Depth: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	base := openTest(t, 0)
	w := &rawio.IO{Kind: rawio.Write, Vec: [][]byte{[]byte("abc")}}
	run(t, q, base, w)
	ok(t, w, 3)
	files := make([]*File, regFiles+10)
	for i := range files {
		files[i] = openAgain(t, "/proc/self/fd/"+itoa(base.fd), Registrable)
	}
	for round := range 3 {
		for i, f := range files {
			r := &rawio.IO{Vec: [][]byte{make([]byte, 8)}}
			run(t, q, f, r)
			ok(t, r, 3)
			if (i+round)%3 == 0 {
				q.Forget(f)
			}
		}
	}
}

// onThread runs f on a thread that is thrown away afterwards: what f does to
// the thread's rights does not spread.
func onThread(f func()) {
	done := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer close(done)
		f()
	}()
	<-done
}

// A filter that forbids io_uring and AIO, as container profiles do: errors say
// so, and name the way out.
func TestForbidden(t *testing.T) {
	onThread(func() {
		forbid(t, unix.SYS_IO_URING_SETUP, unix.EPERM)
		forbid(t, unix.SYS_IO_SETUP, unix.ENOSYS)
		for _, c := range []struct {
			kind Kind
			want []string
		}{
			{Uring, []string{"io_uring_disabled is 0", "seccomp", "aio=threads"}},
			{Native, []string{"seccomp", "io_setup", "aio=threads"}},
		} {
			_, err := New(c.kind, Config{})
			if !errors.Is(err, ErrUnavailable) {
				t.Errorf("%v: error %v", c.kind, err)
				continue
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%v: the error does not say %q: %v", c.kind, w, err)
				}
			}
		}
		u, n := probeUring(), probeNative()
		if u.Usable || n.Usable || u.Errno != int(unix.EPERM) || n.Errno != int(unix.ENOSYS) {
			t.Errorf("%+v %+v", u, n)
		}
	})
}

func TestProbe(t *testing.T) {
	r := Probe()
	if !r.Uring.Usable || !r.Native.Usable || !r.Threads.Usable {
		t.Errorf("%+v", r)
	}
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"io_uring":{"usable":true,"why":"io_uring works`, `"aio_max_nr"`, `"features"`} {
		if !strings.Contains(string(b), want) {
			t.Errorf("no %s in %s", want, b)
		}
	}
	t.Logf("%s", b)
}

// Kernels of the past: each refuses the flags that it does not know, and the
// ring is made with the others.
func TestSetupFallsBack(t *testing.T) {
	for _, c := range []struct {
		name          string
		known         uint32
		locked, other uint32 // flags of the ring, less those it always has
	}{
		{"6.6", ^uint32(0), setupNoSQArray | setupDeferTaskrun | setupSingleIssuer | setupTaskrunFlag | setupSubmitAll, setupNoSQArray | setupSubmitAll},
		{"6.1", 1<<14 - 1, setupDeferTaskrun | setupSingleIssuer | setupTaskrunFlag | setupSubmitAll, setupSubmitAll},
		{"6.0", 1<<13 - 1, setupSingleIssuer | setupTaskrunFlag | setupCoopTaskrun | setupSubmitAll, setupSubmitAll},
		{"5.19", 1<<12 - 1, setupTaskrunFlag | setupCoopTaskrun | setupSubmitAll, setupSubmitAll},
		{"5.18", 1<<8 - 1, setupSubmitAll, setupSubmitAll},
		{"5.13", 1<<7 - 1, 0, 0},
	} {
		for _, owner := range []Owner{Locked, AnyThread} {
			want := c.other
			if owner == Locked {
				want = c.locked
			}
			r := &uring{}
			errno := r.setup(Config{Depth: 4, Owner: owner}, func(_ uint32, p *uringParams) (int, syscall.Errno) {
				switch {
				case p.flags&^c.known != 0,
					p.flags&setupDeferTaskrun != 0 && p.flags&setupSingleIssuer == 0,
					p.flags&setupDeferTaskrun != 0 && p.flags&setupCoopTaskrun != 0,
					p.flags&setupTaskrunFlag != 0 && p.flags&(setupDeferTaskrun|setupCoopTaskrun) == 0:
					return -1, syscall.EINVAL
				}
				return 7, 0
			})
			if got := r.params.flags &^ (setupClamp | setupCQSize); errno != 0 || got != want || r.fd != 7 {
				t.Errorf("Linux %s, owner %d: flags %#x, want %#x; errno %v", c.name, owner, got, want, errno)
			}
		}
	}
	r := &uring{}
	tries := 0
	errno := r.setup(Config{Depth: 4}, func(uint32, *uringParams) (int, syscall.Errno) { tries++; return -1, syscall.EINVAL })
	if errno != syscall.EINVAL || tries > 10 {
		t.Errorf("errno %v after %d tries", errno, tries)
	}
}

// A ring that the kernel takes nothing from any more: each request ends with
// the error, and nothing hangs.
func TestBrokenRing(t *testing.T) {
	f := openTest(t, 0)
	r, err := makeUring(Config{Depth: 4})
	if err != nil {
		t.Fatal(err)
	}
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Dup3(null, r.fd, unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	unix.Close(null)
	done := 0
	for i := range 3 {
		r.Prep(&rawio.IO{Kind: rawio.Write, Off: int64(i), Vec: [][]byte{{1}}, Done: func(io *rawio.IO) {
			if io.Err != syscall.EOPNOTSUPP || io.Off != int64(done) {
				t.Errorf("request at %d: error %v", io.Off, io.Err)
			}
			done++
		}}, f)
	}
	if err := r.Submit(); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("Submit: %v", err)
	}
	if r.InFlight() != 3 || r.Reap(0) != 3 || done != 3 || r.InFlight() != 0 || r.Stats().Refused != 3 {
		t.Errorf("%d done, %d in flight, %+v", done, r.InFlight(), r.Stats())
	}
	if err := r.Wait(time.Second); err == nil {
		t.Error("Wait on a broken ring: no error")
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// Where the layout of AIO's completion ring is unknown, and where the kernel
// cannot sync asynchronously.
func TestNativeOldWays(t *testing.T) {
	f := openTest(t, Direct)
	qq, err := New(Native, Config{Depth: 8})
	if err != nil {
		t.Fatal(err)
	}
	q := qq.(*native)
	q.ring, q.events = nil, make([]ioEvent, 3)
	io := &rawio.IO{Kind: rawio.Write, Vec: [][]byte{aligned(fileSize)}}
	run(t, q, f, io)
	ok(t, io, fileSize)
	contentRun(t, q, f, make([]byte, fileSize), 4096, 200)
	if !strings.Contains(q.Reason(), "unknown layout") {
		t.Errorf("reason: %s", q.Reason())
	}
	io = &rawio.IO{Kind: rawio.Fsync}
	if !q.Prep(io, f) {
		t.Fatal("full")
	}
	done := 0
	io.Done = func(*rawio.IO) { done++ }
	if q.notTaken(q.list[0], syscall.EINVAL) {
		t.Error("a sync that the kernel does not know was refused")
	}
	q.list = q.list[:0]
	wait(t, q, func() bool { return done == 1 })
	ok(t, io, 0)
	if q.InFlight() != 0 {
		t.Errorf("%d in flight", q.InFlight())
	}
	if err := q.Close(); err != nil {
		t.Error(err)
	}
}

// Completions that belong to nobody are counted and not delivered.
func TestStaleCompletions(t *testing.T) {
	var tab table
	if err := tab.init(3); err != nil {
		t.Fatal(err)
	}
	defer tab.iov.close()
	io := &rawio.IO{}
	_, tag, _ := tab.take(io)
	if tab.end(tag+1<<32) != nil || tab.end(tag+1) != nil || tab.end(3) != nil || tab.end(1<<40) != nil || tab.stale != 4 {
		t.Errorf("tags of no request were taken: %d stale", tab.stale)
	}
	if tab.end(tag) != io || tab.busy() != 0 {
		t.Error("the request was not found")
	}
	if tab.end(tag) != nil || tab.stale != 5 {
		t.Error("a second completion was taken")
	}
	io.Engine = 0
	_, again, _ := tab.take(io)
	if again == tag || tab.end(tag) != nil || tab.end(again) != io {
		t.Error("a completion of the slot's last request was taken for its present one")
	}
}

func TestChoose(t *testing.T) {
	all := Report{Uring: UringReport{EngineReport: EngineReport{Usable: true}}, Native: NativeReport{EngineReport: EngineReport{Usable: true}}}
	noRing := all
	noRing.Uring.EngineReport = EngineReport{Why: "the ring is forbidden"}
	none := noRing
	none.Native.EngineReport = EngineReport{Why: "AIO is forbidden"}
	for _, c := range []struct {
		want  string
		facts FileFacts
		rep   Report
		kind  Kind
		say   string // in the reason or the error
		fails bool
	}{
		{"", FileFacts{Direct: true, NoWait: true}, all, Uring, "io_uring", false},
		{"auto", FileFacts{NoWait: true}, all, Uring, "without blocking", false},
		{"auto", FileFacts{}, all, Uring, "threads of its own", false},
		{"auto", FileFacts{NeverBlocks: true, Direct: true}, all, Inline, "never blocks", false},
		{"auto", FileFacts{Direct: true}, noRing, Native, "the ring is forbidden", false},
		{"auto", FileFacts{}, noRing, Threads, "the ring is forbidden", false},
		{"auto", FileFacts{Direct: true}, none, Threads, "the ring is forbidden", false},
		{"io_uring", FileFacts{}, all, Uring, "asked for", false},
		{"io_uring", FileFacts{}, noRing, 0, "the ring is forbidden", true},
		{"native", FileFacts{Direct: true}, all, Native, "asked for", false},
		{"native", FileFacts{}, all, 0, "cache=none", true},
		{"native", FileFacts{Direct: true}, none, 0, "AIO is forbidden", true},
		{"threads", FileFacts{NeverBlocks: true}, all, Threads, "asked for", false},
		{"posix", FileFacts{}, all, 0, "use auto, io_uring, native or threads", true},
	} {
		kind, reason, err := choose(c.want, c.facts, c.rep)
		if err != nil {
			reason = err.Error()
		}
		if (err != nil) != c.fails || kind != c.kind || !strings.Contains(reason, c.say) {
			t.Errorf("%q %+v: %v, %q, error %v", c.want, c.facts, kind, reason, err)
		}
	}
	if _, _, err := Choose("auto", FileFacts{Direct: true}); err != nil {
		t.Error(err)
	}
}

// An engine that the choice fell on could not be started.
func TestInstead(t *testing.T) {
	full := fmt.Errorf("io_uring: %w: no file descriptor is left for a ring", ErrUnavailable)
	all := Report{Native: NativeReport{EngineReport: EngineReport{Usable: true}}}
	for _, c := range []struct {
		kind Kind
		file FileFacts
		rep  Report
		next Kind
		ok   bool
	}{
		{Uring, FileFacts{Direct: true}, all, Native, true},
		{Uring, FileFacts{}, all, Threads, true},
		{Uring, FileFacts{Direct: true}, Report{}, Threads, true},
		{Native, FileFacts{Direct: true}, all, Threads, true},
		{Threads, FileFacts{Direct: true}, all, 0, false},
		{Inline, FileFacts{NeverBlocks: true}, all, 0, false},
	} {
		next, reason, ok := instead(c.kind, c.file, c.rep, full)
		if next != c.next || ok != c.ok {
			t.Errorf("instead of %v for %+v: %v, %v, want %v, %v", c.kind, c.file, next, ok, c.next, c.ok)
		}
		if ok && !strings.Contains(reason, "because "+c.kind.String()+" could not be started: ") {
			t.Errorf("instead of %v: the reason is %q", c.kind, reason)
		}
	}
}
