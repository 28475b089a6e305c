package engine

import (
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// optional are the set-up flags that a ring can do without, newest first: on
// a kernel that does not know one the ring is made without it.
var optional = []struct {
	flag  uint32
	owner Owner // the owner that has a use for it; AnyThread: everybody
	name  string
}{
	{setupNoSQArray, AnyThread, "no submission array"},
	{setupDeferTaskrun, Locked, "deferred completions"},
	{setupSingleIssuer, Locked, "single issuer"},
	{setupTaskrunFlag, Locked, "task-run flag"},
	{setupCoopTaskrun, Locked, "cooperative completions"},
	{setupSubmitAll, AnyThread, "submit all"},
}

func newUring(cfg Config) (Queue, error) {
	r, err := makeUring(cfg)
	if err != nil {
		return nil, err
	}
	return r, nil
}

func makeUring(cfg Config) (*uring, error) {
	r := &uring{fd: -1, wakeFd: -1, notify: -1, refused: newDoneList(cfg.Depth)}
	waitArg(&r.waitArg, &r.waitTime)
	waitArg(&r.holdArg, &r.holdTime)
	r.holds = cfg.Owner == Locked && !cfg.Yields
	if err := r.open(cfg); err != nil {
		r.release()
		return nil, fmt.Errorf("io_uring: %w", err)
	}
	return r, nil
}

func (r *uring) open(cfg Config) error {
	if errno := r.setup(cfg, uringSetup); errno != 0 {
		return fmt.Errorf("%w: %s", ErrUnavailable, uringRefusal(errno))
	}
	if why := r.tooOld(); why != "" {
		return fmt.Errorf("%w: %s", ErrUnavailable, why)
	}
	if err := r.mem.mapRing(r.fd, &r.params); err != nil {
		return fmt.Errorf("mapping a ring of %d entries: %w", cfg.Depth, err)
	}
	if err := r.table.init(cfg.Depth); err != nil {
		return fmt.Errorf("memory for %d slots: %w", cfg.Depth, err)
	}
	r.enterFd = r.fd
	if cfg.Owner == Locked {
		r.nameRing()
	}
	r.haveFiles = uringRegisterEmptyFiles(r.fd, regFiles) == 0
	efd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	r.wakeFd = efd
	return r.Watch(efd, func() {})
}

// release frees what there is. Nothing is in flight. The short name goes first:
// as long as the thread has it the ring lives, with the files that are
// registered in it and their locks.
func (r *uring) release() {
	if r.enterFlags != 0 {
		uringUnregisterRing(r.fd, r.enterFd)
		r.enterFlags = 0
	}
	for _, fd := range []int{r.notify, r.wakeFd, r.fd} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	r.mem.unmap()
	r.table.iov.close()
}

// setup makes the ring, with as many of the optional flags as the kernel takes.
func (r *uring) setup(cfg Config, try func(uint32, *uringParams) (int, syscall.Errno)) syscall.Errno {
	flags := uint32(setupClamp | setupCQSize)
	for _, o := range optional {
		if o.owner == AnyThread || o.owner == cfg.Owner {
			flags |= o.flag
		}
	}
	drop := 0
	for {
		r.params = uringParams{flags: usable(flags), cqEntries: uint32(2*cfg.Depth + 2*MaxWatch)}
		fd, errno := try(uint32(cfg.Depth), &r.params)
		if errno == 0 {
			r.fd = fd
			return 0
		}
		if errno != syscall.EINVAL || drop == len(optional) {
			return errno
		}
		flags &^= optional[drop].flag
		drop++
	}
}

// usable leaves out flags that contradict others: the kernel defers only for
// a single issuer, and cooperates only when it does not defer.
func usable(flags uint32) uint32 {
	if flags&setupDeferTaskrun != 0 {
		flags &^= setupCoopTaskrun
	}
	if flags&(setupDeferTaskrun|setupCoopTaskrun) == 0 {
		flags &^= setupTaskrunFlag
	}
	return flags
}

// tooOld says what a ring lacks that this code cannot do without.
func (r *uring) tooOld() string {
	const need = featSingleMmap | featNoDrop | featSubmitStable | featExtArg | featRsrcTags
	if r.params.features&need != need {
		return fmt.Sprintf("the kernel's io_uring has features %#x and needs %#x: use Linux 5.13 or later, or aio=threads", r.params.features, need)
	}
	var probe uringProbe
	if errno := uringOps(r.fd, &probe); errno != 0 {
		return fmt.Sprintf("the kernel does not list its io_uring operations (%v): use Linux 5.13 or later, or aio=threads", errno)
	}
	for _, op := range []uint8{opReadv, opWritev, opFsync, opPollAdd, opPollRemove, opRead, opWrite} {
		if probe.ops[op].flags&probeOpSupported == 0 {
			return fmt.Sprintf("the kernel's io_uring lacks operation %d: use Linux 5.13 or later, or aio=threads", op)
		}
	}
	return ""
}

// nameRing registers the ring with the owner's thread, which saves looking up
// the descriptor at each call.
func (r *uring) nameRing() {
	if n, errno := uringRegisterRing(r.fd); errno == 0 {
		r.enterFd, r.enterFlags = n, enterRegisteredRing
	}
}

// Reason lists what the ring has got.
func (r *uring) Reason() string {
	var has []string
	for _, o := range optional {
		if r.params.flags&o.flag != 0 {
			has = append(has, o.name)
		}
	}
	if r.enterFlags != 0 {
		has = append(has, "registered ring")
	}
	if r.haveFiles {
		has = append(has, "registered files")
	}
	return fmt.Sprintf("io_uring with %d slots: %s", r.Depth(), strings.Join(has, ", "))
}

// uringRefusal says in words why the kernel makes no ring, and what to do.
func uringRefusal(errno syscall.Errno) string {
	switch errno {
	case syscall.ENOSYS:
		return "the kernel has no io_uring, or a seccomp filter hides it (as many container profiles do): allow io_uring_setup, io_uring_enter and io_uring_register, or use aio=native or aio=threads"
	case syscall.EPERM, syscall.EACCES:
		return fmt.Sprintf("io_uring is not permitted (kernel.io_uring_disabled is %s; a seccomp filter or security module may forbid it too): set the sysctl to 0, or use aio=native or aio=threads", sysctl("kernel/io_uring_disabled"))
	case syscall.EINVAL:
		return "the kernel's io_uring is too old: use Linux 5.13 or later, or aio=native or aio=threads"
	case syscall.ENOMEM:
		return "no memory for a ring; on kernels before 5.12 RLIMIT_MEMLOCK counts it: raise it (ulimit -l, LimitMEMLOCK=), or use a smaller queue depth"
	case syscall.EMFILE, syscall.ENFILE:
		return "no file descriptor is left for a ring: raise the limit (ulimit -n, LimitNOFILE=)"
	}
	return fmt.Sprintf("io_uring_setup: %v; use aio=native or aio=threads", errno)
}

// sysctl reads a kernel setting, "unknown" if there is none.
func sysctl(name string) string {
	b, err := os.ReadFile("/proc/sys/" + name)
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(b))
}
