package graph

import (
	"context"
	"fmt"
	"maps"
	"syscall"

	"github.com/platter-storage/platter/block"
)

// CreateOptions say what to create.
type CreateOptions struct {
	Size          int64
	Preallocation string // as the driver has it; empty is its default
	Overwrite     bool
	// Options are further ones of the driver's table for creating.
	Options block.Values
}

// Create makes the storage of a raw disk. Nothing stays open.
func Create(ctx context.Context, env *block.Env, d Disk, o CreateOptions) error {
	if o.Size < 0 {
		return block.Errorf(syscall.EINVAL, "%s: cannot be created: a size of %d bytes is not possible", d.Name, o.Size)
	}
	vals, err := d.Values()
	if err != nil {
		return err
	}
	proto := vals
	for sub := proto.Sub("file"); sub != nil; sub = proto.Sub("file") {
		proto = sub
	}
	drv, err := block.FindDriver(proto["driver"])
	if err != nil {
		return err
	}
	if drv.Create == nil {
		return block.Errorf(syscall.ENOTSUP, "%s: cannot be created: driver %s cannot create storage", d.Name, drv.Name)
	}
	opts, err := createOptions(drv, proto, o)
	if err != nil {
		return fmt.Errorf("%s: cannot be created: %w", d.Name, err)
	}
	if err := drv.Create(ctx, &block.CreateArgs{Env: env, Options: opts, Size: o.Size}); err != nil {
		return err // it names the file
	}
	return nil
}

// createOptions are those of proto that creation has, and o's.
func createOptions(drv *block.Driver, proto block.Values, o CreateOptions) (*block.Options, error) {
	vals := maps.Clone(proto)
	maps.DeleteFunc(vals, func(k, _ string) bool { return !drv.HasCreateOption(k) })
	maps.Copy(vals, o.Options)
	if o.Preallocation != "" {
		vals["preallocation"] = o.Preallocation
	}
	if o.Overwrite {
		vals["overwrite"] = "on"
	}
	return drv.CheckCreate(vals)
}
