package serve

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/platter-storage/platter/api"
	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/serve/config"
)

const (
	maxToken = 4096
	minToken = 16 // bytes: what is shorter can be guessed
	// webWait is how long answers may take at the end.
	webWait = time.Second
)

// web is the daemon's HTTP side.
type web struct {
	srv  *api.Server
	l    net.Listener
	done chan struct{}
}

// startWeb begins to answer HTTP, where that was asked for.
func (d *Daemon) startWeb() error {
	if d.cfg.HTTP == nil {
		return nil
	}
	token, err := readToken(d.cfg.HTTPToken)
	if err != nil {
		return err
	}
	l, err := d.listenWeb(*d.cfg.HTTP)
	if err != nil {
		return err
	}
	if a, ok := l.Addr().(*net.TCPAddr); ok && !a.IP.IsLoopback() && token == nil {
		l.Close()
		return &config.Error{At: d.cfg.HTTP.At, Msg: fmt.Sprintf("http: whoever reaches %s could change the disks: add http-token FILE, or listen on localhost or a Unix socket", a)}
	}
	srv, err := api.New(api.Config{
		Title: "Platter", Version: buildVersion(), Routes: d.routes(), Metrics: d.metrics(),
		Snapshot: func() any { return d.snapshot() }, Token: token, Log: d.log,
	})
	if err != nil {
		l.Close()
		return err
	}
	d.web = &web{srv, l, make(chan struct{})}
	go func() {
		defer close(d.web.done)
		if err := srv.Serve(l); err != nil {
			d.log.Error("HTTP is answered no more", "address", d.web.address(), "error", err)
		}
	}()
	return nil
}

func (d *Daemon) listenWeb(cfg config.Listen) (net.Listener, error) {
	if cfg.Kind == config.ListenAuto {
		return listenAuto("http", 0o600)
	}
	all, err := d.netListeners(cfg)
	if err != nil {
		return nil, fmt.Errorf("http: %w", err)
	}
	return all[0], nil
}

// readToken reads what clients must show; nil where there is no file.
func readToken(file string) ([]byte, error) {
	if file == "" {
		return nil, nil
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("http-token: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxToken+1))
	if err != nil {
		return nil, fmt.Errorf("http-token: %w", err)
	}
	b = bytes.TrimSpace(b)
	switch {
	case len(b) > maxToken:
		return nil, fmt.Errorf("http-token: %s is longer than %d bytes: it should be one line of random letters", file, maxToken)
	case len(b) < minToken:
		return nil, fmt.Errorf("http-token: %s has %d bytes: a token needs at least %d, or it can be guessed: openssl rand -hex 32 > %s", file, len(b), minToken, file)
	}
	return b, nil
}

// address is where a browser finds the page, or a client the socket.
func (w *web) address() string {
	if w == nil {
		return ""
	}
	if w.l.Addr().Network() == "unix" {
		return "unix:" + w.l.Addr().String()
	}
	return "http://" + w.l.Addr().String() + "/"
}

// stop ends it: last of all, so that the end can be watched.
func (w *web) stop() {
	if w == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), webWait)
	defer cancel()
	_ = w.srv.Shutdown(ctx) // who has not read the answer by then has had the time
	<-w.done
}

// buildVersion is the program's version, as far as the build knows it.
func buildVersion() string {
	if b, ok := debug.ReadBuildInfo(); ok && b.Main.Version != "" {
		return strings.Trim(b.Main.Version, "()")
	}
	return "development"
}

// DiskStatus is a disk, with what its exports have counted.
type DiskStatus struct {
	DiskInfo
	Counters []ExportStats `json:"counters"`
	// FrontEnds are the virtual machines on its sockets.
	FrontEnds []FrontEnd `json:"front_ends"`
}

// FrontEnd is a virtual machine on a vhost-user socket.
type FrontEnd struct {
	Socket    string `json:"socket"`
	Connected bool   `json:"connected"`
	Peer      string `json:"peer,omitempty"`
	Writeback bool   `json:"writeback"`
	// Recorded: requests in flight survive a crash of this process.
	Recorded bool        `json:"recorded"`
	Queues   []QueueInfo `json:"queues"`
}

// QueueInfo is one virtqueue.
type QueueInfo struct {
	Index    int    `json:"index"`
	InFlight int    `json:"in_flight"`
	Reason   string `json:"reason"`
}

// Client is a connection over NBD.
type Client struct {
	Peer     string    `json:"peer"`
	Export   string    `json:"export"`
	Since    time.Time `json:"since"`
	InFlight int       `json:"in_flight"`
	Held     int64     `json:"held_bytes"`
	TLS      bool      `json:"tls"`
	Ending   bool      `json:"ending"`
}

