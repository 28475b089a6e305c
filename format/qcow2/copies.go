package qcow2

import (
	"sync"

	"github.com/platter-storage/platter/block"
)

// copyBuffers lends memory for copy-on-write and decompression: at most slots
// buffers of at most two clusters at a time, so that many writers to large
// clusters do not take all memory. Who holds one waits for the file, for backing
// files and for node.mu, never for a second.
type copyBuffers struct {
	slots chan struct{}
	pool  sync.Pool
	size  int64
}

// copyMemory bounds all buffers of an image in bytes, where two clusters do not
// need more.
const copyMemory = 32 << 20

func (c *copyBuffers) init(cluster int64) {
	c.size = 2*cluster + 1024
	c.slots = make(chan struct{}, max(2, min(64, copyMemory/c.size)))
	c.pool.New = func() any { return alignedBytes(c.size) }
}

// take waits for a buffer of at least length bytes, or the request's end.
func (c *copyBuffers) take(rq *block.Req, length int64) ([]byte, error) {
	select {
	case c.slots <- struct{}{}:
	default:
		select {
		case c.slots <- struct{}{}:
		case <-rq.Context().Done():
			return nil, rq.Context().Err()
		}
	}
	return c.pool.Get().([]byte), nil
}

func (c *copyBuffers) put(b []byte) {
	c.pool.Put(b) //nolint:staticcheck // a slice header is small beside a cluster
	<-c.slots
}
