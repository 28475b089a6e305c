package serve

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/export/nbd"
	"github.com/platter-storage/platter/graph"
	"github.com/platter-storage/platter/internal/magic"
	"github.com/platter-storage/platter/serve/config"
)

// disk is one that is open and offered.
type disk struct {
	cfg     config.Disk
	inst    *block.Instance
	created bool
	gate    *gate // nil: no limits
	exports []*export
	vhosts  []*vhost
}

// export is a name under which a disk is offered.
type export struct {
	cfg   config.Export
	child *block.Child
	// alias is the hidden export without a name that leads to the first
	// one, for clients who name none.
	alias bool
}

// diskError gives an error about a disk the place where the disk was asked for.
func diskError(d *config.Disk, err error) error {
	if at := d.At.String(); at != "" {
		return fmt.Errorf("%s: %w", at, err)
	}
	return err
}

// describe is the disk as the graph takes it, its drivers and options checked.
// Settings for all disks count where its driver has them.
func describe(d *config.Disk) (graph.Disk, error) {
	desc := graph.Disk{Name: d.Path.Value, Format: d.Format, Protocol: maps.Clone(d.Options)}
	if err := checkFormat(d); err != nil {
		return desc, err
	}
	vals, err := desc.Values()
	if err != nil {
		return desc, &config.Error{At: d.At, Msg: err.Error(), Err: err}
	}
	if err := checkNodes(vals); err != nil {
		return desc, &config.Error{At: d.At, Msg: err.Error(), Err: err}
	}
	proto := bottom(vals)
	drv, err := block.FindDriver(proto["driver"])
	if err != nil {
		return desc, err
	}
	for name, x := range withCacheAuto(d.Defaults) {
		if hasOption(drv, name) && proto[name] == "" {
			desc.Protocol[name] = x
		}
	}
	return desc, nil
}

// checkFormat looks whether there is such a format.
func checkFormat(d *config.Disk) error {
	var formats []string
	for _, drv := range block.Drivers() {
		if drv.Kind == block.KindFormat {
			formats = append(formats, drv.Name)
		}
	}
	switch {
	case d.Format == "" || slices.Contains(formats, d.Format):
		return nil
	case magic.Known(d.Format):
		return &config.Error{At: d.At, Msg: fmt.Sprintf("%s: format %s was asked for, %s", d.Path.Value, d.Format, graph.NotYet(d.Format, d.Path.Value))}
	}
	err := fmt.Errorf("%s: there is no format %q; there is: %s", d.Path.Value, d.Format, strings.Join(formats, ", "))
	err = withHint(err, d.Format, formats)
	return &config.Error{At: d.At, Msg: err.Error()}
}

// checkNodes holds a description against the drivers' tables, from the top
// down, and adds to a mistake which word was probably meant.
func checkNodes(vals block.Values) error {
	drv, err := block.FindDriver(vals["driver"])
	if err != nil {
		return withHint(err, vals["driver"], driverNames())
	}
	if _, err := drv.Check(vals); err != nil {
		return withHint(err, unknownOption(drv, vals), optionNames(drv))
	}
	for _, o := range drv.Options {
		if sub := vals.Sub(o.Name); o.Type == block.OptNode && sub != nil {
			if err := checkNodes(sub); err != nil {
				return below(o.Name, err)
			}
		}
	}
	return nil
}

// below says at which child a mistake is, where that is no matter of course.
func below(child string, err error) error {
	if child == "file" {
		return err
	}
	return fmt.Errorf("%s: %w", child, err)
}

func withHint(err error, given string, candidates []string) error {
	if near := config.Nearest(given, candidates); near != "" {
		return fmt.Errorf("%w; did you mean %s?", err, near)
	}
	return err
}

func driverNames() []string {
	var names []string
	for _, d := range block.Drivers() {
		names = append(names, d.Name)
	}
	return names
}

func optionNames(drv *block.Driver) []string {
	names := make([]string, 0, len(drv.Options))
	for _, o := range drv.Options {
		names = append(names, o.Name)
	}
	return names
}

