package nbd

import (
	"sync"
	"sync/atomic"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/bufpool"
	"github.com/platter-storage/platter/internal/rawio"
	wire "github.com/platter-storage/platter/wire/nbd"
)

// slot is a place for one request in flight, used again and again. It belongs
// to the reader from takeSlot until it is handed on, then to who runs the
// request, then to the ready list and its sender, who releases it.
//
// A long request is split: its slot becomes the parent of slots for the pieces,
// each with a Request of its own, and is ready when the last of them is.
type slot struct {
	rq  wire.Request
	req *block.Req // while the request runs; nil of a parent
	op  block.Op
	io  rawio.IO

	vec     block.Vec // the payload
	bufs    [][]byte  // what of it is to be given back to the share
	private bool      // it is in the connection's own buffer
	zero    bool      // it reads as zeroes, whatever is in the buffer

	errno wire.Errno // the answer
	msg   string
	errAt uint64 // where, of a parent
	head  [wire.MaxReplyHead]byte
	heads []byte // of chunks, where there are several
	body  []byte // a reply that is complete
	small [smallBody]byte
	// wanted are the contexts of a block status, as bits by their place in
	// the session.
	wanted uint64

	parent *slot
	pieces atomic.Int32 // of a parent: not yet ready, and one while there may be more
	next   *slot
}

const (
	// privateLen is the buffer for who is refused memory: what a connection
	// has of its own, so that it can go on whatever others do. It bounds
	// what need not be split, and is a multiple of every block.
	privateLen = 256 << 10
	// smallBody has room for a block status of one extent in two contexts.
	smallBody = 2 * (wire.ExtChunkLen + 8 + 16)
)

// takeSlot takes a free slot for the reader, and waits where all are in use.
func (c *conn) takeSlot() *slot {
	for {
		c.mu.Lock()
		s, gen := c.free, c.releases
		switch {
		case s != nil:
			c.free = s.next
		case c.made < len(c.slots):
			s = &slot{vec: make(block.Vec, 0, 1), bufs: make([][]byte, 0, 1)}
			s.io.Done, s.io.Owner = c.ioDone, uint64(c.made)
			c.slots[c.made] = s
			c.made++
		}
		if s != nil {
			c.used.Add(1)
			c.mu.Unlock()
			c.mine++
			s.next, s.parent, s.errno, s.msg, s.errAt, s.body, s.zero = nil, nil, 0, "", 0, nil, false
			return s
		}
		c.mu.Unlock()
		_ = c.push() // a cut connection still has to get its slots back
		c.awaitRelease(gen)
	}
}

// release frees a slot and what it holds.
func (c *conn) release(s *slot) {
	c.letGo(s)
	c.mu.Lock()
	s.next, c.free = c.free, s
	c.used.Add(-1)
	c.releases++
	wake := c.waiting
	c.waiting = false
	c.mu.Unlock()
	if wake {
		c.freed <- struct{}{}
	}
}

// releaseMine frees a slot that the reader has not handed on.
func (c *conn) releaseMine(s *slot) {
	c.mine--
	c.release(s)
}

// letGo gives back the memory that a slot holds.
func (c *conn) letGo(s *slot) {
	for i, b := range s.bufs {
		c.share.give(b)
		s.bufs[i] = nil
	}
	s.bufs = s.bufs[:0]
	clear(s.vec)
	s.vec = s.vec[:0]
	if s.private {
		s.private = false
		c.privBusy.Store(false)
	}
}

// awaitRelease waits until a slot has been released since gen was read.
func (c *conn) awaitRelease(gen uint64) {
	c.mu.Lock()
	if c.releases != gen {
		c.mu.Unlock()
		return
	}
	c.waiting = true
	c.mu.Unlock()
	<-c.freed
}

func (c *conn) releaseCount() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.releases
}

// hold gets a slot memory for n bytes, or, where less will do, for as much as
// there is of it; less only if n is at most bufpool.MaxBuf. It waits for
// requests of this connection, never for anybody else's. It returns 0 if all
// of n is wanted and not to be had.
func (c *conn) hold(s *slot, n int, all bool) int {
	for {
		gen := c.releaseCount()
		alone := int(c.used.Load()) <= c.mine // before trying: it may change at any time
		if k := c.tryHold(s, n, all); k > 0 {
			return k
		}
		if alone {
			return 0
		}
		_ = c.push() // a cut connection still has to get its memory back
		c.awaitRelease(gen)
	}
}

func (c *conn) tryHold(s *slot, n int, all bool) int {
	for left := n; ; left -= bufpool.MaxBuf {
		b := c.share.take(min(left, bufpool.MaxBuf))
		if b == nil {
			c.letGo(s)
			break
		}
		s.bufs, s.vec = append(s.bufs, b), append(s.vec, b)
		if left <= bufpool.MaxBuf {
			return n
		}
	}
	if all && n > privateLen || c.privBusy.Load() {
		return 0
	}
	if c.private == nil {
		c.private = alignedBytes(privateLen, block.MaxAlign)
	}
	c.privBusy.Store(true)
	n = min(n, privateLen)
	s.private, s.vec = true, append(s.vec, c.private[:n:n])
	return n
}

// readyList has the slots whose answers can be sent, in that order. Putting
// one there does not wait for who sends.
type readyList struct {
	n          atomic.Int32
	mu         sync.Mutex
	head, tail *slot
}

func (l *readyList) empty() bool { return l.n.Load() == 0 }

func (l *readyList) push(s *slot) {
	s.next = nil
	l.mu.Lock()
	if l.tail == nil {
		l.head = s
	} else {
		l.tail.next = s
	}
	l.tail = s
	l.n.Add(1)
	l.mu.Unlock()
}

// takeAll empties the list.
func (l *readyList) takeAll() *slot {
	l.mu.Lock()
	s := l.head
	l.head, l.tail = nil, nil
	l.n.Store(0)
	l.mu.Unlock()
	return s
}
