package vhostuser

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/platter-storage/platter/block"
)

// retryNs is how long to wait between two tries to reach a server, in
// nanoseconds.
const retryNs = int64(100 * time.Millisecond)

// errLost is what requests get that were on their way to a server that has
// gone.
var errLost = block.Errorf(syscall.ENOTCONN, "the vhost-user server has gone; whether the request was done is not known (reconnect=SECONDS waits for it)")

// use makes a connection the node's: its rings run. Requests that were on their
// way when the last one was lost go first.
func (n *node) use(l *link) {
	l.running.Add(1)
	defer l.running.Done()
	n.mu.Lock()
	n.link = l
	n.mu.Unlock()
	for _, q := range n.queues {
		again := q.take(l)
		n.spawn(l, func() { q.run(l) })
		q.launch(again)
	}
	n.spawn(l, func() {
		l.gone()
		n.env.Go(func() { n.lost(l, errLost, false) })
	})
	if l.channel != nil {
		n.spawn(l, func() { n.listen(l) })
	}
}

// spawn starts a goroutine that ends with the connection.
func (n *node) spawn(l *link, f func()) {
	l.running.Add(1)
	n.env.Go(func() { defer l.running.Done(); f() })
}

// run waits for the server's calls until the connection ends.
func (q *queue) run(l *link) {
	buf := make([]byte, 8)
	for {
		if _, err := l.calls[q.index].Read(buf); err != nil {
			return
		}
		for more := true; more; more = q.rest(l) {
			q.reap(l)
		}
	}
}

// take makes a fresh connection the queue's and grants it, in their order, the
// requests that were on their way: they hold places from before, which nobody
// touches any more, and there are as many as then.
func (q *queue) take(l *link) (again requests) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.touching > 0 {
		q.still.Wait()
	}
	q.attach(l)
	for _, r := range q.flying() {
		r.err = nil
		if !q.grant(r) {
			panic("vhostuser: no room for what had room before") // the shape is the same
		}
		again.push(r)
	}
	for q.waiting.first != nil && q.grant(q.waiting.first) {
		again.push(q.waiting.pop())
	}
	return again
}

// flying takes the requests that the server had when it went, in their order.
// Under mu.
func (q *queue) flying() (all []*request) {
	for r := q.held.pop(); r != nil; r = q.held.pop() {
		all = append(all, r)
	}
	for i, r := range q.out {
		if r != nil {
			all = append(all, r)
			q.out[i] = nil
		}
	}
	slices.SortFunc(all, func(a, b *request) int { return int(int64(a.seq - b.seq)) })
	return all
}

// detach takes the connection from all queues: nothing is launched any more.
func (n *node) detach() {
	for _, q := range n.queues {
		q.mu.Lock()
		q.link = nil
		q.mu.Unlock()
	}
}

// lost hears that a connection has ended, from anyone. lied says that the
// server broke the rules: one does not come back to such a server.
func (n *node) lost(l *link, why error, lied bool) {
	n.mu.Lock()
	if n.link != l || l == nil || n.closed {
		n.mu.Unlock()
		return
	}
	n.link = nil
	n.back.Add(1)
	if n.downSince == 0 || l.progress.Load() {
		n.downSince = n.env.Now()
	}
	end := n.downSince + n.cfg.reconnectSecs*int64(time.Second)
	n.mu.Unlock()
	n.detach()
	l.close()
	n.env.Go(func() {
		defer n.back.Done()
		l.running.Wait()
		n.detach() // from queues that use has given it to meanwhile
		n.settle()
		l.free()
		if lied || n.cfg.reconnectSecs == 0 {
			n.env.Log.Error("the vhost-user server is of no use any more", "disk", n.info.Filename, "error", why)
			n.fail(why)
			return
		}
		n.env.Log.Warn("the vhost-user server has gone: requests wait for it", "disk", n.info.Filename, "seconds", n.cfg.reconnectSecs)
		n.reconnect(end)
	})
}

// settle waits until nobody touches the memory of a connection that has ended.
func (n *node) settle() {
	for _, q := range n.queues {
		q.mu.Lock()
		for q.touching > 0 {
			q.still.Wait()
		}
		q.mu.Unlock()
	}
}

// fail ends all requests, those to come as well.
func (n *node) fail(why error) {
	cause := block.Errorf(block.Errno(why), "%v", why)
	n.mu.Lock()
	n.failed = cause
	n.mu.Unlock()
	for _, q := range n.queues {
		q.mu.Lock()
		q.err = cause
		all := q.flying()
		for r := q.waiting.pop(); r != nil; r = q.waiting.pop() {
			all = append(all, r)
		}
		q.mu.Unlock()
		for _, r := range all {
			r.count, r.err = 0, cause
			q.tell(r)
		}
	}
}

// reconnect tries until the server is back, the time end has come, or the node
// is closed. A server that comes back and goes again without ending a single
// request has not been back.
func (n *node) reconnect(end int64) {
	for n.pause() {
		err := n.redial()
		if err == nil {
			return
		}
		if n.env.Now() >= end {
			n.fail(fmt.Errorf("the vhost-user server has gone and was not back within %d s: %w", n.cfg.reconnectSecs, err))
			return
		}
	}
}

// pause waits before the next try. It answers false if the node was closed.
func (n *node) pause() bool {
	over := make(chan struct{})
	stop := n.env.After(retryNs, func() { close(over) })
	select {
	case <-over:
		return true
	case <-n.stop:
		stop()
		return false
	}
}

// redial connects anew, and goes on if it is the same disk.
func (n *node) redial() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan struct{})
	defer close(done)
	n.env.Go(func() {
		select {
		case <-n.stop:
			cancel()
		case <-done:
		}
	})
	l, err := dial(ctx, &n.cfg)
	if err != nil {
		return err
	}
	if err := n.sameDisk(l); err != nil {
		l.close()
		l.free()
		return err
	}
	n.use(l)
	n.info.SetSize(l.capacity)
	n.env.Log.Info("the vhost-user server is back", "disk", n.info.Filename)
	return nil
}

// sameDisk reports what is different about the server that came back.
func (n *node) sameDisk(l *link) error {
	switch {
	case l.shape != n.shape || l.queues != len(n.queues):
		return block.Errorf(syscall.ENXIO, "the server that came back has another disk or other features: %s; it had: %s", &l.shape, &n.shape)
	case l.capacity < n.info.Size():
		return block.Errorf(syscall.ENXIO, "the server that came back has a disk of %d bytes; it had %d", l.capacity, n.info.Size())
	}
	return nil
}