// unknownOption is a name among vals that the driver does not have, or "".
func unknownOption(drv *block.Driver, vals block.Values) string {
	for name := range vals {
		first, _, _ := strings.Cut(name, ".")
		if name != "driver" && name != "node-name" && !hasOption(drv, name) && !hasOption(drv, first) {
			return first
		}
	}
	return ""
}

// withCacheAuto adds the daemon's own default: direct I/O where it works.
func withCacheAuto(defaults block.Values) block.Values {
	with := block.Values{"cache": "auto"}
	maps.Copy(with, defaults)
	return with
}

// bottom is the description of the node that reaches the storage.
func bottom(vals block.Values) block.Values {
	for sub := vals.Sub("file"); sub != nil; sub = vals.Sub("file") {
		vals = sub
	}
	return vals
}

func hasOption(d *block.Driver, name string) bool {
	for i := range d.Options {
		if d.Options[i].Name == name {
			return true
		}
	}
	return false
}

// checkDisks looks for mistakes in the descriptions before anything is opened:
// a setting for all disks that none can take is one, and so is no disk at all.
func checkDisks(cfg *config.Config) error {
	disks := cfg.Disks
	if len(disks) == 0 {
		return &config.Error{At: config.Place{File: cfg.File}, Msg: "there is nothing to serve: add disks (disks: [PATH]), or name one on the command line"}
	}
	used, given := block.Values{}, block.Values{}
	var places []*place
	for i := range disks {
		desc, err := describe(&disks[i])
		if err != nil {
			return err
		}
		if p := placeOf(&disks[i], desc); p != nil {
			places = append(places, p)
		}
		maps.Copy(used, desc.Protocol)
		maps.Copy(given, disks[i].Defaults)
	}
	for name := range given {
		if _, ok := used[name]; !ok {
			return &config.Error{At: config.Place{Flag: name}, Msg: "none of the disks has this option: leave it away"}
		}
	}
	if _, err := throttles(disks); err != nil {
		return err
	}
	return checkTwice(places)
}

// openDisk opens d, having made its file first where that was asked for and is
// needed. Nothing is offered yet.
func (d *Daemon) openDisk(ctx context.Context, cfg config.Disk) (*disk, error) {
	desc, err := describe(&cfg)
	if err != nil {
		return nil, err
	}
	dk := &disk{cfg: cfg, gate: newGate(&cfg)}
	if dk.created, err = d.createDisk(ctx, &cfg, desc); err != nil {
		return nil, diskError(&cfg, err)
	}
	if dk.inst, err = d.graph.Open(ctx, desc, cfg.Name, cfg.ReadOnly); err != nil {
		return nil, diskError(&cfg, err)
	}
	if size := dk.inst.Info().Size(); size < cfg.Create {
		err := block.Errorf(syscall.EEXIST, "%s: exists and has %d bytes (%s), less than --create asks for (%d): leave --create away to use it as it is, or make it larger first",
			cfg.Path.Value, size, block.FormatSize(size), cfg.Create)
		return nil, errors.Join(diskError(&cfg, err), d.graph.Remove(dk.inst.Name()))
	}
	return dk, nil
}

// createDisk makes the disk's storage unless it is there. It never touches what
// is there.
func (d *Daemon) createDisk(ctx context.Context, cfg *config.Disk, desc graph.Disk) (made bool, err error) {
	if cfg.Create == 0 {
		return false, nil
	}
	vals, err := desc.Values()
	if err != nil {
		return false, err
	}
	if file := bottom(vals)["filename"]; file != "" {
		if _, err := os.Lstat(file); err == nil {
			return false, nil
		}
	}
	if cfg.ReadOnly {
		return false, block.Errorf(syscall.EINVAL, "%s: there is nothing to read in a new disk: leave --create or --read-only away", cfg.Path.Value)
	}
	stop := d.showCreation(cfg, bottom(vals)["filename"])
	err = graph.Create(ctx, d.env, desc, graph.CreateOptions{Size: cfg.Create, Preallocation: cfg.Preallocation, Options: cfg.Creating})
	stop()
	if errors.Is(err, syscall.EEXIST) {
		return false, nil
	}
	return err == nil, err
}

