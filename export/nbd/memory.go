package nbd

import (
	"sync/atomic"

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
	held  atomic.Int64
}

func newMemory(limit int64) *memory {
	pool := bufpool.New(bufpool.Config{Limit: limit})
	return &memory{pool: pool, limit: pool.Stats().Limit}
}

// close gives the memory back. No connection may be left.
func (m *memory) close() { _ = m.pool.Close() }

// share is what one connection holds. Only its reader takes; anybody gives
// back.
type share struct {
	mem   *memory
	max   int64
	held  atomic.Int64
	w     bufpool.Waiter
	ready chan struct{}
}

func (h *share) init(m *memory, most int) {
	h.mem, h.max, h.ready = m, int64(most), make(chan struct{}, 1)
	h.w.Ready = func(*bufpool.Waiter) { h.ready <- struct{}{} }
}

// take returns a buffer of n bytes, at most bufpool.MaxBuf, or nil where the
// rule, or how the pool is cut up, does not allow it. It never waits for
// anybody.
func (h *share) take(n int) []byte {
	size := classSize(n)
	if !h.reserve(size) {
		return nil
	}
	if !h.mem.pool.Get(&h.w, n) {
		if h.mem.pool.Cancel(&h.w) {
			h.unreserve(size)
			return nil
		}
		<-h.ready // granted in between: Ready has been or is being called
	}
	b := h.w.Buf
	h.w.Buf = nil
	h.unreserve(size - int64(cap(b))) // larger pages make larger buffers
	return b
}

// reserve takes size bytes of the memory's account, if the rule allows it.
func (h *share) reserve(size int64) bool {
	mine := h.held.Load() + size
	if mine > h.max {
		return false
	}
	for {
		all := h.mem.held.Load()
		if mine > h.mem.limit-all-size {
			return false
		}
		if h.mem.held.CompareAndSwap(all, all+size) {
			h.held.Add(size)
			return true
		}
	}
}

func (h *share) unreserve(size int64) {
	if size != 0 {
		h.mem.held.Add(-size)
		h.held.Add(-size)
	}
}

// classSize is what the pool cuts off for a buffer of n bytes.
func classSize(n int) int64 {
	size := int64(bufpool.MinBuf)
	for size < int64(n) {
		size *= 4
	}
	return size
}

// give gives a buffer back.
func (h *share) give(b []byte) {
	n := int64(cap(b))
	h.mem.pool.Put(b)
	h.unreserve(n)
}
