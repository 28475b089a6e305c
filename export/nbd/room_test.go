package nbd

import (
	"bytes"
	"slices"
	"testing"

	"github.com/platter-storage/platter/block/blocktest"
	wire "github.com/platter-storage/platter/wire/nbd"
)

// A client leaves while the replies to copied reads fill the buffer to
// its last bytes and a long read needs room in it for its head: making room
// fails, and the long read must not be in flight at the disk by then.
func TestClientLeavesWhereALongReadNeedsRoom(t *testing.T) {
	env := blocktest.NewEnv(t)
	r := newRig(t, env, Config{}, Export{Child: disk(t, env, "mem", 8*mib)})
	for round := range 20 {
		var b bytes.Buffer
		const head = wire.SimpleReplyLen
		full := outLen / (maxCopied + head)
		sizes := slices.Repeat([]int{maxCopied}, full)
		// What is left of the buffer then is less than a reply's head.
		sizes = append(sizes, outLen-full*(maxCopied+head)-head-(wire.MaxReplyHead-4), 2*maxCopied)
		for i, n := range sizes {
			b.Write(request(wire.CmdRead, 0, uint64(i), 0, uint64(n)))
		}
		c := r.raw(wire.ClientConfig{})
		c.send(b.Bytes())
		if round%2 == 0 {
			c.nc.Close()
			continue
		}
		for range sizes {
			c.recv(sizes[c.simple().Cookie])
		}
	}
	bystanderAt(t, r.dial(wire.ClientConfig{}, wire.ClientOptions{}), 0, 1)
}
