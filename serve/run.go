package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync/atomic"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/serve/config"
)

// Options are what a program gives to Run.
type Options struct {
	// Load makes the configuration: at the start, and again on SIGHUP.
	Load func() (*config.Config, error)
	// Out takes what people or scripts wait for, Err the log.
	Out, Err io.Writer
	// JSON writes one object for each event to Out, instead of text.
	JSON bool
	// Verbose writes as text all that is known of the disks.
	Verbose bool
	// Check opens the disks, says how, and ends without serving.
	Check bool
	// ConfigFile is what Load reads, empty where there is none.
	ConfigFile string
}

// Run is the daemon as a program: it serves until a signal ends it. SIGTERM and
// SIGINT end it well, and at once the second time; SIGHUP reads the
// configuration again; SIGUSR1 prints the counters.
func Run(ctx context.Context, o Options) error {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGUSR1)
	defer signal.Stop(signals)
	// Who reads our output may go; the disks' clients stay.
	signal.Ignore(unix.SIGPIPE)
	p := &program{Options: o, signals: signals, level: new(slog.LevelVar)}
	cfg, err := p.load()
	if err != nil {
		return err
	}
	TuneMemory()
	defer p.openOutlets(cfg)()
	if o.Check {
		if p.toldToEnd(func() { err = p.check(ctx, cfg) }) {
			return errInterrupted
		}
		return err
	}
	if p.d, err = p.start(ctx, cfg); err != nil {
		return err
	}
	return p.serve(ctx, cfg)
}

// program is a daemon with the signals that steer it.
type program struct {
	Options
	signals <-chan os.Signal
	level   *slog.LevelVar
	log     *slog.Logger
	out     *outlet
	d       *Daemon
	// counting: statistics are being put together.
	counting atomic.Bool
}

// openOutlets makes what the program speaks through, and returns what ends it.
func (p *program) openOutlets(cfg *config.Config) (end func()) {
	p.level.Set(cfg.LogLevel)
	log := &outlet{w: p.Err, lines: make(chan outletLine, outletLines)}
	p.log = NewLog(log, cfg.LogFormat, p.level)
	log.gap = func(lines int64) []byte {
		var b bytes.Buffer
		NewLog(&b, cfg.LogFormat, p.level).Error("lines of the log are missing here: nobody read them in time", "lines", lines)
		return b.Bytes()
	}
	p.out = &outlet{w: p.Out, lines: make(chan outletLine, outletLines)}
	p.out.failed = func(err error) { p.log.Warn("an event cannot be written", "error", err) }
	go log.run()
	go p.out.run()
	return func() { p.out.end(); log.end() }
}

// load makes the configuration. Reading it can take for ever, as from a FIFO
// that nobody writes.
func (p *program) load() (cfg *config.Config, err error) {
	if p.toldToEnd(func() { cfg, err = p.Load() }) {
		return nil, errNotRead
	}
	return cfg, err
}

// toldToEnd runs f to its end, unless a signal to end comes first: then f is
// left alone, and the program shall end.
func (p *program) toldToEnd(f func()) bool {
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	for {
		select {
		case <-done:
			return false
		case sig := <-p.signals:
			if ends(sig) {
				return true
			}
		}
	}
}

// ends reports whether a signal asks the program to end.
func ends(sig os.Signal) bool { return sig == unix.SIGINT || sig == unix.SIGTERM }

// Errors of a program that was told to end.
var (
	errNotRead     = errors.New("interrupted while the configuration was being read")
	errInterrupted = errors.New("interrupted while the disks were being opened")
	errAtOnce      = errors.New("a second signal: ended at once")
)

// start starts the daemon. Making a large file can take long: a signal stops
// it, and a second one does not wait for that.
func (p *program) start(ctx context.Context, cfg *config.Config) (*Daemon, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		d   *Daemon
		err error
	}
	done := make(chan result, 1)
	go func() {
		d, err := Start(ctx, cfg, p.log)
		done <- result{d, err}
	}()
	interrupted := false
	for {
		select {
		case r := <-done:
			if r.err == nil && interrupted {
				return nil, errors.Join(errInterrupted, r.d.Stop(context.Background()))
			}
			return r.d, r.err
		case sig := <-p.signals:
			if !ends(sig) {
				continue
			}
			cancel()
			if interrupted {
				return nil, errAtOnce
			}
			interrupted = true
		}
	}
}

