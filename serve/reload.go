package serve

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/platter-storage/platter/serve/config"
)

// Reload changes the daemon to serve cfg: what is the same goes on, clients
// included. What can fail without harm is done first: certificates, listeners
// and added disks are opened, and if one fails the daemon stays as it is. A
// changed disk has to be closed before it is opened again; if that fails it is
// opened as it was. At last all storage is asked for its size.
// What was done is returned in sentences, also with an error.
func (d *Daemon) Reload(ctx context.Context, cfg *config.Config) (changes []string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped {
		return nil, errors.New("the daemon has stopped")
	}
	r := &reload{d: d, cfg: cfg}
	r.changes = d.keepFixed(cfg)
	if err := r.prepare(ctx); err != nil {
		return nil, errors.Join(err, r.undo())
	}
	err = r.commit(ctx)
	changes = append(r.changes, d.refresh()...)
	d.publish()
	return changes, err
}

// keepFixed gives cfg the present values of what only a restart changes, and
// says so where they differ; of the rest it says which have another value.
func (d *Daemon) keepFixed(cfg *config.Config) (changes []string) {
	for i := range config.Settings {
		s := &config.Settings[i]
		if sameTexts(d.cfg.Settings[s.Name], cfg.Settings[s.Name]) {
			continue
		}
		if !s.Restart && s.Name != "listen" {
			changes = append(changes, s.Name+" has another value")
		}
		if s.Restart {
			d.log.Warn("this setting is changed by a restart only", "setting", s.Name)
			cfg.Settings[s.Name] = d.cfg.Settings[s.Name]
		}
	}
	old := d.cfg
	cfg.MaxConnections, cfg.HandshakeTimeout = old.MaxConnections, old.HandshakeTimeout
	cfg.BufferMemory, cfg.ConnectionMemory = old.BufferMemory, old.ConnectionMemory
	cfg.HTTP, cfg.HTTPToken = old.HTTP, old.HTTPToken
	cfg.Once, cfg.PIDFile, cfg.LogFormat, cfg.TLS.Mode = old.Once, old.PIDFile, old.LogFormat, old.TLS.Mode
	return changes
}

func sameTexts(a, b []config.Text) bool {
	return slices.EqualFunc(a, b, func(a, b config.Text) bool { return a.Value == b.Value })
}

// reload is one change of a daemon's configuration.
type reload struct {
	d   *Daemon
	cfg *config.Config

	pairs     []pair      // by the new configuration's order
	listeners []*listener // the new set, kept ones included
	opened    []*listener // those of them that are new
	errs      []error
	changes   []string // what was done, in sentences
}

func (r *reload) note(format string, args ...any) {
	r.changes = append(r.changes, fmt.Sprintf(format, args...))
}

// pair is a disk of the new configuration and the open disk that it is, if any.
type pair struct {
	cfg  config.Disk
	disk *disk
	// reopen: the open disk differs in more than its exports.
	reopen, added bool
}

// prepare opens what is new and touches nothing that is there.
func (r *reload) prepare(ctx context.Context) error {
	if err := checkDisks(r.cfg); err != nil {
		return err
	}
	tlsConfig, err := loadCertificates(r.cfg.TLS)
	if err != nil {
		return err
	}
	if err := r.prepareListeners(); err != nil {
		return err
	}
	r.match()
	for i := range r.pairs {
		if err := r.prepareDisk(ctx, &r.pairs[i]); err != nil {
			return err
		}
	}
	if tlsConfig != nil && !sameCertificate(r.d.certs.now.Swap(tlsConfig), tlsConfig) {
		r.note("new clients get the new certificate")
	}
	return nil
}

// prepareDisk opens a disk that is new. One that shall be another file than
// now is opened for a look: a mistyped path must not cost its clients. A file
// that is in use decides nothing, for it may be we who use it.
func (r *reload) prepareDisk(ctx context.Context, p *pair) error {
	if p.disk == nil {
		var err error
		p.disk, err = r.d.openDisk(ctx, p.cfg)
		if p.added = err == nil; p.added {
			r.d.warnUnsafe(p.disk)
			r.d.warnUnlocked(p.disk)
		}
		return err
	}
	if p.disk.cfg.Path.Value == p.cfg.Path.Value {
		return nil
	}
	look := p.cfg
	look.Name = "" // the name is still in use
	dk, err := r.d.openDisk(ctx, look)
	if errors.Is(err, syscall.EAGAIN) {
		return nil
	}
	if err != nil {
		return err
	}
	return r.d.closeDisk(dk)
}

