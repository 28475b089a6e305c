package blocktest

import (
	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/rawio"
)

// submit moves the bytes of a request that was mapped to a file.
func submit(op block.Op, m block.Mapping, v block.Vec, fl block.Flags) (int64, error) {
	done := make(chan struct{})
	io := &rawio.IO{Kind: rawio.Read, Off: m.Off, Vec: v, Done: func(*rawio.IO) { close(done) }}
	if op == block.OpWrite {
		io.Kind, io.Sync = rawio.Write, fl&block.FUA != 0
	}
	m.Leaf.Submit([]*rawio.IO{io})
	<-done
	return int64(io.N), io.Err
}
