package nbd

const (
	// maxBatchIov and maxBatchBytes bound what one write sends, so that
	// slots come free while more is on its way.
	maxBatchIov   = 200
	maxBatchBytes = 1 << 20
)

// kick sends what is ready, unless somebody is at it already: then he will see
// what was put on the list before he looks the last time.
func (c *conn) kick() {
	for !c.ready.empty() && c.sendMu.TryLock() {
		c.sendReady(nil)
		c.sendMu.Unlock()
	}
}

// sendReady sends first and then all that is ready, in as few calls as the
// bounds allow, and frees the slots. Called with sendMu held.
func (c *conn) sendReady(first []byte) {
	c.iov = c.iov[:0]
	if len(first) > 0 {
		c.iov = append(c.iov, first)
	}
	size := 0
	for {
		s := c.ready.takeAll()
		if s == nil {
			break
		}
		for s != nil {
			next := s.next
			c.iov = c.appendReply(c.iov, s)
			c.sending = append(c.sending, s)
			size += int(s.vec.Len())
			if s = next; len(c.iov) > maxBatchIov || size >= maxBatchBytes {
				c.flush()
				size = 0
			}
		}
	}
	c.flush()
}

// flush writes the batch and frees its slots, also when the connection is cut.
func (c *conn) flush() {
	if len(c.iov) > 0 && !c.broken.Load() {
		if err := c.link.write(c.iov); err != nil {
			c.cut()
		}
	}
	clear(c.iov)
	c.iov = c.iov[:0]
	for i, s := range c.sending {
		c.release(s)
		c.sending[i] = nil
	}
	c.sending = c.sending[:0]
}

// writer sends what completes while the reader waits for the client.
func (c *conn) writer() {
	for {
		<-c.wake
		if c.over.Load() {
			return
		}
		c.kick()
	}
}

func (c *conn) wakeWriter() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}
