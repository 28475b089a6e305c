package qcow2

import "github.com/platter-storage/platter/block"

// copyBuffers lends memory for copy-on-write and compression: a fixed number of
// buffers, made when they are first needed, so that many writers to large clusters
// do not take all memory. Who holds one waits for the file, for backing files and
// for node.mu, never for a second.
type copyBuffers struct {
	free chan []byte // nil for one that is not made yet
	size int64
}

// copyMemory bounds all buffers of an image in bytes, where two of them do not
// need more.
const copyMemory = 32 << 20

func (c *copyBuffers) init(cluster int64) {
	if c.size == 2*cluster+1024 {
		return // the header was read again
	}
	c.size = 2*cluster + 1024
	count := max(2, min(64, copyMemory/c.size))
	c.free = make(chan []byte, count)
	for range count {
		c.free <- nil
	}
}

// take waits for a buffer of two clusters and two sectors, or the request's end.
func (c *copyBuffers) take(rq *block.Req) ([]byte, error) {
	select {
	case b := <-c.free:
		return c.made(b), nil
	default:
	}
	select {
	case b := <-c.free:
		return c.made(b), nil
	case <-rq.Context().Done():
		return nil, rq.Context().Err()
	}
}

func (c *copyBuffers) made(b []byte) []byte {
	if b == nil {
		b = alignedBytes(c.size)
	}
	return b
}

func (c *copyBuffers) put(b []byte) { c.free <- b }
