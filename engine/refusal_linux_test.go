package engine

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/internal/rawio"
)

// A kernel that stays short of something: submissions are repeated a bounded
// number of times, with pauses, and then every request ends with the error.
func TestRetriesAreBounded(t *testing.T) {
	for _, c := range []struct {
		kind  Kind
		trap  uint32
		errno syscall.Errno
	}{
		{Uring, unix.SYS_IO_URING_ENTER, unix.EAGAIN},
		{Uring, unix.SYS_IO_URING_ENTER, unix.EBUSY},
		{Uring, unix.SYS_IO_URING_ENTER, unix.EINTR},
		{Native, unix.SYS_IO_SUBMIT, unix.EAGAIN},
	} {
		f := openTest(t, 0)
		onThread(func() {
			q, err := New(c.kind, Config{Depth: 4, Owner: Locked})
			if err != nil {
				t.Error(err)
				return
			}
			forbid(t, c.trap, c.errno)
			done := 0
			q.Prep(&rawio.IO{Kind: rawio.Write, Vec: [][]byte{{1}}, Done: func(io *rawio.IO) {
				if done++; io.Err != c.errno || io.N != 0 {
					t.Errorf("%v: %d bytes, error %v, want %v", c.kind, io.N, io.Err, c.errno)
				}
			}}, f)
			start := time.Now()
			if err := q.Submit(); err == nil || !strings.Contains(err.Error(), c.errno.Error()) {
				t.Errorf("%v: Submit returned %v, want %v", c.kind, err, c.errno)
			}
			if s := q.Stats(); s.Retries != maxTries && s.Retries != maxTries+1 || s.Refused != 1 {
				t.Errorf("%v, %v: %+v", c.kind, c.errno, s)
			}
			if d := time.Since(start); d < 50*time.Millisecond {
				t.Errorf("%v: %d tries within %v, which is a spin", c.kind, maxTries, d)
			}
			if q.Reap(0) != 1 || done != 1 || q.InFlight() != 0 {
				t.Errorf("%v: %d done, %d in flight", c.kind, done, q.InFlight())
			}
			if err := q.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// The poll of a ring's own eventfd could not be armed again, nobody was told,
// and the owner slept through every Wake. Wait fails until it can be armed; then
// all is well again. Close waits for completions in any case.
func TestWaitFailsWhileTheWakeUpIsLost(t *testing.T) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(p[0])
	defer unix.Close(p[1])
	for name, c := range map[string]cqe{"not armed": {res: unix.POLLIN}, "ended by an error": {res: -int32(unix.ENOMEM)}} {
		onThread(func() {
			r, err := makeUring(Config{Depth: 4, Owner: Locked})
			if err != nil {
				t.Error(err)
				return
			}
			done := 0
			r.Prep(&rawio.IO{Vec: [][]byte{{0}}, Done: func(*rawio.IO) { done++ }}, OpenFile(p[0], 0))
			if err := r.Submit(); err != nil {
				t.Error(err)
			}
			c.userData = r.watches[0].tag(0)
			fd := r.enterFd
			r.enterFd = -1 // the kernel refuses everything
			r.watchFired(c)
			for range 2 {
				if err := r.Wait(10 * time.Millisecond); err == nil || !strings.Contains(err.Error(), "not heard") {
					t.Errorf("%s: Wait returned %v", name, err)
				}
			}
			r.enterFd = fd
			r.Wake() // nobody hears it yet
			for range 2 {
				if err := r.Wait(time.Minute); err != nil {
					t.Errorf("%s: Wait returned %v though the kernel takes the poll again", name, err)
				}
				r.Reap(0)
				r.Wake()
			}
			time.AfterFunc(10*time.Millisecond, func() { _, _ = unix.Write(p[1], []byte{1}) })
			if err := r.Close(); err != nil || done != 1 {
				t.Errorf("%s: Close returned %v with %d of 1 done", name, err, done)
			}
		})
	}
}

func TestInterruptedCallsAreBounded(t *testing.T) {
	f := openTest(t, 0)
	onThread(func() {
		forbid(t, unix.SYS_PREAD64, unix.EINTR)
		io := &rawio.IO{Vec: [][]byte{{1}}}
		var c caller
		c.call(io, f)
		if io.Err != syscall.EINTR || io.N != 0 {
			t.Errorf("%d bytes, error %v, want EINTR", io.N, io.Err)
		}
	})
}

// Without pwritev2 a durable write is a write and a sync.
func TestDurableWriteOnOldKernels(t *testing.T) {
	f := openTest(t, 0)
	onThread(func() {
		forbid(t, unix.SYS_PWRITEV2, unix.ENOSYS)
		io := &rawio.IO{Kind: rawio.Write, Sync: true, Vec: [][]byte{{1, 2}, {3}}}
		var c caller
		if c.call(io, f); io.Err != nil || io.N != 3 {
			t.Errorf("%d bytes, error %v", io.N, io.Err)
		}
		io.Off = -1
		if c.call(io, f); io.Err != syscall.EINVAL || io.N != 0 {
			t.Errorf("failed write: %d bytes, error %v", io.N, io.Err)
		}
		forbid(t, unix.SYS_FDATASYNC, unix.EIO)
		io.Off = 0
		if c.call(io, f); io.Err != syscall.EIO || io.N != 0 {
			t.Errorf("failed sync: %d bytes, error %v", io.N, io.Err)
		}
	})
}

// What could be made is given back when the rest cannot.
func TestHalfMadeQueuesLeakNothing(t *testing.T) {
	before := count(t, "/proc/self/fd")
	onThread(func() {
		forbid(t, unix.SYS_EVENTFD2, unix.EMFILE)
		for _, kind := range kindsHere() {
			q, err := New(kind, Config{})
			if err == nil || !strings.Contains(err.Error(), "eventfd") {
				t.Errorf("%v without a descriptor for an eventfd: %v", kind, err)
			}
			if q != nil {
				q.Close()
			}
		}
		forbid(t, unix.SYS_EPOLL_CREATE1, unix.EMFILE)
		forbid(t, unix.SYS_IO_URING_REGISTER, unix.EINVAL)
		for _, kind := range kindsHere() {
			if _, err := New(kind, Config{}); err == nil {
				t.Errorf("%v: no error", kind)
			}
		}
	})
	if n := count(t, "/proc/self/fd"); n > before {
		t.Errorf("%d descriptors, %d before", n, before)
	}
	if n := mappings(t); n != 0 {
		t.Errorf("%d mappings of rings are left", n)
	}
}

// Each refusal names a way out.
func TestRefusals(t *testing.T) {
	for _, errno := range []syscall.Errno{unix.ENOSYS, unix.EPERM, unix.EACCES, unix.EINVAL, unix.ENOMEM, unix.EMFILE, unix.ENFILE, unix.EFAULT} {
		if s := uringRefusal(errno); !strings.Contains(s, "aio=") && !strings.Contains(s, "raise") {
			t.Errorf("io_uring, %v: no way out in %q", errno, s)
		}
	}
	for _, errno := range []syscall.Errno{unix.ENOSYS, unix.EPERM, unix.EAGAIN, unix.ENOMEM, unix.EINVAL} {
		if s := aioRefusal(errno, 128); !strings.Contains(s, "aio=threads") {
			t.Errorf("native, %v: no way out in %q", errno, s)
		}
	}
	if s := sysctl("no/such/setting"); s != "unknown" {
		t.Errorf("a setting that does not exist is %q", s)
	}
}

// Loops are filled one after the other, then by load.
func TestPick(t *testing.T) {
	s := &Shared{loops: []*loop{{}, {}, {}}}
	for _, c := range []struct {
		load [3]int32
		want int
	}{
		{[3]int32{0, 0, 0}, 0}, {[3]int32{loopFill - 1, 0, 0}, 0}, {[3]int32{loopFill, 0, 0}, 1},
		{[3]int32{loopFill, loopFill, 5}, 2}, {[3]int32{90, 80, 85}, 1}, {[3]int32{80, 80, 80}, 0},
	} {
		for i, l := range s.loops {
			l.load.Store(c.load[i])
		}
		if s.pick() != s.loops[c.want] {
			t.Errorf("loads %v: not loop %d", c.load, c.want)
		}
	}
}

// A filter that forbids pwritev2 with EPERM: durable writes are a write and a
// flush. Where the file itself may not be written, EPERM is the answer.
func TestDurableWriteWhereTheCallIsForbidden(t *testing.T) {
	f := openTest(t, 0)
	onThread(func() {
		var c caller
		write := func(b byte) *rawio.IO {
			io := &rawio.IO{Kind: rawio.Write, Sync: true, Vec: [][]byte{{b}, {b}}}
			c.call(io, f)
			return io
		}
		forbid(t, unix.SYS_PWRITEV2, unix.EPERM)
		if io := write(1); io.Err != nil || io.N != 2 {
			t.Errorf("pwritev2 is forbidden: %d bytes, error %v", io.N, io.Err)
		}
		io := &rawio.IO{Kind: rawio.Write, Vec: [][]byte{{3}}}
		if c.now(io, f) || !f.noNow[rawio.Write].Load() {
			t.Error("the forbidden call would be tried again and again")
		}
		forbid(t, unix.SYS_FDATASYNC, unix.EIO)
		if io := write(1); io.Err != unix.EIO {
			t.Errorf("the flush after the write fails: error %v, want EIO", io.Err)
		}
		forbid(t, unix.SYS_PWRITEV, unix.EPERM)
		if io := write(1); io.Err != unix.EPERM || io.N != 0 {
			t.Errorf("the file may not be written: %d bytes, error %v, want EPERM", io.N, io.Err)
		}
	})
}

// A watch that cannot be armed takes no place.
func TestWatchThatFailsTakesNoPlace(t *testing.T) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(p[0])
	defer unix.Close(p[1])
	onThread(func() {
		r, err := makeUring(Config{Depth: 4, Owner: Locked})
		if err != nil {
			t.Error(err)
			return
		}
		fd := r.enterFd
		r.enterFd = -1
		for range 2 * MaxWatch {
			if err := r.Watch(p[0], func() {}); err == nil || !strings.Contains(err.Error(), "did not take") {
				t.Errorf("a watch that the kernel refuses: %v", err)
			}
		}
		r.enterFd = fd
		fired := 0
		if err := r.Watch(p[0], func() { fired++ }); err != nil {
			t.Errorf("after that: %v", err)
		}
		if _, err := unix.Write(p[1], []byte{1}); err != nil {
			t.Error(err)
		}
		if err := r.Wait(time.Minute); err != nil || r.Reap(0) != 0 || fired == 0 {
			t.Errorf("the watch: %v, fired %d times", err, fired)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}
