package engine

import (
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

func probe() Report {
	return Report{Uring: probeUring(), Native: probeNative(), Threads: EngineReport{true, threadsWork}}
}

// probeUring makes a small ring as a locked owner would.
func probeUring() UringReport {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	rep := UringReport{Disabled: sysctl("kernel/io_uring_disabled")}
	r := &uring{}
	if errno := r.setup(Config{Depth: 1, Owner: Locked}, uringSetup); errno != 0 {
		rep.Errno, rep.Why = int(errno), uringRefusal(errno)
		return rep
	}
	defer unix.Close(r.fd)
	rep.Features = r.params.features
	for _, o := range optional {
		if r.params.flags&o.flag != 0 {
			rep.Setup = append(rep.Setup, o.name)
		}
	}
	if rep.Why = r.tooOld(); rep.Why != "" {
		return rep
	}
	var p uringProbe
	if uringOps(r.fd, &p) == 0 {
		rep.Operations = int(p.opsLen)
	}
	rep.Usable, rep.Why = true, "io_uring works, with "+strings.Join(rep.Setup, ", ")
	return rep
}

func probeNative() NativeReport {
	rep := NativeReport{MaxNr: sysctl("fs/aio-max-nr"), UsedNr: sysctl("fs/aio-nr")}
	ctx, errno := ioSetup(1)
	if errno != 0 {
		rep.Errno, rep.Why = int(errno), aioRefusal(errno, 1)
		return rep
	}
	ioDestroy(ctx)
	rep.Usable, rep.Why = true, "Linux AIO works, for files opened for direct I/O"
	return rep
}
