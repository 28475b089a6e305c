package vhostuser

import (
	"context"
	"fmt"

	"github.com/platter-storage/platter/queue"
	"github.com/platter-storage/platter/virtio"
	wire "github.com/platter-storage/platter/wire/vhostuser"
)

// vring is a virtqueue as the front end has described it so far.
type vring struct {
	index int

	num     int // descriptors; 0: not said
	addr    wire.VringAddr
	hasAddr bool
	base    uint32
	hasBase bool

	kick, call, err int  // descriptors, ours; -1: none
	hasKick         bool // SET_VRING_KICK came, with a descriptor or without
	enabled         bool

	q        *queue.Queue // made when the ring starts first
	depth    int          // of q
	attached bool         // the ring runs, enabled or not
	early    bool         // it was said that it cannot start yet
}

// ringAreas is where a ring lies in memory of ours.
type ringAreas struct{ desc, driver, device []byte }

// areas finds the ring in m.
func (v *vring) areas(m *virtio.Map, features uint64) (a ringAreas, err error) {
	desc, driver, device := virtio.AreaSizes(uint16(v.num), features)
	for _, x := range []struct {
		to   *[]byte
		name string
		at   uint64
		n    int
	}{{&a.desc, "descriptors", v.addr.Desc, desc}, {&a.driver, "available ring", v.addr.Avail, driver}, {&a.device, "used ring", v.addr.Used, device}} {
		if *x.to = m.User(x.at, uint64(x.n)); *x.to == nil {
			return a, fmt.Errorf("its %s (%d bytes at user address %#x) are not in one region of guest memory", x.name, x.n, x.at)
		}
	}
	return a, nil
}

// ringLog says where the ring's own writes are logged. What the front end says
// is where the used ring is; the descriptors of a packed ring are written too.
func (v *vring) ringLog(s *session) queue.RingLog {
	l := queue.RingLog{On: v.addr.Flags&wire.VringLog != 0, Device: v.addr.Log}
	if s.features&virtio.FeatureRingPacked != 0 && s.mem != nil {
		l.Desc, _ = s.mem.UserToGuest(v.addr.Desc)
		if gpa, ok := s.mem.UserToGuest(v.addr.Used); ok {
			l.Device = gpa
		}
	}
	return l
}

// vring is the one that a message is about.
func (s *session) vring(index uint32) (*vring, error) {
	if index >= uint32(len(s.vrings)) {
		return nil, fmt.Errorf("there is no queue %d: the device has %d (--vhost-user …,queues=N)", index, len(s.vrings))
	}
	return &s.vrings[index], nil
}

// stopped is the vring of a message that is possible only while it stands
// still, and the message's number.
func (s *session) stopped(m *wire.Message) (*vring, uint32, error) {
	st, err := m.VringState()
	if err != nil {
		return nil, 0, err
	}
	v, err := s.vring(st.Index)
	if err != nil {
		return nil, 0, err
	}
	if v.attached {
		return nil, 0, fmt.Errorf("queue %d runs: stop it first with GET_VRING_BASE", v.index)
	}
	return v, st.Num, nil
}

func (s *session) getQueueNum(m *wire.Message) error {
	return s.conn.Ack(m, uint64(s.d.cfg.Queues))
}

func (s *session) setVringNum(m *wire.Message) error {
	v, num, err := s.stopped(m)
	switch {
	case err != nil:
		return err
	case num == 0 || num > uint32(s.d.cfg.QueueSize):
		return fmt.Errorf("queue %d of %d descriptors: from 1 to %d are possible (--vhost-user …,size=N)", v.index, num, s.d.cfg.QueueSize)
	case num&(num-1) != 0 && s.features&virtio.FeatureRingPacked == 0:
		return fmt.Errorf("queue %d of %d descriptors: a split ring has a power of two", v.index, num)
	}
	v.num = int(num)
	return s.start(v)
}

func (s *session) setVringBase(m *wire.Message) error {
	v, base, err := s.stopped(m)
	if err != nil {
		return err
	}
	if base > 0xffff && s.chosen && s.features&virtio.FeatureRingPacked == 0 {
		return fmt.Errorf("queue %d begins at %#x: the index of a split ring has 16 bits", v.index, base)
	}
	v.base, v.hasBase = base, true
	return nil
}

// setVringAddr says where a ring lies. For one that runs it switches the log
// of its own writes, which a migration does, or moves it.
func (s *session) setVringAddr(m *wire.Message) error {
	a, err := m.VringAddr()
	if err != nil {
		return err
	}
	v, err := s.vring(a.Index)
	if err != nil {
		return err
	}
	if a.Flags&^wire.VringLog != 0 {
		return fmt.Errorf("flags %#x of queue %d are not known", a.Flags, v.index)
	}
	moved := a.Desc != v.addr.Desc || a.Avail != v.addr.Avail || a.Used != v.addr.Used
	if v.attached && !moved {
		v.addr = a
		return v.q.SetLog(s.activeLog(), v.ringLog(s))
	}
	if v.attached {
		s.detach(v)
	}
	v.addr, v.hasAddr = a, true
	return s.start(v)
}

