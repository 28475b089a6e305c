package bufpool

import "sync"

// enqueue puts w at the end of the queue. Under mu.
func (p *Pool) enqueue(w *Waiter) {
	w.queued, w.next, w.prev = true, nil, p.tail
	if p.tail == nil {
		p.head = w
	} else {
		p.tail.next = w
	}
	p.tail = w
	p.queueLen++
	p.waits++
}

// dequeue takes w out of the queue. Under mu.
func (p *Pool) dequeue(w *Waiter) {
	if w.prev == nil {
		p.head = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		p.tail = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.queued, w.next, w.prev = false, nil, nil
	p.queueLen--
}

// serve gives buffers to the first in the queue for as long as there are
// some, and returns those who got one, linked by next. It stops at the first
// who gets none: a large request is not starved by small ones. Under mu.
func (p *Pool) serve() (granted *Waiter) {
	var last *Waiter
	for p.head != nil {
		w := p.head
		u, ok := p.alloc(w.class)
		if !ok {
			return granted
		}
		p.dequeue(w)
		p.grant(w, u)
		if last == nil {
			granted = w
		} else {
			last.next = w
		}
		last = w
	}
	p.waiting.Store(false)
	return granted
}

// callReady tells a list of waiters. The link is read before the call: from
// then on the waiter may be queued again.
func callReady(w *Waiter) {
	for w != nil {
		next := w.next
		w.next = nil
		w.Ready(w)
		w = next
	}
}

// Cancel takes w out of the queue. False: w is not queued, because its buffer
// has been granted (Ready has been or is being called, and the buffer must be
// Put) or because it never asked.
func (p *Pool) Cancel(w *Waiter) bool {
	p.mu.Lock()
	if !w.queued {
		p.mu.Unlock()
		return false
	}
	p.dequeue(w)
	granted := p.serve() // w may have been the one who held up the others
	p.mu.Unlock()
	callReady(granted)
	return true
}

// blocked is a Waiter with a goroutine behind it.
type blocked struct {
	Waiter
	granted chan struct{}
}

var blockedPool = sync.Pool{New: func() any {
	b := &blocked{granted: make(chan struct{}, 1)}
	b.Ready = func(*Waiter) { b.granted <- struct{}{} }
	return b
}}

// GetWait returns a buffer of n bytes; the goroutine waits for it.
func (p *Pool) GetWait(n int) []byte {
	b := blockedPool.Get().(*blocked)
	if !p.Get(&b.Waiter, n) {
		<-b.granted
	}
	buf := b.Buf
	b.Buf = nil
	blockedPool.Put(b)
	return buf
}