// Status is the daemon as a whole.
type Status struct {
	Version string `json:"version"`
	PID     int    `json:"pid"`
	Stats
	Listen  []string `json:"listen"`
	TLS     string   `json:"tls"`
	HTTP    string   `json:"http"`
	Disks   []string `json:"disks"`
	Clients []Client `json:"clients"`
}

func (d *Daemon) status() Status {
	v := d.seen.Load()
	s := Status{Version: buildVersion(), PID: v.ready.PID, Stats: *d.Stats(), Listen: v.ready.Listen, TLS: v.ready.TLS, HTTP: v.ready.HTTP, Disks: []string{}, Clients: []Client{}}
	for i := range v.disks {
		s.Disks = append(s.Disks, v.disks[i].name)
	}
	for _, c := range d.server.Connections() {
		s.Clients = append(s.Clients, Client{c.Peer, c.Export, c.Since, c.InFlight, c.Held, c.TLS, c.Ending})
	}
	return s
}

// diskStatus are all disks, or the one called name.
func (d *Daemon) diskStatus(name string) []DiskStatus {
	v := d.seen.Load()
	all := []DiskStatus{}
	stats := d.Stats()
	for i := range v.disks {
		dk := &v.disks[i]
		if name != "" && dk.name != name {
			continue
		}
		s := DiskStatus{DiskInfo: v.ready.Disks[i], Counters: []ExportStats{}, FrontEnds: []FrontEnd{}}
		s.Size, s.Throttle = dk.info.Size(), dk.gate.String()
		for _, e := range stats.Exports {
			if e.Disk == dk.name {
				s.Counters = append(s.Counters, e)
			}
		}
		for _, x := range dk.vhosts {
			s.FrontEnds = append(s.FrontEnds, frontEnd(x))
		}
		all = append(all, s)
	}
	return all
}

func frontEnd(x *vhost) FrontEnd {
	st := x.dev.Status()
	f := FrontEnd{Socket: x.cfg.Path, Connected: st.Connected, Peer: st.Peer, Writeback: st.Writeback, Recorded: st.Recorded, Queues: []QueueInfo{}}
	for _, q := range st.Queues {
		f.Queues = append(f.Queues, QueueInfo{q.Index, q.InFlight, q.Reason})
	}
	return f
}

// Snapshot is what the page follows.
type Snapshot struct {
	Time time.Time `json:"time"`
	Stats
	Disks   []DiskLive `json:"disks"`
	Clients []Client   `json:"clients"`
	// Histograms are the latencies by export and operation: pairs of a
	// bucket's upper bound in nanoseconds and its requests so far.
	Histograms map[string]map[string][][2]int64 `json:"histograms"`
}

// DiskLive is what changes of a disk.
type DiskLive struct {
	Name     string `json:"name"`
	Size     int64  `json:"size_bytes"`
	InFlight int    `json:"in_flight"`
}

func (d *Daemon) snapshot() *Snapshot {
	v := d.seen.Load()
	st := d.status()
	s := &Snapshot{Time: time.Now(), Stats: st.Stats, Clients: st.Clients, Disks: []DiskLive{}, Histograms: map[string]map[string][][2]int64{}}
	for i := range v.disks {
		dk := &v.disks[i]
		live := DiskLive{Name: dk.name, Size: dk.info.Size()}
		for _, c := range st.Clients {
			for _, name := range dk.names {
				if c.Export == name {
					live.InFlight += c.InFlight
				}
			}
		}
		for _, x := range dk.vhosts {
			for _, q := range x.dev.Status().Queues {
				live.InFlight += q.InFlight
			}
		}
		s.Disks = append(s.Disks, live)
	}
	for name, g := range v.groups {
		s.Histograms[name] = histograms(g.Stats())
	}
	return s
}

func histograms(s *block.Stats) map[string][][2]int64 {
	all := map[string][][2]int64{}
	for op := range block.NumOps {
		for i, n := range s.Hist[op] {
			if n > 0 {
				all[op.String()] = append(all[op.String()], [2]int64{block.HistUpper(i), int64(n)})
			}
		}
	}
	return all
}

// notFound is the answer about a disk that there is not.
func (d *Daemon) notFound(name string) error {
	var names []string
	for _, dk := range d.seen.Load().disks {
		names = append(names, dk.name)
	}
	return api.Errorf(http.StatusNotFound, "there is no disk %q; there is: %s", name, strings.Join(names, ", "))
}