// setVringFd takes the eventfd for kicks, calls or errors of a queue.
func (s *session) setVringFd(m *wire.Message) error {
	f, err := m.VringFd()
	if err != nil {
		return err
	}
	v, err := s.vring(uint32(f.Index))
	if err != nil {
		return err
	}
	fd := -1
	if !f.NoFd {
		if err := checkEventFd(m.Fds.Fd(0)); err != nil {
			return fmt.Errorf("queue %d: %w", v.index, err)
		}
		fd = m.Fds.Take(0)
	}
	switch m.Request {
	case wire.SetVringKick:
		v.hasKick = true
		if err := v.replaceFd(&v.kick, fd, v.q.SetKick); err != nil {
			return err
		}
		return s.start(v)
	case wire.SetVringCall:
		return v.replaceFd(&v.call, fd, v.q.SetCall)
	}
	return v.replaceFd(&v.err, fd, v.q.SetErr)
}

// replaceFd puts a descriptor in the place of another one, which the queue lets
// go of first.
func (v *vring) replaceFd(at *int, fd int, tell func(int) error) error {
	old := *at
	*at = fd
	var err error
	if v.attached {
		err = tell(fd)
	}
	closeFd(old)
	return err
}

func (s *session) setVringEnable(m *wire.Message) error {
	st, err := m.VringState()
	if err != nil {
		return err
	}
	v, err := s.vring(st.Index)
	switch {
	case err != nil:
		return err
	case st.Num > 1:
		return fmt.Errorf("queue %d: %d is neither 0 (disable) nor 1 (enable)", v.index, st.Num)
	}
	v.enabled = st.Num == 1
	if !v.attached {
		return s.start(v)
	}
	return v.enable()
}

// enable lets the ring's requests be taken, or not. One that is disabled is
// quiet when the front end hears of it: Cloud Hypervisor pauses a machine so,
// and then saves its memory.
func (v *vring) enable() error {
	err := v.q.Enable(v.enabled)
	if err == nil && !v.enabled {
		err = v.q.Drain(context.Background())
	}
	return err
}

// getVringBase stops a ring: what is in flight ends first and is published.
func (s *session) getVringBase(m *wire.Message) error {
	st, err := m.VringState()
	if err != nil {
		return err
	}
	v, err := s.vring(st.Index)
	if err != nil {
		return err
	}
	s.detach(v)
	v.dropKick()
	return s.conn.Reply(m, wire.VringState{Index: st.Index, Num: v.base}.Append(nil))
}

// dropKick lets go of the kick of a ring that has stopped: it starts again when
// it is given another one.
func (v *vring) dropKick() {
	closeFd(v.kick)
	v.kick, v.hasKick = -1, false
}

// detach stops a ring if it runs; the front end may start it where it stopped.
func (s *session) detach(v *vring) {
	if !v.attached {
		return
	}
	base, err := v.q.Stop(context.Background())
	if err != nil {
		s.log.Warn("a queue has stopped badly", "queue", v.index, "error", err)
	}
	v.base, v.hasBase, v.attached = base, true, false
}

// start lets a ring run once all is known that it needs. A front end may tell
// it in any order. Kicks are not waited for: after a restart of ours there may
// be requests for which none comes. ("Ring states")
func (s *session) start(v *vring) error {
	if v.attached || !v.hasKick {
		return nil
	}
	if v.num == 0 || !v.hasAddr || s.mem == nil {
		if !v.early {
			v.early = true
			s.log.Warn("a kick was set up for a queue before its size, addresses and memory: it starts when they have come", "queue", v.index,
				"size", v.num, "has_addresses", v.hasAddr, "has_memory", s.mem != nil)
		}
		return nil
	}
	if err := s.attach(v); err != nil {
		return fmt.Errorf("queue %d cannot start: %w", v.index, err)
	}
	s.sendPending()
	return nil
}

// startReady starts the rings that have been waiting for memory.
func (s *session) startReady() error {
	for i := range s.vrings {
		if err := s.start(&s.vrings[i]); err != nil {
			return err
		}
	}
	return nil
}

func (s *session) attach(v *vring) error {
	if v.num&(v.num-1) != 0 && s.features&virtio.FeatureRingPacked == 0 {
		return fmt.Errorf("%d descriptors: a split ring has a power of two", v.num)
	}
	a, err := v.areas(s.mem, s.features)
	if err != nil {
		return err
	}
	record, err := s.recordOf(v)
	if err != nil {
		return err
	}
	if err := s.meet(v); err != nil {
		return err
	}
	if err := s.makeQueue(v); err != nil {
		return err
	}
	base := v.base
	if !v.hasBase {
		base = virtio.StartBase(s.features)
	}
	err = v.q.Attach(queue.Vring{
		Layout: virtio.Layout{Size: uint16(v.num), Features: s.features, Desc: a.desc, Driver: a.driver, Device: a.device},
		Base:   base, Map: s.mem, Disk: s.disk(), Kick: v.kick, Call: v.call, Err: v.err,
		Log: s.activeLog(), RingLog: v.ringLog(s), Record: record,
	})
	if err != nil {
		return err
	}
	v.attached = true
	if err := v.q.Enable(v.enabled); err != nil {
		return err
	}
	// A predecessor may have died between publishing and telling of it: the
	// guest would wait for ever for what it has already.
	return v.q.SetCall(v.call)
}

// makeQueue makes the queue that serves the ring, or one for more requests at
// once.
func (s *session) makeQueue(v *vring) error {
	depth := min(v.num, queue.MaxDepth)
	if v.q != nil && v.depth >= depth {
		return nil
	}
	if v.q != nil {
		if err := v.q.Close(context.Background()); err != nil {
			return err
		}
		v.q = nil
	}
	q, err := queue.Start(s.d.queueConfig(v.index, depth))
	if err != nil {
		return err
	}
	q.SetWriteback(s.flushing)
	v.q, v.depth = q, depth
	return nil
}
