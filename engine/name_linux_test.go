package engine

import (
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/internal/rawio"
)

// A ring that is closed lets go of the files that were registered in it, though
// its thread lives on: the lock on one can be had again.
func TestClosedRingKeepsNoFile(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	name := t.TempDir() + "/file"
	if err := os.WriteFile(name, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	first, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	lock := unix.Flock_t{Type: unix.F_WRLCK, Len: 1}
	if err := unix.FcntlFlock(first.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
		t.Fatal(err)
	}
	q, err := New(Uring, Config{Depth: 4, Owner: Locked})
	if err != nil {
		t.Fatal(err)
	}
	f := OpenFile(int(first.Fd()), Registrable)
	io := &rawio.IO{Kind: rawio.Read, Vec: [][]byte{make([]byte, 4096)}}
	run(t, q, f, io)
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	first.Close()
	second, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if err = unix.FcntlFlock(second.Fd(), unix.F_OFD_SETLK, &lock); err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the lock is still held a minute after the ring was closed: %v", err)
		}
	}
}
