package engine

import (
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The kernel's interface of include/uapi/linux/aio_abi.h.

const (
	iocbPread   = 0
	iocbPwrite  = 1
	iocbFdsync  = 3
	iocbPreadv  = 7
	iocbPwritev = 8

	iocbFlagResfd = 1
	aioRingMagic  = 0xa10a10a1
)

// iocb is struct iocb in little-endian order.
type iocb struct {
	data      uint64
	key       uint32
	rwFlags   uint32
	opcode    uint16
	reqprio   int16
	fd        uint32
	buf       uint64
	nbytes    uint64
	offset    int64
	reserved2 uint64
	flags     uint32
	resfd     uint32
}

const iocbSize = unsafe.Sizeof(iocb{})

type ioEvent struct {
	data, obj uint64
	res, res2 int64
}

// aioRing is the head of the completion ring that the kernel maps into the
// process at the context's address.
type aioRing struct {
	id, nr       uint32
	head, tail   atomic.Uint32
	magic        uint32
	compat       uint32
	incompat     uint32
	headerLength uint32
}

var (
	_ [64]byte = [unsafe.Sizeof(iocb{})]byte{}
	_ [32]byte = [unsafe.Sizeof(ioEvent{})]byte{}
	_ [32]byte = [unsafe.Sizeof(aioRing{})]byte{}
)

func ioSetup(n int) (ctx uintptr, errno syscall.Errno) {
	_, _, errno = syscall.Syscall(unix.SYS_IO_SETUP, uintptr(n), uintptr(unsafe.Pointer(&ctx)), 0)
	return ctx, errno
}

func ioDestroy(ctx uintptr) {
	_, _, _ = syscall.Syscall(unix.SYS_IO_DESTROY, ctx, 0, 0) // nothing is in flight: it cannot fail
}

// ioSubmit submits the iocbs whose addresses are in list.
func ioSubmit(ctx uintptr, list []uintptr) (int, syscall.Errno) {
	n, _, errno := syscall.Syscall(unix.SYS_IO_SUBMIT, ctx, uintptr(len(list)), uintptr(unsafe.Pointer(unsafe.SliceData(list))))
	return int(n), errno
}

// ioGetevents collects without waiting.
func ioGetevents(ctx uintptr, events []ioEvent) (int, syscall.Errno) {
	var zero timespec
	n, _, errno := syscall.Syscall6(unix.SYS_IO_GETEVENTS, ctx, 0, uintptr(len(events)),
		uintptr(unsafe.Pointer(unsafe.SliceData(events))), uintptr(unsafe.Pointer(&zero)), 0)
	return int(n), errno
}

func addrOfIocb(c *iocb) uintptr { return uintptr(unsafe.Pointer(c)) }

// aioRingOf finds the completion ring at the context's address: nil if what
// is there is not the layout we know.
func aioRingOf(ctx uintptr) (*aioRing, []ioEvent) {
	r := *(**aioRing)(unsafe.Pointer(&ctx))
	if r.magic != aioRingMagic || r.incompat != 0 || r.headerLength != uint32(unsafe.Sizeof(*r)) {
		return nil, nil
	}
	events := unsafe.Slice((*ioEvent)(unsafe.Add(unsafe.Pointer(r), r.headerLength)), r.nr)
	return r, events
}
