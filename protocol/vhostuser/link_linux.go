package vhostuser

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/sys"
	"github.com/platter-storage/platter/virtio"
	wire "github.com/platter-storage/platter/wire/vhostuser"
)

// answerTimeout bounds each answer of the server: it has nothing in flight when
// it is asked, or is asked for what takes no I/O.
const answerTimeout = 10 * time.Second

// wantedProtocol are the protocol features that we have a use for. Requests in
// flight are kept here, so the server's own record (INFLIGHT_SHMFD) is not among
// them. ("Protocol features")
const wantedProtocol = wire.ProtocolMQ | wire.ProtocolReplyAck | wire.ProtocolBackendReq | wire.ProtocolConfig | wire.ProtocolConfigureMemSlots

// wantedFeatures are the features that we have a use for. Without
// VIRTIO_BLK_F_CONFIG_WCE the server takes it that what we want to keep is
// flushed, and so it is. (5.2.6.2)
const wantedFeatures = virtio.FeatureVersion1 | wire.FeatureProtocol | virtio.FeatureIndirectDesc |
	virtio.BlkFeatureSizeMax | virtio.BlkFeatureSegMax | virtio.BlkFeatureRO | virtio.BlkFeatureBlkSize | virtio.BlkFeatureFlush |
	virtio.BlkFeatureTopology | virtio.BlkFeatureMQ | virtio.BlkFeatureDiscard | virtio.BlkFeatureWriteZeroes

// link is one connection to a server, with the memory that it shares.
type link struct {
	fe       *wire.Frontend
	channel  *wire.Conn // of the server's requests; nil without
	hangup   *os.File   // a second descriptor of the socket, to see its end
	memory   memory
	plan     plan
	shape    shape
	capacity int64
	protocol wire.Protocol
	queues   int
	calls    []*os.File
	kicks    []int
	rings    []*virtio.Driver
	progress atomic.Bool    // a request has ended
	running  sync.WaitGroup // goroutines that belong to it, and use until it is done
}

// dial connects, agrees with the server on features, and shares memory. Rings
// do not run yet.
func dial(ctx context.Context, c *config) (l *link, err error) {
	dialer := net.Dialer{Timeout: answerTimeout}
	conn, err := dialer.DialContext(ctx, "unix", c.path)
	if err != nil {
		return nil, err
	}
	l = &link{fe: wire.NewFrontend(conn.(*net.UnixConn))}
	l.fe.Timeout = answerTimeout
	stop := context.AfterFunc(ctx, func() { l.fe.Close() })
	err = l.begin(c)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		l.close()
		l.free()
		return nil, err
	}
	return l, nil
}

func (l *link) begin(c *config) error {
	for _, step := range []func(c *config) error{l.negotiate, l.describe, l.share, l.wire} {
		if err := step(c); err != nil {
			return err
		}
	}
	return nil
}

// negotiate agrees on features.
func (l *link) negotiate(c *config) error {
	offered, err := l.fe.Features()
	if err != nil {
		return err
	}
	if offered&wire.FeatureProtocol == 0 {
		return block.Errorf(syscall.EPROTONOSUPPORT, "the server has no protocol features: it could not even say how large the disk is")
	}
	can, err := l.fe.ProtocolFeatures()
	if err != nil {
		return err
	}
	l.protocol = can & wantedProtocol
	if l.protocol&wire.ProtocolConfig == 0 {
		return block.Errorf(syscall.EPROTONOSUPPORT, "the server lacks protocol feature CONFIG: it cannot say how large the disk is (it has %v)", can)
	}
	if err := l.fe.SetProtocolFeatures(l.protocol); err != nil {
		return err
	}
	l.queues = 1
	if l.protocol&wire.ProtocolMQ != 0 {
		if l.queues, err = l.fe.QueueNum(); err != nil {
			return err
		}
	}
	l.plan.features, err = c.choose(offered)
	return errors.Join(err, l.fe.SetOwner())
}

// choose takes from the features offered what we want.
func (c *config) choose(offered uint64) (uint64, error) {
	want := uint64(wantedFeatures)
	for _, x := range []struct {
		on, must bool
		feature  uint64
		name     string
	}{
		{true, true, virtio.FeatureVersion1, "VERSION_1, without which it is no virtio 1 device"},
		{c.event, false, virtio.FeatureEventIdx, ""},
		{c.packed, true, virtio.FeatureRingPacked, "packed rings: leave out packed=on"},
		{c.order, true, virtio.FeatureInOrder, "requests in order: leave out in-order=on"},
	} {
		if !x.on {
			continue
		}
		if want |= x.feature; x.must && offered&x.feature == 0 {
			return 0, block.Errorf(syscall.EPROTONOSUPPORT, "the server does not offer %s", x.name)
		}
	}
	return want & offered, nil
}

