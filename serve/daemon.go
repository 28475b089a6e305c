// Package serve is the daemon: it opens the disks of a configuration, offers
// them to clients, follows changes of the configuration, says what it does, and
// ends without losing a write.
//
// Read it in this order: daemon.go (what a daemon has, from start to end),
// run.go (signals), reload.go, then disk.go, listen.go and socket.go, ready.go
// and stats.go. Package config says what can be asked for.
package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/export/nbd"
	"github.com/platter-storage/platter/graph"
	"github.com/platter-storage/platter/internal/ratelimit"
	"github.com/platter-storage/platter/internal/realenv"
	"github.com/platter-storage/platter/serve/config"
)

// closeWait is how long clients' requests in flight may take at the end, or
// when their export goes, before the connections are closed under them.
const closeWait = 30 * time.Second

// Daemon serves disks.
type Daemon struct {
	log       *slog.Logger
	env       *block.Env
	graph     *graph.Graph
	jobs      *block.Queue // lends request objects for flushes of our own
	server    *nbd.Server
	certs     certificates
	inherited inherited
	pid       *pidFile
	began     time.Time
	seen      atomic.Pointer[view]
	web       *web          // nil: no HTTP
	frontEnds atomic.Int32  // of vhost-user
	lastLeft  chan struct{} // closed when the last client has left, with Once
	leaving   sync.Once
	once      bool

	mu        sync.Mutex // guards what follows; held by Reload and Stop throughout
	cfg       *config.Config
	disks     []*disk
	listeners []*listener
	groups    map[string]*block.QueueGroup // counters by export, those that are gone included
	stopped   bool
}

// Start opens everything that cfg asks for and begins to serve. When it fails
// nothing stays open.
func Start(ctx context.Context, cfg *config.Config, log *slog.Logger) (*Daemon, error) {
	d := &Daemon{log: log, cfg: cfg, once: cfg.Once, began: time.Now(), groups: map[string]*block.QueueGroup{}, lastLeft: make(chan struct{})}
	if err := d.open(ctx); err != nil {
		return nil, errors.Join(err, d.Stop(ctx))
	}
	return d, nil
}

// open does the work of Start; Stop undoes as much of it as was done.
func (d *Daemon) open(ctx context.Context) error {
	if err := checkDisks(d.cfg); err != nil {
		return err
	}
	tlsConfig, err := loadCertificates(d.cfg.TLS)
	if err != nil {
		return err
	}
	if d.cfg.PIDFile != "" {
		if d.pid, err = takePIDFile(d.cfg.PIDFile); err != nil {
			return err
		}
	}
	if err := d.makeServer(tlsConfig); err != nil {
		return err
	}
	limits, err := throttles(d.cfg.Disks)
	if err != nil {
		return err
	}
	for i, cfg := range d.cfg.Disks {
		if err := d.addDisk(ctx, cfg, limits[i], d.cfg); err != nil {
			return err
		}
	}
	for _, cfg := range effectiveListen(d.cfg, &d.inherited) {
		all, err := d.openListener(cfg)
		if err != nil {
			return err
		}
		d.listeners = append(d.listeners, all...)
	}
	for _, l := range d.listeners {
		d.start(l)
		d.warnOpen(l)
	}
	if err := d.startWeb(); err != nil {
		return err
	}
	d.publish()
	return nil
}

// makeServer makes the graph and the server, still empty.
func (d *Daemon) makeServer(tlsConfig *tls.Config) error {
	d.env = realenv.New(d.log, d.cfg.BufferMemory)
	d.graph = graph.New(d.env)
	d.jobs = block.NewQueue(d.env, block.NewQueueGroup())
	if tlsConfig != nil {
		d.certs.now.Store(tlsConfig)
	}
	d.seen.Store(&view{ready: &Ready{}})
	var err error
	d.server, err = nbd.New(nbd.Config{
		Env: d.env, Log: d.log, TLS: d.certs.server(), TLSMode: nbd.TLSMode(d.cfg.TLS.Mode),
		MaxConns: d.cfg.MaxConnections, HandshakeTimeout: d.cfg.HandshakeTimeout, Memory: d.cfg.ConnectionMemory, Left: d.clientLeft,
	})
	return err
}

// clientLeft hears of each client that used an export and has gone.
func (d *Daemon) clientLeft(others int) {
	if d.once && others+int(d.frontEnds.Load()) == 0 {
		d.leaving.Do(func() { close(d.lastLeft) })
	}
}

// LastLeft is closed when the last client has left, where the configuration
// says that the daemon is for one occasion.
func (d *Daemon) LastLeft() <-chan struct{} { return d.lastLeft }

// addDisk opens a disk and offers it.
func (d *Daemon) addDisk(ctx context.Context, cfg config.Disk, limits ratelimit.Setting, whole *config.Config) error {
	dk, err := d.openDisk(ctx, cfg)
	if err != nil {
		return err
	}
	if _, err := dk.gate.set(limits); err != nil {
		return errors.Join(diskError(&cfg, err), d.closeDisk(dk))
	}
	if err := d.addExports(dk, isDefault(whole)); err != nil {
		return errors.Join(err, d.closeDisk(dk))
	}
	if err := d.addVhosts(dk); err != nil {
		return errors.Join(err, d.dropExports(dk), d.closeDisk(dk))
	}
	d.disks = append(d.disks, dk)
	d.warnUnsafe(dk)
	d.warnUnlocked(dk)
	return nil
}

// isDefault tells the export that clients reach who name none.
func isDefault(cfg *config.Config) func(string) bool {
	name, ok := cfg.DefaultExport()
	return func(s string) bool { return ok && s == name }
}

// warnOpen says who can reach a listener that is open to a network.
func (d *Daemon) warnOpen(l *listener) {
	t := d.cfg.TLS
	switch {
	case !l.openToNetwork():
	case t.Mode != config.TLSRequired:
		d.log.Warn("anybody who reaches this address can use the disks, and what is sent can be read on the way: add tls-cert, tls-key, tls-ca and tls-verify-client, or listen on localhost",
			"address", l.l.Addr().String())
	case !t.VerifyClient:
		d.log.Warn("anybody who reaches this address can use the disks: add tls-ca and tls-verify-client to let only clients with a certificate in", "address", l.l.Addr().String())
	}
}

// Stop ends the daemon: no more clients, requests in flight finished, disks
// durable and closed. It may be called once.
func (d *Daemon) Stop(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	defer d.pid.release()
	d.stopped = true
	defer d.web.stop()
	for _, l := range d.listeners {
		l.l.Close()
	}
	if d.server == nil {
		return nil
	}
	wait, cancel := context.WithTimeout(ctx, closeWait)
	defer cancel()
	vhosts := make(chan error, 1)
	go func() { vhosts <- d.stopVhosts() }()
	err := d.server.Shutdown(wait)
	errs := []error{<-vhosts}
	if err != nil {
		return errors.Join(err, errs[0]) // closing a disk under its requests would lose them
	}
	for _, dk := range d.disks {
		if len(dk.vhosts) > 0 {
			continue // some request is still in the storage
		}
		for _, e := range dk.exports {
			e.child.Close()
		}
		errs = append(errs, d.closeDisk(dk))
	}
	return errors.Join(append(errs, d.graph.Close())...)
}
