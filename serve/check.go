package serve

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/serve/config"
)

// check opens what cfg asks for, says how, and closes it. Nothing is made and
// nobody can connect.
func (p *program) check(ctx context.Context, cfg *config.Config) error {
	d := &Daemon{log: p.log, cfg: cfg, began: time.Now(), groups: map[string]*block.QueueGroup{}, lastLeft: make(chan struct{})}
	r, err := d.check(ctx)
	if err == nil {
		r.verbose = p.Verbose
		p.event("checked", r)
		p.out.flush()
	}
	return errors.Join(err, d.Stop(ctx))
}

func (d *Daemon) check(ctx context.Context) (*Ready, error) {
	if err := checkDisks(d.cfg); err != nil {
		return nil, err
	}
	tlsConfig, err := loadCertificates(d.cfg.TLS)
	if err != nil {
		return nil, err
	}
	if err := d.makeServer(tlsConfig); err != nil {
		return nil, err
	}
	r := d.Ready()
	r.checked = true
	limits, err := throttles(d.cfg.Disks)
	if err != nil {
		return nil, err
	}
	for i, cfg := range d.cfg.Disks {
		di, err := d.checkDisk(ctx, cfg)
		if err != nil {
			return nil, err
		}
		if len(cfg.Throttle) > 0 {
			di.Throttle = limits[i].String()
		}
		r.Disks = append(r.Disks, di)
	}
	return r, nil
}

// checkDisk opens a disk, unless it would have to be made first. One that is in
// use is no mistake: it may be this configuration that is served already.
func (d *Daemon) checkDisk(ctx context.Context, cfg config.Disk) (DiskInfo, error) {
	di := DiskInfo{Name: cfg.Name, Path: cfg.Path.Value, ReadOnly: cfg.ReadOnly}
	if missing, err := wouldMake(&cfg); err != nil || missing {
		di.Size, di.Note = cfg.Create, "is not there: it would be made"
		return di, err
	}
	dk, err := d.openDisk(ctx, cfg)
	if errors.Is(err, syscall.EAGAIN) {
		di.Note = fmt.Sprintf("not opened: %v", err)
		return di, nil
	}
	if err != nil {
		return di, err
	}
	d.disks = append(d.disks, dk) // closed by Stop
	return d.describeDisk(dk), nil
}

// wouldMake reports whether starting would make the disk's file.
func wouldMake(cfg *config.Disk) (bool, error) {
	if cfg.Create == 0 {
		return false, nil
	}
	desc, err := describe(cfg)
	if err != nil {
		return false, err
	}
	vals, err := desc.Values()
	if err != nil {
		return false, err
	}
	_, err = os.Lstat(bottom(vals)["filename"])
	return errors.Is(err, os.ErrNotExist), nil
}