// group has the counters of an export: the same ones when it comes back after a
// change.
func (d *Daemon) group(name string) *block.QueueGroup {
	if d.groups[name] == nil {
		d.groups[name] = block.NewQueueGroup()
	}
	return d.groups[name]
}

// exportShared is what users of a disk let other users do: exports and
// connections share it, and it can be resized under them.
const exportShared = block.PermAll

// addExports offers the disk under its names. first is the disk that clients
// reach who name none.
func (d *Daemon) addExports(dk *disk, isDefault func(name string) bool) error {
	for _, e := range dk.cfg.Exports {
		group := d.group(e.Name)
		if err := d.addExport(dk, e, group, false); err != nil {
			return errors.Join(err, d.dropExports(dk))
		}
		if e.Name != "" && isDefault(e.Name) {
			e.Name = ""
			if err := d.addExport(dk, e, group, true); err != nil {
				return errors.Join(err, d.dropExports(dk))
			}
		}
	}
	return nil
}

func (d *Daemon) addExport(dk *disk, e config.Export, group *block.QueueGroup, alias bool) error {
	perm := block.PermRead
	if !e.ReadOnly && !dk.cfg.ReadOnly {
		perm |= block.PermWrite
	}
	c, err := dk.inst.NewChild(fmt.Sprintf("export %q", e.Name), block.RoleRoot, perm, exportShared)
	if err != nil {
		return diskError(&dk.cfg, err)
	}
	if dk.cfg.IgnoreDiscard {
		c.IgnoreDiscard()
	}
	offer := nbd.Export{Name: e.Name, Description: e.Description, Child: c, ReadOnly: e.ReadOnly, Group: group, Hidden: alias}
	if dk.gate != nil {
		offer.Limiter = dk.gate
	}
	err = d.server.AddExport(offer)
	if err != nil {
		c.Close()
		return &config.Error{At: e.At, Msg: err.Error(), Err: err}
	}
	dk.exports = append(dk.exports, &export{e, c, alias})
	return nil
}

// dropExports disconnects the disk's clients and ends its exports. After an
// error some request is still in the storage, and the disk stays open.
func (d *Daemon) dropExports(dk *disk) error {
	for _, e := range slices.Clone(dk.exports) {
		if err := d.dropExport(dk, e); err != nil {
			return err
		}
	}
	return d.dropVhosts(dk)
}

// dropExport disconnects an export's clients and ends it.
func (d *Daemon) dropExport(dk *disk, e *export) error {
	ctx, cancel := context.WithTimeout(context.Background(), closeWait)
	defer cancel()
	if err := d.server.RemoveExport(ctx, e.cfg.Name); err != nil {
		return err
	}
	e.child.Close()
	dk.exports = slices.DeleteFunc(dk.exports, func(x *export) bool { return x == e })
	return nil
}

// closeDisk makes the disk durable and closes it. Its exports are gone.
func (d *Daemon) closeDisk(dk *disk) error {
	dk.gate.leave()
	flush := d.flush(dk)
	if err := d.graph.Remove(dk.inst.Name()); err != nil {
		return errors.Join(flush, fmt.Errorf("closing %s: %w", dk.cfg.Name, err))
	}
	return flush
}

// flush makes everything written to the disk durable.
func (d *Daemon) flush(dk *disk) error {
	if dk.inst.Info().ReadOnly {
		return nil
	}
	c, err := dk.inst.NewChild("shutdown", block.RoleRoot, block.PermRead, block.PermAll)
	if err != nil {
		return err
	}
	defer c.Close()
	rq := d.jobs.Begin()
	err = c.Flush(rq)
	d.jobs.End(rq, block.OpFlush, 0, err)
	if err != nil && !block.IsNotSupported(err) {
		return fmt.Errorf("%s: what was written last may be lost: %w", dk.cfg.Name, err)
	}
	return nil
}
