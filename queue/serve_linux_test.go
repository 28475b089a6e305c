package queue

import (
	"testing"

	"github.com/platter-storage/platter/virtio"
)

func TestFirst(t *testing.T) {
	_, c := disk(t, newEnv(), "driver=null,size=1G", false)
	g := newGuest(t, guestConfig{size: 64})
	q := start(t, g, Config{Child: c})
	st, n := g.one(uint32(virtio.BlkIn), 8, 4096, 1, false)
	t.Log(st, n, q.Reason(), q.Stats())
}
