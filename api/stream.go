package api

import (
	"encoding/json"
	"net/http"
	"sync"
	"time"
)

// StreamPath is where snapshots are sent as they are made, one a period, as
// events of text/event-stream.
const StreamPath = "/api/v1/stream"

// maxStreams is how many clients may follow at once.
const maxStreams = 64

// feed makes one snapshot a period for all who follow, and none while nobody
// does.
type feed struct {
	s       *Server
	mu      sync.Mutex
	clients map[chan []byte]bool
	stop    chan struct{} // closed: no more
	ended   bool
}

func (f *feed) init(s *Server) {
	f.s, f.clients, f.stop = s, map[chan []byte]bool{}, make(chan struct{})
}

// join adds a client, and starts the clock with the first.
func (f *feed) join() (chan []byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.ended || f.s.cfg.Snapshot == nil:
		return nil, Errorf(http.StatusServiceUnavailable, "there is nothing to follow: the daemon ends")
	case len(f.clients) == maxStreams:
		return nil, Errorf(http.StatusTooManyRequests, "%d clients follow already", maxStreams)
	}
	ch := make(chan []byte, 1)
	f.clients[ch] = true
	if len(f.clients) == 1 {
		go f.tick()
	}
	return ch, nil
}

func (f *feed) leave(ch chan []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.clients, ch)
}

// tick runs while somebody follows.
func (f *feed) tick() {
	t := time.NewTicker(f.s.cfg.Period)
	defer t.Stop()
	for {
		b, err := json.Marshal(f.s.cfg.Snapshot())
		if err != nil {
			f.s.cfg.Log.Error("a snapshot cannot be written as JSON", "error", err)
			return
		}
		if !f.send(b) {
			return
		}
		select {
		case <-t.C:
		case <-f.stop:
			return
		}
	}
}

// send hands a snapshot to all. Who has not taken the last one misses this.
func (f *feed) send(b []byte) (any bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for ch := range f.clients {
		select {
		case ch <- b:
		default:
		}
	}
	return len(f.clients) > 0
}

func (f *feed) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.ended {
		f.ended = true
		close(f.stop)
	}
}

// serve sends events until the client leaves or does not read.
func (f *feed) serve(w http.ResponseWriter, q *http.Request) {
	ch, err := f.join()
	if err != nil {
		writeError(w, err)
		return
	}
	defer f.leave(ch)
	w.Header().Set("Content-Type", "text/event-stream")
	rc := http.NewResponseController(w)
	for {
		select {
		case b := <-ch:
			if rc.SetWriteDeadline(time.Now().Add(writeTimeout)) != nil {
				return
			}
			if _, err := w.Write(append(append([]byte("data: "), b...), "\n\n"...)); err != nil {
				return
			}
			if rc.Flush() != nil {
				return
			}
		case <-q.Context().Done():
			return
		case <-f.stop:
			return
		}
	}
}