// describe asks what the disk is like.
func (l *link) describe(c *config) error {
	space, err := readSpace(l.fe)
	if err != nil {
		return err
	}
	if l.capacity, err = capacity(&space); err != nil {
		return err
	}
	if l.shape, err = shapeOf(&space, l.plan.features, c.size); err != nil {
		return err
	}
	l.queues = min(l.queues, l.shape.queues, MaxQueues)
	switch {
	case l.shape.readOnly && !c.readOnly:
		return block.Errorf(syscall.EROFS, "the server offers the disk read-only; open it read-only")
	case l.queues < 1 || l.queues < c.queues:
		return block.Errorf(syscall.EINVAL, "the server has %d queues, and %d are wanted: say queues=%d, or less", l.queues, c.queues, max(l.queues, 1))
	case c.queues > 0:
		l.queues = c.queues
	default:
		l.queues = min(l.queues, runtime.NumCPU(), autoQueues)
	}
	return l.fe.SetFeatures(l.plan.features)
}

// share makes the memory and shows it to the server.
func (l *link) share(c *config) (err error) {
	p := &l.plan
	p.size, p.places, p.chunks = c.size, c.size, max(c.memory/chunkSize, l.shape.segs)
	if p.features&virtio.FeatureIndirectDesc != 0 {
		p.tableLen = l.shape.segs + 2
	}
	if l.memory, err = newMemory(p.bytes() * l.queues); err != nil {
		return err
	}
	r := wire.Region{GuestAddr: guestBase, Size: uint64(len(l.memory.mem)), UserAddr: userBase}
	if l.protocol&wire.ProtocolConfigureMemSlots != 0 {
		return l.fe.AddMemReg(r, l.memory.fd)
	}
	return l.fe.SetMemTable([]wire.Region{r}, []int{l.memory.fd})
}

// wire gives each ring its descriptors and its place, and opens the channel of
// the server's requests.
func (l *link) wire(*config) error {
	for i := range l.queues {
		if err := l.wireQueue(i); err != nil {
			return fmt.Errorf("queue %d: %w", i, err)
		}
	}
	if l.protocol&wire.ProtocolBackendReq != 0 {
		var err error
		if l.channel, err = l.fe.OpenBackendChannel(); err != nil {
			return err
		}
	}
	return l.watchSocket()
}

func (l *link) wireQueue(i int) error {
	call, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return err
	}
	l.calls = append(l.calls, os.NewFile(uintptr(call), "call"))
	kick, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return err
	}
	l.kicks = append(l.kicks, kick)
	at := l.layout(i)
	ring, err := virtio.NewDriver(
		virtio.Layout{Size: uint16(l.plan.size), Features: l.plan.features, Desc: at.desc.b, Driver: at.driver.b, Device: at.device.b},
		virtio.Tables{Guest: at.tables.guest(), Mem: at.tables.b, Len: l.plan.tableLen})
	if err != nil {
		return err
	}
	l.rings = append(l.rings, ring)
	for _, step := range []func() error{
		func() error { return l.fe.SetVringNum(i, l.plan.size) },
		func() error { return l.fe.SetVringBase(i, virtio.StartBase(l.plan.features)) },
		func() error {
			return l.fe.SetVringAddr(wire.VringAddr{Index: uint32(i), Desc: at.desc.user(), Avail: at.driver.user(), Used: at.device.user(), Log: at.device.guest()})
		},
		func() error { return l.fe.SetVringFd(wire.SetVringCall, i, call) },
		func() error { return l.fe.SetVringFd(wire.SetVringKick, i, kick) },
		func() error { return l.fe.SetVringEnable(i, true) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// layout is the memory of queue i.
func (l *link) layout(i int) layout { return l.plan.lay(l.memory.mem, i*l.plan.bytes()) }

// watchSocket makes a second descriptor of the socket, of which nothing is
// read: the runtime tells when the server has closed its end.
func (l *link) watchSocket() error {
	raw, err := l.fe.Conn().Socket().SyscallConn()
	if err != nil {
		return err
	}
	dup := -1
	if bad := raw.Control(func(fd uintptr) { dup, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) }); bad != nil || err != nil {
		return errors.Join(bad, err)
	}
	l.hangup = os.NewFile(uintptr(dup), "vhost-user socket")
	return nil
}

// gone waits until the server has closed the connection, or we have.
func (l *link) gone() {
	raw, err := l.hangup.SyscallConn()
	if err != nil {
		return
	}
	// An error is the end of our own descriptor.
	_ = raw.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(p, 0)
		return n > 0 || err != nil && err != unix.EINTR
	})
}

// close ends the connection, and with it the goroutines that wait for it. The
// memory stays until nobody touches it.
func (l *link) close() {
	l.fe.Close()
	if l.channel != nil {
		l.channel.Close()
	}
	if l.hangup != nil {
		l.hangup.Close()
	}
	for _, f := range l.calls {
		f.Close()
	}
}

// free gives back what requests use, when none does any more.
func (l *link) free() {
	for _, fd := range l.kicks {
		sys.CloseFd(fd)
	}
	l.kicks = nil
	l.memory.free()
}
