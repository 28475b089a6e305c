package process

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Pinned is the processor that client and server share in rows that are pinned.
// Where one of them wakes the other on an idle processor the wake-up of a
// virtual processor (tens of microseconds here) is most of what depth 1 shows,
// and whether that happens is the scheduler's mood.
const Pinned = 0

// Pin binds every thread of process pid to one processor, until undo is called.
// Threads that are made meanwhile inherit it, and lose it as well.
func Pin(pid int) (undo func() error, err error) {
	var was, one unix.CPUSet
	if err := unix.SchedGetaffinity(pid, &was); err != nil {
		return nil, fmt.Errorf("processors of process %d: %w", pid, err)
	}
	one.Set(Pinned)
	if err := bind(pid, &one); err != nil {
		return nil, errors.Join(err, bind(pid, &was))
	}
	return func() error { return bind(pid, &was) }, nil
}

// bind binds all threads of a process, those included that start meanwhile.
func bind(pid int, set *unix.CPUSet) error {
	done := map[int]bool{}
	for more := true; more; {
		more = false
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			return err
		}
		for _, t := range tasks {
			tid, err := strconv.Atoi(t.Name())
			if err != nil || done[tid] {
				continue
			}
			done[tid], more = true, true
			if err := unix.SchedSetaffinity(tid, set); err != nil && err != unix.ESRCH {
				return fmt.Errorf("binding thread %d of process %d: %w", tid, pid, err)
			}
		}
	}
	return nil
}

// PinThread binds the calling thread, which its goroutine has locked, until undo
// is called.
func PinThread() (undo func(), err error) {
	var was, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &was); err != nil {
		return nil, fmt.Errorf("the client's processors: %w", err)
	}
	one.Set(Pinned)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return nil, fmt.Errorf("binding the client: %w", err)
	}
	return func() { _ = unix.SchedSetaffinity(0, &was) }, nil // it could be set before
}
