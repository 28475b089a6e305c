package serve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"syscall"

	"github.com/platter-storage/platter/api"
	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/ratelimit"
)

// Resize is what a disk shall be.
type Resize struct {
	// Size in bytes, or with a suffix: 20G.
	Size string `json:"size"`
	// Shrink permits less than now: what is behind is lost.
	Shrink bool `json:"shrink,omitempty"`
	// Preallocation of what is added: off, falloc or full.
	Preallocation string `json:"preallocation,omitempty"`
}

// Throttle are limits in the words of --throttle.
type Throttle struct {
	Limits string `json:"limits"`
}

// routes are what can be asked for over HTTP.
func (d *Daemon) routes() []api.Route {
	return []api.Route{
		{Method: "GET", Path: "/api/v1/status", Summary: "the daemon: counters, clients, listeners", Answer: Status{},
			Do: func(context.Context, *api.Call) (any, error) { return d.status(), nil }},
		{Method: "GET", Path: "/api/v1/disks", Summary: "all disks: nodes with their limits and decisions, exports, counters, front ends", Answer: []DiskStatus{},
			Do: func(context.Context, *api.Call) (any, error) { return d.diskStatus(""), nil }},
		{Method: "GET", Path: "/api/v1/disks/{name}", Summary: "one disk", Answer: DiskStatus{}, Do: d.getDisk},
		{Method: "PUT", Path: "/api/v1/disks/{name}/throttle", Summary: "other limits, in place: a disk that was started with some", Body: &Throttle{}, Long: true, Do: d.putThrottle},
		{Method: "POST", Path: "/api/v1/disks/{name}/flush", Summary: "make what was written durable", Long: true, Do: d.postFlush},
		{Method: "POST", Path: "/api/v1/disks/{name}/resize", Summary: "another size; virtual machines are told at once, NBD clients when they connect", Body: &Resize{}, Long: true, Do: d.postResize},
	}
}

func (d *Daemon) getDisk(_ context.Context, c *api.Call) (any, error) {
	if all := d.diskStatus(c.Param("name")); len(all) > 0 {
		return all[0], nil
	}
	return nil, d.notFound(c.Param("name"))
}

// withDisk runs f while nothing else changes the daemon.
func (d *Daemon) withDisk(name string, f func(dk *disk) (string, error)) (any, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, dk := range d.disks {
		if dk.cfg.Name == name && !d.stopped {
			text, err := f(dk)
			d.publish()
			return text, statusOf(err)
		}
	}
	return nil, d.notFound(name)
}

// statusOf gives an error the HTTP status that says whose fault it is.
func statusOf(err error) error {
	if err == nil {
		return nil
	}
	status := http.StatusInternalServerError
	switch {
	case errors.Is(err, syscall.EINVAL):
		status = http.StatusBadRequest
	case errors.Is(err, syscall.EROFS), errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EBUSY), block.IsNotSupported(err):
		status = http.StatusConflict
	case errors.Is(err, syscall.ENOSPC):
		status = http.StatusInsufficientStorage
	}
	return api.Errorf(status, "%v", err)
}

func (d *Daemon) putThrottle(_ context.Context, c *api.Call) (any, error) {
	vals, err := block.ParseOptions(c.Body.(*Throttle).Limits)
	if err != nil {
		return nil, statusOf(err)
	}
	s, err := ratelimit.Parse(vals)
	if err != nil {
		return nil, statusOf(err)
	}
	return d.withDisk(c.Param("name"), func(dk *disk) (string, error) {
		if dk.gate == nil {
			return "", block.Errorf(syscall.EBUSY, "disk %s was opened without limits, and its requests ask nobody: start it with --throttle (iops-total=1G is as good as none) to change them later", dk.cfg.Name)
		}
		if _, err := dk.gate.set(s); err != nil {
			return "", err
		}
		return fmt.Sprintf("disk %s: %v", dk.cfg.Name, dk.gate), nil
	})
}

// find is the open disk of that name, without keeping it open.
func (d *Daemon) find(name string) (*disk, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, dk := range d.disks {
		if dk.cfg.Name == name && !d.stopped {
			return dk, nil
		}
	}
	return nil, d.notFound(name)
}

// edge opens an edge of the API's own to a disk: while it is open the disk stays
// open too, and the daemon's lock is not held while storage works.
func (d *Daemon) edge(name string, perm block.Perm) (*disk, *block.Child, error) {
	dk, err := d.find(name)
	if err != nil {
		return nil, nil, err
	}
	c, err := dk.inst.NewChild("api", block.RoleRoot, perm, block.PermAll)
	if err != nil {
		return nil, nil, statusOf(err)
	}
	return dk, c, nil
}

func (d *Daemon) postFlush(_ context.Context, c *api.Call) (any, error) {
	dk, child, err := d.edge(c.Param("name"), block.PermRead)
	if err != nil {
		return nil, err
	}
	defer child.Close()
	rq := d.jobs.Begin()
	err = child.Flush(rq)
	d.jobs.End(rq, block.OpFlush, 0, err)
	if err != nil {
		return nil, statusOf(err)
	}
	return "disk " + dk.cfg.Name + ": what was written is durable", nil
}

func orOff(mode string) string {
	if mode == "" {
		return "off"
	}
	return mode
}

func (d *Daemon) postResize(_ context.Context, c *api.Call) (any, error) {
	want := c.Body.(*Resize)
	size, err := block.ParseSize(want.Size)
	if err != nil {
		return nil, statusOf(err)
	}
	pre, ok := block.ParsePrealloc(orOff(want.Preallocation))
	if !ok {
		return nil, api.Errorf(http.StatusBadRequest, "preallocation %q is not possible: off, falloc or full", want.Preallocation)
	}
	dk, child, err := d.edge(c.Param("name"), block.PermRead|block.PermWrite|block.PermResize)
	if err != nil {
		return nil, err
	}
	defer child.Close()
	was := child.Size()
	if size < was && !want.Shrink {
		return nil, api.Errorf(http.StatusConflict, "disk %s has %s (%d bytes), more than %s: what is behind would be lost; say shrink if that is meant", dk.cfg.Name, block.FormatSize(was), was, block.FormatSize(size))
	}
	rq := d.jobs.Begin()
	err = child.Truncate(rq, size, pre)
	d.jobs.End(rq, block.OpTruncate, 0, err)
	if err != nil {
		return nil, statusOf(err)
	}
	d.log.Info("the size of a disk was changed over HTTP", "disk", dk.cfg.Name, "was", was, "is", child.Size())
	return fmt.Sprintf("disk %s has %s (%d bytes) now, it had %d", dk.cfg.Name, block.FormatSize(child.Size()), child.Size(), was), nil
}