func (r *reload) prepareListeners() error {
	for _, cfg := range effectiveListen(r.cfg, &r.d.inherited) {
		kept := false
		for _, l := range r.d.listeners {
			if l.cfg.String() == cfg.String() {
				r.listeners, kept = append(r.listeners, l), true
			}
		}
		if kept {
			continue
		}
		all, err := r.d.openListener(cfg)
		if err != nil {
			return err
		}
		r.listeners, r.opened = append(r.listeners, all...), append(r.opened, all...)
	}
	return nil
}

// undo closes what prepare opened.
func (r *reload) undo() error {
	var errs []error
	for _, l := range r.opened {
		l.l.Close()
	}
	for _, p := range r.pairs {
		if p.added {
			errs = append(errs, r.d.closeDisk(p.disk))
		}
	}
	return errors.Join(errs...)
}

// match finds for each disk of the new configuration the open one: by its name,
// or by its path where the name is new, because two cannot have one file open.
func (r *reload) match() {
	used := map[*disk]bool{}
	find := func(same func(dk *disk) bool) *disk {
		i := slices.IndexFunc(r.d.disks, func(dk *disk) bool { return !used[dk] && same(dk) })
		if i < 0 {
			return nil
		}
		used[r.d.disks[i]] = true
		return r.d.disks[i]
	}
	r.pairs = make([]pair, len(r.cfg.Disks))
	for i, cfg := range r.cfg.Disks {
		r.pairs[i] = pair{cfg: cfg, disk: find(func(dk *disk) bool { return dk.cfg.Name == cfg.Name })}
	}
	for i := range r.pairs {
		p := &r.pairs[i]
		if p.disk == nil {
			p.disk = find(func(dk *disk) bool { return dk.cfg.Path.Value == p.cfg.Path.Value })
		}
		p.reopen = p.disk != nil && !sameDisk(p.disk, p.cfg)
	}
}

// sameDisk reports whether b opens dk in the way in which it is open. Limits are
// changed in place where it has some.
func sameDisk(dk *disk, b config.Disk) bool {
	a := dk.cfg
	if dk.gate != nil {
		a.Throttle = b.Throttle
	}
	for _, d := range []*config.Disk{&a, &b} {
		d.Path.At, d.At, d.Exports, d.VhostUsers = config.Place{}, config.Place{}, nil, nil
		d.Create, d.Preallocation, d.Creating = 0, "", nil // only for what was not there
	}
	return a.Equal(&b)
}

// commit changes what is there: exports that go, disks that go or change,
// exports that come, listeners.
func (r *reload) commit(ctx context.Context) error {
	r.dropExports()
	kept := r.closeGone()
	for i := range r.pairs {
		if p := &r.pairs[i]; p.reopen {
			r.reopen(ctx, p)
		}
	}
	r.limit()
	r.d.disks = r.d.disks[:0:0]
	for i := range r.pairs {
		if p := &r.pairs[i]; p.disk != nil {
			if p.added {
				r.note("disk %s (%s) is opened", p.cfg.Name, p.cfg.Path.Value)
			}
			r.d.disks = append(r.d.disks, p.disk)
			r.addExports(p)
		}
	}
	r.d.disks = append(r.d.disks, kept...)
	r.swapListeners()
	r.d.cfg = r.cfg
	return errors.Join(r.errs...)
}

func (r *reload) fail(err error) {
	if err != nil {
		r.errs = append(r.errs, err)
	}
}

// wanted are the exports that a disk shall have, the hidden one included.
func (r *reload) wanted(cfg config.Disk) []export {
	var all []export
	first := isDefault(r.cfg)
	for _, e := range cfg.Exports {
		all = append(all, export{cfg: e})
		if e.Name != "" && first(e.Name) {
			e.Name = ""
			all = append(all, export{cfg: e, alias: true})
		}
	}
	return all
}

