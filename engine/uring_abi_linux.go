package engine

// The kernel's io_uring interface, as in include/uapi/linux/io_uring.h. Names
// are the header's without IORING_.

const (
	setupCQSize       = 1 << 3  // 5.5
	setupClamp        = 1 << 4  // 5.6
	setupSubmitAll    = 1 << 7  // 5.18
	setupCoopTaskrun  = 1 << 8  // 5.19
	setupTaskrunFlag  = 1 << 9  // 5.19
	setupSingleIssuer = 1 << 12 // 6.0
	setupDeferTaskrun = 1 << 13 // 6.1
	setupNoSQArray    = 1 << 16 // 6.6

	featSingleMmap   = 1 << 0  // 5.4
	featNoDrop       = 1 << 1  // 5.5
	featSubmitStable = 1 << 2  // 5.5
	featExtArg       = 1 << 8  // 5.11
	featRsrcTags     = 1 << 10 // 5.13, which also brought multishot poll

	offSQRing = 0
	offSQEs   = 0x10000000

	sqCQOverflow = 1 << 1
	sqTaskrun    = 1 << 2

	enterGetEvents      = 1 << 0
	enterExtArg         = 1 << 3
	enterRegisteredRing = 1 << 4

	registerFiles       = 2
	registerEventfd     = 4
	registerFilesUpdate = 6
	registerProbe       = 8
	registerRingFds     = 20
	unregisterRingFds   = 21

	opNop        = 0
	opReadv      = 1
	opWritev     = 2
	opFsync      = 3
	opPollAdd    = 6
	opPollRemove = 7
	opRead       = 22
	opWrite      = 23

	sqeFixedFile     = 1 << 0
	cqeMore          = 1 << 1
	fsyncDatasync    = 1 << 0
	pollAddMulti     = 1 << 0
	probeOpSupported = 1 << 0
)

type sqe struct {
	opcode   uint8
	flags    uint8
	ioprio   uint16
	fd       int32
	off      uint64
	addr     uint64
	len      uint32
	opFlags  uint32
	userData uint64
	_        [2]uint16
	_        int32
	_        [2]uint64
}

type cqe struct {
	userData uint64
	res      int32
	flags    uint32
}

type sqOffsets struct {
	head, tail, ringMask, ringEntries, flags, dropped, array, _ uint32
	_                                                           uint64
}

type cqOffsets struct {
	head, tail, ringMask, ringEntries, overflow, cqes, flags, _ uint32
	_                                                           uint64
}

type uringParams struct {
	sqEntries, cqEntries, flags, sqThreadCPU, sqThreadIdle, features, wqFd uint32
	_                                                                      [3]uint32
	sqOff                                                                  sqOffsets
	cqOff                                                                  cqOffsets
}

type getEventsArg struct {
	sigmask   uint64
	sigmaskSz uint32
	_         uint32
	ts        uint64
}

type timespec struct{ sec, nsec int64 }

type filesUpdate struct {
	offset uint32
	_      uint32
	fds    uint64
}

type ringFdUpdate struct {
	offset uint32
	_      uint32
	data   uint64
}

const maxProbeOps = 64

type probeOp struct {
	op    uint8
	_     uint8
	flags uint16
	_     uint32
}

type uringProbe struct {
	lastOp uint8
	opsLen uint8
	_      uint16
	_      [3]uint32
	ops    [maxProbeOps]probeOp
}
