//go:build !race

package nbd

import (
	"io"
	"sync/atomic"
	"testing"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/block/blocktest"
	wire "github.com/platter-storage/platter/wire/nbd"
)

// everySecond admits a request when it is asked again.
type everySecond struct{ asked atomic.Uint64 }

func (e *everySecond) Admit(block.Op, int64, int64) int64 {
	if e.asked.Add(1)%2 == 0 {
		return 0
	}
	return 1000
}

// Holding requests back allocates nothing.
func TestHoldingBackAllocatesNothing(t *testing.T) {
	for name, open := range kinds {
		t.Run(name, func(t *testing.T) {
			env := blocktest.NewEnv(t)
			l := &everySecond{}
			r := newRig(t, env, Config{}, Export{Child: open(t, env), Limiter: l})
			c := r.raw(wire.ClientConfig{})
			const batch = 4
			var b []byte
			for i := range batch {
				b = append(b, request(wire.CmdRead, 0, uint64(i), 0, 4096)...)
			}
			got := make([]byte, batch*(wire.SimpleReplyLen+4096))
			var least float64
			var err error
			// Places and buffers are made when they are first needed, at any
			// time: what happens in each try counts.
			for try := 0; try == 0 || try < 5 && least > 0; try++ {
				n := testing.AllocsPerRun(200, func() {
					if _, werr := c.Write(b); werr != nil {
						err = werr
					}
					if _, rerr := io.ReadFull(c, got); rerr != nil {
						err = rerr
					}
				})
				if try == 0 {
					least = n
				}
				least = min(least, n)
			}
			if least != 0 || err != nil || l.asked.Load() < 2*batch*200 {
				t.Errorf("%v allocations in %d requests, %v; asked %d times", least, batch, err, l.asked.Load())
			}
		})
	}
}
