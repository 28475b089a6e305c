package nbd

import (
	"bytes"
	"testing"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/block/blocktest"
	wire "github.com/platter-storage/platter/wire/nbd"
)

// What a client has asked for is not read for it when it has gone: it may have
// asked for hundreds of gigabytes.
func TestRequestsOfAClientThatHasGoneAreDropped(t *testing.T) {
	env := blocktest.NewEnv(t)
	group := block.NewQueueGroup()
	r := newRig(t, env, Config{}, Export{Child: disk(t, env, "file", 64*mib), Group: group})
	const asked = 4000
	var b bytes.Buffer
	for i := range asked {
		b.Write(request(wire.CmdRead, 0, uint64(i), 0, 32*mib))
	}
	c := r.raw(wire.ClientConfig{})
	c.send(b.Bytes())
	c.nc.Close()
	waitFor(t, "the connection to end", func() bool { return len(r.Connections()) == 0 })
	if n := group.Stats().Requests[block.OpRead]; n > asked {
		t.Errorf("%d reads were made for a client that had gone", n)
	}
}
