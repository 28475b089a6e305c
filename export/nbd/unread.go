package nbd

import (
	"context"
	"time"
)

// A client that is being disconnected gets its last answers as fast as it takes
// them. One that takes none would hold up the end of the export, or of the
// server, for as long as its requests may take.
const (
	// unreadWait is how long a client may take nothing while there is something
	// to be sent to it.
	unreadWait = 5 * time.Second
	// unreadLook is how often that is looked at.
	unreadLook = 100 * time.Millisecond
)

// unread watches what a client takes.
type unread struct {
	taken uint64
	since time.Time // of the last look that found it taking, or nothing to take
}

// stuck reports whether the client has taken nothing for so long.
func (u *unread) stuck(c *conn, now time.Time, wait time.Duration) bool {
	taken := c.releaseCount() + ackedBytes(c.nc)
	if !blocksWriter(c.nc) || taken != u.taken || u.since.IsZero() {
		u.taken, u.since = taken, now
	}
	return now.Sub(u.since) >= wait
}

// awaitGone waits for the connections to end, at most until ctx does, and cuts
// those that hold it up.
func (s *Server) awaitGone(ctx context.Context, list []*conn) {
	watches := make([]unread, len(list))
	tick := time.NewTicker(unreadLook)
	defer tick.Stop()
	for i := 0; i < len(list); {
		select {
		case <-list[i].gone:
			i++
		case <-ctx.Done():
			s.cut(list[i], "client cut: its requests were not finished in time")
			i++
		case now := <-tick.C:
			for k := i; k < len(list); k++ {
				if !list[k].broken.Load() && watches[k].stuck(list[k], now, s.unreadWait) {
					s.cut(list[k], "client cut: it does not read its answers")
				}
			}
		}
	}
}

// cut cuts a connection that is still there, and says which.
func (s *Server) cut(c *conn, why string) {
	select {
	case <-c.gone:
		return
	default:
	}
	s.mu.Lock()
	info := c.status()
	s.mu.Unlock()
	s.log.Warn(why, "peer", info.Peer, "export", info.Export, "in_flight", info.InFlight)
	c.cut()
}
