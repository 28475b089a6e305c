package queue

import (
	"fmt"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/virtio"
)

// attach takes up a ring.
func (q *Queue) attach(v Vring) error {
	if q.ring != nil {
		return fmt.Errorf("%s: it has a ring already: stop it first", q.name)
	}
	ring, err := q.newRing(v)
	if err != nil {
		return fmt.Errorf("%s: %w", q.name, err)
	}
	if err := q.setKick(v.Kick); err != nil {
		return err
	}
	q.disk = v.Disk
	if q.child.Info().ReadOnly || q.child.Perm()&block.PermWrite == 0 {
		q.disk.Features |= virtio.BlkFeatureRO
	}
	q.ring, q.layout, q.mem = ring, v.Layout, v.Map
	q.callFd, q.errFd = v.Call, v.Err
	q.broken, q.deaf = false, false
	q.setLog(v.Log, v.RingLog)
	if n := ring.Out(); n > 0 {
		q.log.Info(fmt.Sprintf("%s: %d requests were in flight when the former process ended: they are done again, first of all", q.name, n))
	}
	q.setState()
	return nil
}

// newRing reads the memory of the ring and of its records, which may be gone
// already.
func (q *Queue) newRing(v Vring) (r *virtio.Ring, err error) {
	defer recoverRing(&err)
	if v.Map == nil {
		return nil, fmt.Errorf("a ring without guest memory")
	}
	o := virtio.Options{Base: v.Base, Crash: q.ringHook}
	if v.Record.Mem != nil {
		packed := v.Layout.Features&virtio.FeatureRingPacked != 0
		if o.Inflight, err = virtio.NewInflight(v.Record.Mem, v.Record.Size, packed); err != nil {
			return nil, err
		}
	}
	return virtio.NewRing(v.Layout, v.Map, o)
}

// detach gives the ring up. Nothing is in flight. It answers where the ring, or
// the one that the queue had last, can go on. One that is broken cannot: what it
// had in flight has ended and nobody was told, so its records are emptied, for
// else the ring that follows the guest's reset would answer what it has not.
func (q *Queue) detach() (base uint32) {
	if q.ring == nil {
		return q.base
	}
	if q.broken {
		_ = q.forget() // records that are gone are empty
	}
	q.disarm()
	q.base = q.ring.Base()
	_ = q.setKick(-1) // there is nothing to watch: it cannot fail
	q.ring, q.mem, q.dirty = nil, nil, nil
	q.callFd, q.errFd = -1, -1
	q.enabled, q.broken = false, false
	q.setState()
	return q.base
}

// forget empties the ring's records, if their memory is there.
func (q *Queue) forget() (err error) {
	defer recoverFault(&err)
	q.ring.Forget()
	return nil
}

// setKick watches another descriptor.
func (q *Queue) setKick(fd int) error {
	if q.kickFd >= 0 {
		q.eng.Unwatch(q.kickFd)
	}
	q.kickFd = -1
	if fd < 0 {
		return nil
	}
	if err := q.eng.Watch(fd, kicked); err != nil {
		return fmt.Errorf("%s: the kick descriptor cannot be watched: %w", q.name, err)
	}
	q.kickFd = fd
	return nil
}

// setMap goes on with other guest memory. Nothing is in flight.
func (q *Queue) setMap(m *virtio.Map, desc, driver, device []byte) error {
	if q.ring == nil || q.broken {
		return nil // a broken ring is not touched any more
	}
	if err := q.remap(m, desc, driver, device); err != nil {
		return fmt.Errorf("%s: %w", q.name, err)
	}
	q.mem = m
	return nil
}

// addMemory goes on with guest memory that has all there was, at the same
// addresses: what is in flight still lies in it. False: it has not.
func (q *Queue) addMemory(m *virtio.Map, desc, driver, device []byte) bool {
	if q.ring == nil || !q.ring.Extend(m, desc, driver, device) {
		return false
	}
	q.mem = m
	return true
}

// remap moves the ring.
func (q *Queue) remap(m *virtio.Map, desc, driver, device []byte) (err error) {
	defer recoverRing(&err)
	return q.ring.Remap(m, desc, driver, device)
}

// setLog changes the dirty log. The ring marks its own pages in it.
func (q *Queue) setLog(l *virtio.Log, ring RingLog) {
	defer q.ringFault("marking the ring's pages in the dirty log")
	q.dirty = l
	if q.ring == nil || q.broken {
		return // a broken ring is not touched any more
	}
	if !ring.On {
		l = nil
	}
	q.ring.SetLog(l, ring.Desc, ring.Device)
}

func (q *Queue) setEnabled(on bool) {
	q.enabled = on
	q.setState()
}

// setState publishes the state for Stats.
func (q *Queue) setState() {
	s := Disabled
	switch {
	case q.ring == nil:
		s = Detached
	case q.broken:
		s = Broken
	case q.enabled:
		s = Enabled
	}
	q.state.Store(uint32(s))
}
