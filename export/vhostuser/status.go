package vhostuser

import (
	"time"

	"github.com/platter-storage/platter/queue"
	wire "github.com/platter-storage/platter/wire/vhostuser"
)

// Status describes a device and the front end that uses it.
type Status struct {
	Connected bool
	Peer      string // the front end; empty where there is none
	Since     time.Time

	Features  uint64        // as negotiated
	Protocol  wire.Protocol // in force
	Writeback bool          // the guest flushes; otherwise each write is durable
	Regions   int           // of guest memory
	Recorded  bool          // requests in flight survive our death
	Logged    bool          // written pages are logged for a migration

	// Queues are those that have been started, by number.
	Queues []QueueStatus

	started []*queue.Queue
	numbers []int
}

// QueueStatus is one queue.
type QueueStatus struct {
	Index  int
	Reason string // how it reaches the storage, and why
	queue.Stats
}

// Status never waits, whatever the disk does.
func (d *Device) Status() Status {
	d.mu.Lock()
	s := d.current
	d.mu.Unlock()
	if s == nil {
		return Status{}
	}
	st := *s.state.Load()
	for i, q := range st.started {
		st.Queues = append(st.Queues, QueueStatus{st.numbers[i], q.Reason(), q.Stats()})
	}
	return st
}

// publish makes the session's state known to others.
func (s *session) publish() {
	st := &Status{
		Connected: true, Peer: s.peer, Since: s.since, Features: s.features, Protocol: s.protocol,
		Writeback: s.flushing, Regions: len(s.regions), Recorded: s.record.fd >= 0, Logged: s.activeLog() != nil,
	}
	for i := range s.vrings {
		if q := s.vrings[i].q; q != nil {
			st.started, st.numbers = append(st.started, q), append(st.numbers, i)
		}
	}
	s.state.Store(st)
}