func (e *export) same(o *export) bool {
	a, b := e.cfg, o.cfg
	a.At, b.At = config.Place{}, config.Place{}
	return a == b && e.alias == o.alias
}

// dropExports ends the exports that are not wanted any more: names are free
// then for others.
func (r *reload) dropExports() {
	for _, dk := range r.d.disks {
		i := slices.IndexFunc(r.pairs, func(p pair) bool { return p.disk == dk })
		if i < 0 || r.pairs[i].reopen {
			r.fail(r.d.dropExports(dk))
			continue
		}
		want := r.wanted(r.pairs[i].cfg)
		for _, e := range slices.Clone(dk.exports) {
			if slices.ContainsFunc(want, func(w export) bool { return w.same(e) }) {
				continue
			}
			if !e.alias {
				r.note("export %q of disk %s is gone, its clients are disconnected", e.cfg.Name, dk.cfg.Name)
			}
			r.fail(r.d.dropExport(dk, e))
		}
	}
}

// closeGone closes the disks that are not in the new configuration and returns
// those that could not be closed.
func (r *reload) closeGone() (kept []*disk) {
	for _, dk := range r.d.disks {
		if slices.ContainsFunc(r.pairs, func(p pair) bool { return p.disk == dk }) {
			continue
		}
		if err := r.closeIdle(dk); err != nil {
			r.fail(err)
			kept = append(kept, dk)
			continue
		}
		r.note("disk %s is closed, its clients are disconnected", dk.cfg.Name)
	}
	return kept
}

// closeIdle closes a disk that has no exports any more.
func (r *reload) closeIdle(dk *disk) error {
	if len(dk.exports)+len(dk.vhosts) > 0 {
		return fmt.Errorf("disk %s stays open: the storage has not finished some requests", dk.cfg.Name)
	}
	return r.d.closeDisk(dk)
}

// reopen opens a disk anew with its new settings, or, where that fails, as it
// was.
func (r *reload) reopen(ctx context.Context, p *pair) {
	old := p.disk
	if err := r.closeIdle(old); err != nil {
		r.fail(err)
		p.cfg = old.cfg
		return
	}
	dk, err := r.d.openDisk(ctx, p.cfg)
	if err == nil {
		r.d.warnUnsafe(dk)
		r.note("disk %s has new settings: it was closed and opened again, its clients were disconnected", p.cfg.Name)
		p.disk = dk
		return
	}
	r.fail(err)
	p.cfg = old.cfg
	if p.disk, err = r.d.openDisk(ctx, old.cfg); err != nil {
		r.fail(fmt.Errorf("nor can the disk be opened again as it was: it is offered no more: %w", err))
		p.disk = nil
	}
}

// addExports offers the disk under the names that it does not have yet.
func (r *reload) addExports(p *pair) {
	for _, w := range r.wanted(p.cfg) {
		if slices.ContainsFunc(p.disk.exports, func(e *export) bool { return e.same(&w) }) {
			continue
		}
		name := w.cfg.Name
		if w.alias {
			name, _ = r.cfg.DefaultExport()
		}
		if !w.alias && !p.added && !p.reopen {
			r.note("export %q of disk %s is offered", name, p.cfg.Name)
		}
		p.disk.cfg = p.cfg
		r.fail(r.d.addExport(p.disk, w.cfg, r.d.group(name), w.alias))
	}
	p.disk.cfg = p.cfg
	r.reviseVhosts(p.disk, &p.cfg, p.added || p.reopen)
}

func (r *reload) swapListeners() {
	for _, l := range r.d.listeners {
		if !slices.Contains(r.listeners, l) {
			r.note("%s is no longer listened on", addressText(l))
			l.l.Close()
			<-l.done
		}
	}
	r.d.listeners = r.listeners
	for _, l := range r.opened {
		r.note("%s is listened on", addressText(l))
		r.d.start(l)
		r.d.warnOpen(l)
	}
}