// serve says that the daemon is ready and follows signals until the end. What
// can take long happens beside it, so that signals are always heard.
func (p *program) serve(ctx context.Context, cfg *config.Config) error {
	r := p.d.Ready()
	r.verbose = p.Verbose
	p.event("ready", r)
	p.notify(daemon.SdNotifyReady)
	inner, cancel := context.WithCancel(ctx)
	defer cancel() // before stop, which waits for a reload
	var reloading chan *config.Config
	again := false
	end := func(why string) error { cancel(); return p.stop(why, cfg.Stats) }
	for {
		select {
		case <-ctx.Done():
			return end("the context ended")
		case <-p.d.LastLeft():
			return end("the last client left")
		case cfg = <-reloading:
			if reloading = nil; again {
				reloading, again = p.beginReload(inner, cfg), false
			}
		case sig := <-p.signals:
			switch {
			case sig == unix.SIGUSR1:
				p.beginStats()
			case sig == unix.SIGHUP && reloading != nil:
				again = true
			case sig == unix.SIGHUP:
				reloading = p.beginReload(inner, cfg)
			default:
				return end(unix.SignalName(sig.(unix.Signal)))
			}
		}
	}
}

// beginStats prints the counters, once where it is asked for again before it
// could: a reload may hold it up.
func (p *program) beginStats() {
	if !p.counting.CompareAndSwap(false, true) {
		return
	}
	go func() {
		s := p.d.Stats()
		p.counting.Store(false)
		p.event("stats", s)
	}()
}

// beginReload gives the configuration that is in force after the reload.
func (p *program) beginReload(ctx context.Context, old *config.Config) chan *config.Config {
	now := make(chan *config.Config, 1)
	go func() { now <- p.reload(ctx, old) }()
	return now
}

// reload reads the configuration again. Whatever is wrong with it, the daemon
// goes on.
func (p *program) reload(ctx context.Context, old *config.Config) *config.Config {
	p.notify(daemon.SdNotifyReloading + "\n" + daemon.SdNotifyMonotonicUsec())
	defer p.notify(daemon.SdNotifyReady)
	cfg, err := p.Load()
	if err != nil {
		p.log.Error("the configuration is wrong: the old one stays in force", "error", err)
		p.reloaded(nil, err)
		return old
	}
	changes, err := p.d.Reload(ctx, cfg)
	switch {
	case err != nil && len(changes) == 0:
		p.log.Error("the new configuration cannot be taken up: the old one stays in force", "error", err)
		p.reloaded(nil, err)
		return old
	case err != nil:
		p.log.Error("the new configuration is not all in force", "error", err)
	}
	p.level.Set(cfg.LogLevel)
	p.reloaded(changes, err)
	return cfg
}

// reloaded says what has changed, and to programs also what is served now.
func (p *program) reloaded(changes []string, err error) {
	r := &Reloaded{Ready: *p.d.Ready(), Changes: append([]string{}, changes...), file: p.ConfigFile}
	if err != nil {
		r.Error = err.Error()
	}
	p.event("reloaded", r)
}

// sameWish is how long a second signal counts as the first: a supervisor that
// signals the process and then its group (timeout does) wishes once.
const sameWish = 200 * time.Millisecond

// stop ends the daemon, unless a second signal says that it must not take the
// time.
func (p *program) stop(why string, stats bool) error {
	p.log.Info("stopping: no more clients, requests in flight are finished, disks are flushed and closed", "because", why)
	p.notify(daemon.SdNotifyStopping)
	began := time.Now()
	var fates []Fate
	done := make(chan error, 1)
	go func() {
		fates = p.d.fates()
		done <- p.d.Stop(context.Background())
	}()
	for {
		select {
		case err := <-done:
			if stats {
				p.event("stats", p.d.Stats())
			}
			if err == nil {
				p.event("stopped", &stopped{why, fates})
			}
			return err
		case sig := <-p.signals:
			if ends(sig) && time.Since(began) > sameWish {
				return fmt.Errorf("%w: %s", errAtOnce, p.d.lost())
			}
		}
	}
}

// notify tells the service manager, where there is one.
func (p *program) notify(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		p.log.Warn("the service manager cannot be told", "error", err)
	}
}

// texter is what an event says to people.
type texter interface{ WriteText(w io.Writer) error }

// event tells whoever waits. A reader who has gone, or does not read, does not
// hold the daemon up.
func (p *program) event(name string, e texter) {
	var b bytes.Buffer
	var err error
	if p.JSON {
		err = writeEvent(&b, name, e)
	} else {
		err = e.WriteText(&b)
	}
	if err == nil {
		_, err = p.out.Write(b.Bytes())
	}
	if err != nil {
		p.log.Warn("an event cannot be written", "event", name, "error", err)
	}
}

// writeEvent writes one line of JSON: the event's fields, its name first.
func writeEvent(w io.Writer, name string, e any) error {
	text, err := json.Marshal(e)
	if err != nil {
		return err
	}
	line := append([]byte(`{"event":"`+name+`",`), text[1:]...)
	_, err = w.Write(append(line, '\n'))
	return err
}

// lost says what an end at once loses.
func (d *Daemon) lost() string {
	inFlight, clients := 0, 0
	for _, c := range d.server.Connections() {
		inFlight += c.InFlight
		clients++
	}
	return fmt.Sprintf("%d requests of %d clients were not answered; what clients wrote since their last flush may not be on the disks", inFlight, clients)
}
