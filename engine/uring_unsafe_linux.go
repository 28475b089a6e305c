package engine

import (
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Sizes that the kernel relies on; a mistake does not compile.
var (
	_ [64]byte  = [unsafe.Sizeof(sqe{})]byte{}
	_ [16]byte  = [unsafe.Sizeof(cqe{})]byte{}
	_ [120]byte = [unsafe.Sizeof(uringParams{})]byte{}
	_ [24]byte  = [unsafe.Sizeof(getEventsArg{})]byte{}
)

// uringMem is a ring's memory, shared with the kernel.
type uringMem struct {
	ring, sqeMem []byte

	sqHead, sqTail, sqFlags *atomic.Uint32
	cqHead, cqTail          *atomic.Uint32
	sqMask, cqMask          uint32
	sqes                    []sqe
	cqes                    []cqe
}

func uringSetup(entries uint32, p *uringParams) (fd int, errno syscall.Errno) {
	r, _, errno := syscall.Syscall(unix.SYS_IO_URING_SETUP, uintptr(entries), uintptr(unsafe.Pointer(p)), 0)
	return int(r), errno
}

func (m *uringMem) mapRing(fd int, p *uringParams) error {
	n := max(p.sqOff.array+p.sqEntries*4, p.cqOff.cqes+p.cqEntries*uint32(unsafe.Sizeof(cqe{})))
	var err error
	m.ring, err = unix.Mmap(fd, offSQRing, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return err
	}
	m.sqeMem, err = unix.Mmap(fd, offSQEs, int(p.sqEntries)*int(unsafe.Sizeof(sqe{})), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		m.unmap()
		return err
	}
	word := func(off uint32) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&m.ring[off])) }
	m.sqHead, m.sqTail, m.sqFlags = word(p.sqOff.head), word(p.sqOff.tail), word(p.sqOff.flags)
	m.cqHead, m.cqTail = word(p.cqOff.head), word(p.cqOff.tail)
	m.sqMask, m.cqMask = word(p.sqOff.ringMask).Load(), word(p.cqOff.ringMask).Load()
	m.sqes = unsafe.Slice((*sqe)(unsafe.Pointer(&m.sqeMem[0])), p.sqEntries)
	m.cqes = unsafe.Slice((*cqe)(unsafe.Pointer(&m.ring[p.cqOff.cqes])), p.cqEntries)
	if p.flags&setupNoSQArray == 0 {
		array := unsafe.Slice((*uint32)(unsafe.Pointer(&m.ring[p.sqOff.array])), p.sqEntries)
		for i := range array {
			array[i] = uint32(i) // entry i of the ring is entry i of the table, for ever
		}
	}
	return nil
}

func (m *uringMem) unmap() {
	if m.sqeMem != nil {
		_ = unix.Munmap(m.sqeMem)
	}
	if m.ring != nil {
		_ = unix.Munmap(m.ring)
	}
	m.ring, m.sqeMem = nil, nil
}

// uringEnter submits and, with enterGetEvents, collects.
func uringEnter(fd int, submit, want uint32, flags uintptr) (int, syscall.Errno) {
	n, _, errno := syscall.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(fd), uintptr(submit), uintptr(want), flags, 0, 0)
	return int(n), errno
}

// uringWait waits for one completion; arg nil: without limit of time. arg and
// what it points to must be on the heap: it holds an address as an integer.
func uringWait(fd int, flags uintptr, arg *getEventsArg) syscall.Errno {
	var size uintptr
	if arg != nil {
		flags |= enterExtArg
		size = unsafe.Sizeof(*arg)
	}
	_, _, errno := syscall.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(fd), 0, 1, flags|enterGetEvents,
		uintptr(unsafe.Pointer(arg)), size)
	return errno
}

// uringWaitHolding is uringWait for a short time, which the scheduler is not
// told of.
func uringWaitHolding(fd int, flags uintptr, arg *getEventsArg) syscall.Errno {
	_, _, errno := syscall.RawSyscall6(unix.SYS_IO_URING_ENTER, uintptr(fd), 0, 1, flags|enterGetEvents|enterExtArg,
		uintptr(unsafe.Pointer(arg)), unsafe.Sizeof(*arg))
	return errno
}

// waitArg points arg at ts.
func waitArg(arg *getEventsArg, ts *timespec) { arg.ts = uint64(uintptr(unsafe.Pointer(ts))) }

func uringRegister(fd int, op uintptr, arg unsafe.Pointer, n int) (int, syscall.Errno) {
	r, _, errno := syscall.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(fd), op, uintptr(arg), uintptr(n), 0, 0)
	return int(r), errno
}

// uringRegisterEmptyFiles makes a table of n registered files, all empty.
func uringRegisterEmptyFiles(fd, n int) syscall.Errno {
	fds := make([]int32, n)
	for i := range fds {
		fds[i] = -1
	}
	_, errno := uringRegister(fd, registerFiles, unsafe.Pointer(&fds[0]), n)
	return errno
}

// uringSetFile puts file (or -1) into one place of the table.
func uringSetFile(fd, place, file int) syscall.Errno {
	f := int32(file)
	pf := &f
	up := filesUpdate{offset: uint32(place), fds: uint64(uintptr(unsafe.Pointer(pf)))}
	_, errno := uringRegister(fd, registerFilesUpdate, unsafe.Pointer(&up), 1)
	keep(pf)
	return errno
}

func uringRegisterEventfd(fd, efd int) syscall.Errno {
	e := int32(efd)
	_, errno := uringRegister(fd, registerEventfd, unsafe.Pointer(&e), 1)
	return errno
}

// uringRegisterRing gives the calling thread a short name for the ring.
func uringRegisterRing(fd int) (int, syscall.Errno) {
	up := ringFdUpdate{offset: ^uint32(0), data: uint64(fd)}
	_, errno := uringRegister(fd, registerRingFds, unsafe.Pointer(&up), 1)
	return int(up.offset), errno
}

// uringUnregisterRing takes the short name back, on the thread that has it.
func uringUnregisterRing(fd, name int) {
	up := ringFdUpdate{offset: uint32(name)}
	_, _ = uringRegister(fd, unregisterRingFds, unsafe.Pointer(&up), 1) // it is there
}

func uringOps(fd int, p *uringProbe) syscall.Errno {
	_, errno := uringRegister(fd, registerProbe, unsafe.Pointer(p), maxProbeOps)
	return errno
}

// keep holds p on the heap and alive: its address is in an integer.
//
//go:noinline
func keep(p any) { _ = p }
