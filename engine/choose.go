package engine

import (
	"fmt"
	"strings"
)

// FileFacts are what the choice of an engine depends on.
type FileFacts struct {
	Direct      bool // opened for direct I/O
	NeverBlocks bool // in memory: tmpfs or a memfd, so a call costs only its copy
	NoWait      bool // RWF_NOWAIT works: the kernel can start a request without blocking
}

// Choose picks the engine for a file. want is the option's value: auto,
// io_uring, native or threads ("" is auto). reason is a sentence for people.
func Choose(want string, facts FileFacts) (kind Kind, reason string, err error) {
	return choose(want, facts, Probe())
}

func choose(want string, facts FileFacts, rep Report) (Kind, string, error) {
	switch want {
	case "", "auto":
		kind, reason := chooseAuto(facts, rep)
		return kind, reason, nil
	case "io_uring":
		if !rep.Uring.Usable {
			return 0, "", fmt.Errorf("aio=io_uring: %w: %s", ErrUnavailable, rep.Uring.Why)
		}
		return Uring, "io_uring, as asked for", nil
	case "native":
		if !facts.Direct {
			return 0, "", fmt.Errorf("aio=native: Linux AIO blocks the caller on files opened through the page cache: use it with cache=none or cache=directsync (direct I/O), or use aio=io_uring or aio=threads")
		}
		if !rep.Native.Usable {
			return 0, "", fmt.Errorf("aio=native: %w: %s", ErrUnavailable, rep.Native.Why)
		}
		return Native, "Linux AIO, as asked for", nil
	case "threads":
		return Threads, "worker threads, as asked for", nil
	}
	return 0, "", fmt.Errorf("aio=%s: there is no such engine: use auto, io_uring, native or threads", want)
}

// chooseAuto never fails: threads work everywhere.
func chooseAuto(facts FileFacts, rep Report) (Kind, string) {
	switch {
	case facts.NeverBlocks:
		return Inline, "calls on the queue's own thread: the file is in memory and never blocks"
	case rep.Uring.Usable && (facts.Direct || facts.NoWait):
		return Uring, "io_uring: the kernel offers it and starts requests on this file without blocking"
	case rep.Uring.Usable:
		return Uring, "io_uring: the kernel offers it; it hands each request on this file to threads of its own, because the file system cannot start one without blocking"
	case rep.Native.Usable && facts.Direct:
		return Native, "Linux AIO, because io_uring is not available: " + rep.Uring.Why
	}
	return Threads, "worker threads, because io_uring is not available: " + rep.Uring.Why
}

// Instead picks the engine to try for a file where kind, which Choose has
// picked, could not be started for the reason err: no descriptor or memory is
// left, or a limit is reached that a trial did not meet. ok is false where there
// is none, and for kinds that have nothing to start.
func Instead(kind Kind, facts FileFacts, err error) (next Kind, reason string, ok bool) {
	return instead(kind, facts, Probe(), err)
}

func instead(kind Kind, facts FileFacts, rep Report, err error) (Kind, string, bool) {
	why := fmt.Sprintf("because %v could not be started: %s", kind, strings.TrimPrefix(err.Error(), kind.String()+": "))
	switch {
	case kind == Uring && rep.Native.Usable && facts.Direct:
		return Native, "Linux AIO, " + why, true
	case kind == Uring || kind == Native:
		return Threads, "worker threads, " + why, true
	}
	return 0, "", false
}
