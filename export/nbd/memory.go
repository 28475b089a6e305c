package nbd

import (
	"github.com/platter-storage/platter/internal/bufpool"
)
// memory is what all connections of a server hold payload in, between socket
// and disk. It is a pool of the server's own, not the nodes' pool of bounce
// buffers: payload waits for clients, some of which never come back, while a
// bounce buffer must come free as soon as storage is done with it; and who
// holds a buffer of a pool must not wait for another of the same pool.
//
// The rule that keeps a client from taking what others need: a connection
// holds at most Config.MaxInFlightBytes, and at most as much as is free after
// it has taken it. However many clients stall with all they could get, k of
// them leave at least 1/(k+1) of the memory. And nobody depends on it: what a
// connection is refused here passes through a buffer of its own, piece by
// piece.
type memory struct {
	pool  *bufpool.Pool
	limit int64
}

func newMemory(limit int64) *memory {
	pool := bufpool.New(bufpool.Config{Limit: limit})
	return &memory{pool: pool, limit: pool.Stats().Limit}
}

// close gives the memory back. No connection may be left.
func (m *memory) close() { _ = m.pool.Close() }
