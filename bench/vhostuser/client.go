package main

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/virtio"
	wire "github.com/platter-storage/platter/wire/vhostuser"
)

// Where the shared memory begins, as the server sees it.
const (
	guestBase = 1 << 30
	userBase  = 1 << 40
)

// queueSize is the number of descriptors of each ring: three a request, without
// indirect tables, at the largest depth.
const queueSize = 512

// slotRoom is what a request has beside its data: header at 0, status at 64.
const (
	slotRoom = 128
	statusAt = 64
)

// features are what the client takes of what a server offers: split rings with
// event indexes, as most guests have.
const features = virtio.FeatureVersion1 | wire.FeatureProtocol | virtio.FeatureEventIdx |
	virtio.BlkFeatureFlush | virtio.BlkFeatureMQ | virtio.BlkFeatureSegMax | virtio.BlkFeatureSizeMax

const protocol = wire.ProtocolMQ | wire.ProtocolReplyAck | wire.ProtocolConfig

// client is a front end with its memory and rings: a machine that runs nothing
// but one loop for each queue.
type client struct {
	*wire.Frontend
	size    int64
	fd      int
	mem     []byte
	loaders []*loader
}

// connect goes to a server for a workload.
func connect(socket string, w workload) (*client, error) {
	fe, err := wire.DialFrontend(socket)
	if err != nil {
		return nil, err
	}
	c := &client{Frontend: fe, fd: -1}
	fe.Timeout = answerTimeout
	for _, step := range []func(w workload) error{c.negotiate, c.share, c.start} {
		if err := step(w); err != nil {
			return nil, errors.Join(err, c.leave())
		}
	}
	return c, nil
}

func (c *client) negotiate(w workload) error {
	offered, err := c.Features()
	if err != nil {
		return err
	}
	can, err := c.ProtocolFeatures()
	if err != nil {
		return err
	}
	if err := errors.Join(c.SetProtocolFeatures(can&protocol), c.SetOwner()); err != nil {
		return err
	}
	if n, err := c.QueueNum(); err != nil || n < w.queues {
		return errors.Join(err, fmt.Errorf("the server has %d queues, the row wants %d", n, w.queues))
	}
	b, err := c.GetConfig(0, 60)
	if err != nil {
		return err
	}
	var space virtio.BlkConfig
	space.Decode(b)
	c.size = int64(space.Capacity) * virtio.SectorSize
	if c.size < int64(w.block) {
		return fmt.Errorf("the disk has %d bytes, fewer than a request of %d", c.size, w.block)
	}
	return c.SetFeatures(offered & features)
}

// room is the memory of one queue: its ring, then its slots, each at a page.
func room(w workload) (ring, slot, all int) {
	desc, driver, device := virtio.AreaSizes(queueSize, features)
	ring = pages(desc) + pages(driver) + pages(device)
	slot = pages(w.block) + pages(slotRoom)
	return ring, slot, ring + w.depth*slot
}

func pages(n int) int { return (n + 4095) &^ 4095 }

func (c *client) share(w workload) (err error) {
	_, _, one := room(w)
	n := one * w.queues
	if c.fd, err = unix.MemfdCreate("bench", unix.MFD_CLOEXEC); err != nil {
		return err
	}
	if err = unix.Ftruncate(c.fd, int64(n)); err != nil {
		return err
	}
	if c.mem, err = unix.Mmap(c.fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE); err != nil {
		return err
	}
	return c.SetMemTable([]wire.Region{{GuestAddr: guestBase, Size: uint64(n), UserAddr: userBase}}, []int{c.fd})
}

func (c *client) start(w workload) error {
	_, _, one := room(w)
	for i := range w.queues {
		l, err := newLoader(i, c.size, c.mem[i*one:(i+1)*one], uint64(i*one), w)
		if l != nil {
			c.loaders = append(c.loaders, l)
		}
		if err != nil {
			return err
		}
		if err := c.setRing(l, uint64(i*one)); err != nil {
			return fmt.Errorf("queue %d: %w", i, err)
		}
	}
	return nil
}

func (c *client) setRing(l *loader, at uint64) error {
	desc, driver, _ := virtio.AreaSizes(queueSize, features)
	a := wire.VringAddr{Index: uint32(l.index), Desc: userBase + at}
	a.Avail = a.Desc + uint64(pages(desc))
	a.Used = a.Avail + uint64(pages(driver))
	for _, step := range []func() error{
		func() error { return c.SetVringNum(l.index, queueSize) },
		func() error { return c.SetVringBase(l.index, 0) },
		func() error { return c.SetVringAddr(a) },
		func() error { return c.SetVringFd(wire.SetVringCall, l.index, l.call) },
		func() error { return c.SetVringFd(wire.SetVringKick, l.index, l.kick) },
		func() error { return c.SetVringEnable(l.index, true) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	// Servers make the descriptor non-blocking, for both of us.
	return unix.SetNonblock(l.call, false)
}

// leave stops the rings and ends the connection.
func (c *client) leave() error {
	var errs []error
	for _, l := range c.loaders {
		if _, err := c.GetVringBase(l.index); err != nil {
			errs = append(errs, err)
		}
	}
	errs = append(errs, c.Close())
	for _, l := range c.loaders {
		errs = append(errs, unix.Close(l.kick), unix.Close(l.call))
	}
	if c.mem != nil {
		errs = append(errs, unix.Munmap(c.mem))
	}
	if c.fd >= 0 {
		errs = append(errs, unix.Close(c.fd))
	}
	return errors.Join(errs...)
}

// header writes a request's header. (virtio 1.2, 5.2.6)
func header(b []byte, op virtio.BlkOp, off int64) {
	binary.LittleEndian.PutUint32(b, uint32(op))
	binary.LittleEndian.PutUint64(b[8:], uint64(off)/virtio.SectorSize)
}
