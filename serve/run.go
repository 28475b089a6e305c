package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
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
	cfg, err := o.Load()
	if err != nil {
		return err
	}
	TuneMemory()
	p := &program{Options: o, signals: signals, level: new(slog.LevelVar)}
	p.level.Set(cfg.LogLevel)
	p.log = NewLog(o.Err, cfg.LogFormat, p.level)
	if o.Check {
		return p.check(ctx, cfg)
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
	d       *Daemon
}

// Errors of a program that was told to end.
var (
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
			if sig != unix.SIGINT && sig != unix.SIGTERM {
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

// serve says that the daemon is ready and follows signals until the end.
func (p *program) serve(ctx context.Context, cfg *config.Config) error {
	r := p.d.Ready()
	r.verbose = p.Verbose
	p.event("ready", r)
	p.notify(daemon.SdNotifyReady)
	for {
		select {
		case <-ctx.Done():
			return p.stop("the context ended", cfg.Stats)
		case <-p.d.LastLeft():
			return p.stop("the last client left", cfg.Stats)
		case sig := <-p.signals:
			switch sig {
			case unix.SIGUSR1:
				p.event("stats", p.d.Stats())
			case unix.SIGHUP:
				cfg = p.reload(ctx, cfg)
			default:
				return p.stop(unix.SignalName(sig.(unix.Signal)), cfg.Stats)
			}
		}
	}
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
	began, fates := time.Now(), p.d.fates()
	done := make(chan error, 1)
	go func() { done <- p.d.Stop(context.Background()) }()
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
			if (sig == unix.SIGINT || sig == unix.SIGTERM) && time.Since(began) > sameWish {
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

// event tells whoever waits. A reader who has gone does not end the daemon.
func (p *program) event(name string, e texter) {
	var err error
	if p.JSON {
		err = writeEvent(p.Out, name, e)
	} else {
		err = e.WriteText(p.Out)
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
