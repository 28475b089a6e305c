package virtio

import (
	"encoding/binary"
	"sync/atomic"
	"testing"
	"time"
)

// bell is what an eventfd is for a ring: rung any number of times, heard once.
type bell chan struct{}

func (b bell) ring() {
	select {
	case b <- struct{}{}:
	default:
	}
}

// hear waits for the bell; a minute without it is a wake-up lost.
func (b bell) hear(stop *atomic.Bool) bool {
	select {
	case <-b:
		return true
	case <-time.After(time.Minute):
		stop.Store(true)
		return false
	}
}

// TestBothSidesAtOnce runs driver and device at the same time. Each sleeps when
// there is nothing to do, as the ring's rules allow: a notification that is
// missing is a test that ends late and fails.
func TestBothSidesAtOnce(t *testing.T) {
	const requests = 20000
	eachKind(t, func(t *testing.T, features uint64) {
		for _, size := range []uint16{2, 16} {
			g := newGuest(size, features).start(t)
			kick, call := make(bell, 1), make(bell, 1)
			var stop atomic.Bool
			done := make(chan string, 1)
			go func() { done <- g.deviceLoop(requests, kick, call, &stop) }()
			if msg := g.driverLoop(requests, kick, call, &stop); msg != "" {
				t.Error("driver: " + msg)
			}
			stop.Store(true)
			kick.ring()
			if msg := <-done; msg != "" {
				t.Error("device: " + msg)
			}
		}
	})
}

// deviceLoop answers requests with their number and one.
func (g *guest) deviceLoop(requests int, kick, call bell, stop *atomic.Bool) string {
	c := Chain{}
	for served := 0; served < requests; {
		n := 0
		for {
			ok, err := g.ring.Pop(&c)
			if err != nil {
				return err.Error()
			}
			if !ok {
				break
			}
			if len(c.Out) != 1 || len(c.In) != 1 || binary.LittleEndian.Uint64(c.Out[0]) != uint64(served) {
				return "a request out of its turn"
			}
			binary.LittleEndian.PutUint64(c.In[0], uint64(served)+1)
			g.ring.Push(c.Handle, 8)
			served++
			n++
			if n%3 == 0 && g.ring.Publish() {
				call.ring()
			}
		}
		if g.ring.Publish() {
			call.ring()
		}
		if served == requests || g.ring.Arm() {
			continue
		}
		if !kick.hear(stop) {
			return "no kick"
		}
		if stop.Load() {
			return "stopped"
		}
		g.ring.Disarm()
	}
	return ""
}

func (g *guest) driverLoop(requests int, kick, call bell, stop *atomic.Bool) string {
	number := map[uint16]int{}
	added, back := 0, 0
	for back < requests {
		for added < requests && added-back < int(g.l.Size) {
			gpa := uint64(here + (added%int(g.l.Size))*64)
			binary.LittleEndian.PutUint64(g.at(gpa), uint64(added))
			id, ok := g.driver.Add([]Seg{{gpa, 8}}, []Seg{{gpa + 8, 8}}, added%4 == 0)
			if !ok {
				break
			}
			number[id] = added
			added++
			if added%5 == 0 && g.driver.Kick() {
				kick.ring()
			}
		}
		if g.driver.Kick() {
			kick.ring()
		}
		id, written, ok, err := g.driver.Next()
		switch {
		case err != nil:
			return err.Error()
		case ok:
			n := number[id]
			gpa := uint64(here + (n%int(g.l.Size))*64)
			if got := binary.LittleEndian.Uint64(g.at(gpa + 8)); written != 8 || got != uint64(n)+1 {
				return "a wrong answer"
			}
			back++
		case g.driver.Arm():
		default:
			if !call.hear(stop) {
				return "no call"
			}
			if stop.Load() {
				return "stopped"
			}
			g.driver.Disarm()
		}
	}
	return ""
}
