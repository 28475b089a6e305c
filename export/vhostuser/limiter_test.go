package vhostuser

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/block/blocktest"
	"github.com/platter-storage/platter/virtio"
)

// noWrites is a limiter that never admits a write, and everything else.
type noWrites struct{ held atomic.Int64 }

func (l *noWrites) Admit(op block.Op, _, _ int64) int64 {
	if op != block.OpWrite {
		return 0
	}
	l.held.Add(1)
	return 1e15
}

// A request that its limits hold back delays its own queue alone, and the guest
// can stop that as if there were no limits: what is behind it stays in the ring.
func TestHeldBackDelaysItsQueueAlone(t *testing.T) {
	for name, features := range rings {
		t.Run(name, func(t *testing.T) {
			l := &noWrites{}
			r := newRig(t, blocktest.EmulatorConfig{}, Config{Limiter: l, InOrder: true})
			m := newVM(t, 2, 64, features|virtio.BlkFeatureMQ)
			m.connect(r, allProtocol)
			m.start()
			q, other := m.queues[0], m.queues[1]
			write := q.offer(virtio.BlkOut, 0, 4096, true)
			behind := q.offer(virtio.BlkIn, 64, 4096, false)
			for end := time.Now().Add(patience); l.held.Load() == 0; time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("the limiter is not asked")
				}
			}
			if st := other.do(virtio.BlkFlush, 0, 0, false); st != virtio.BlkOK {
				t.Errorf("flush of another queue: status %d", st)
			}
			if k, ok := q.poll(); ok {
				t.Errorf("request %d is done", k)
			}
			base, err := m.GetVringBase(0)
			m.must(err)
			if k := q.next(); k != write || q.status(k) != virtio.BlkOK {
				t.Errorf("request %d is done with status %d: the write had been taken", k, q.status(k))
			}
			if k, ok := q.poll(); ok {
				t.Errorf("request %d is done, which was behind the one that waited", k)
			}
			q.base = base
			q.set()
			m.must(m.SetVringEnable(0, true))
			if k := q.next(); k != behind || q.status(k) != virtio.BlkOK {
				t.Errorf("after the start: request %d, status %d", k, q.status(k))
			}
			m.leave(r)
		})
	}
}
