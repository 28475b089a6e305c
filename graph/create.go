package graph

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"syscall"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/policy"
)

// CreateOptions say what to create.
type CreateOptions struct {
	Size          int64
	Preallocation string // as the driver has it; empty is its default
	Overwrite     bool
	// Options are further ones of the driver's table for creating.
	Options block.Values
}

// Create makes the storage of a disk, and the image in it where its format is not
// raw. Nothing stays open.
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
	format, err := block.FindDriver(vals["driver"])
	if err != nil {
		return err
	}
	if drv.Create == nil {
		return block.Errorf(syscall.ENOTSUP, "%s: cannot be created: driver %s cannot create storage", d.Name, drv.Name)
	}
	if format.Kind == block.KindFormat && format.Create != nil {
		return createFormat(ctx, env, d.Name, format, drv, vals, proto, o)
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

// createFormat makes an image: empty storage first, then the format in it. The
// options are the format's, or else the storage's.
func createFormat(ctx context.Context, env *block.Env, name string, format, drv *block.Driver, vals, proto block.Values, o CreateOptions) error {
	below, own := CreateOptions{Overwrite: o.Overwrite, Options: block.Values{}}, block.Values{}
	for k, x := range o.Options {
		if format.HasCreateOption(k) || !drv.HasCreateOption(k) {
			own[k] = x
		} else {
			below.Options[k] = x
		}
	}
	if o.Preallocation != "" {
		own["preallocation"] = o.Preallocation
	}
	formatOpts, err := format.CheckCreate(own)
	if err != nil {
		return fmt.Errorf("%s: cannot be created: %w", name, err)
	}
	opts, err := createOptions(drv, proto, below)
	if err != nil {
		return fmt.Errorf("%s: cannot be created: %w", name, err)
	}
	if err := drv.Create(ctx, &block.CreateArgs{Env: env, Options: opts}); err != nil {
		return err
	}
	if data := own["data_file"]; data != "" {
		if err := createData(ctx, env, proto["filename"], data, o); err != nil {
			return err
		}
	}
	g := New(env)
	inst, err := g.Add(ctx, vals.Sub("file"), false)
	if err != nil {
		return err
	}
	file, err := inst.NewChild("creation", block.RoleRoot, block.PermAll, block.PermRead)
	if err != nil {
		return errors.Join(err, g.Close())
	}
	err = format.Create(ctx, &block.CreateArgs{Env: env, Options: formatOpts, Size: o.Size, File: file})
	if err != nil {
		err = fmt.Errorf("%s: cannot be created: %w", name, err)
	}
	file.Close()
	return errors.Join(err, g.Close())
}

// createData makes the external data file of an image, unless it is there: then
// its content is the user's affair.
func createData(ctx context.Context, env *block.Env, image, data string, o CreateOptions) error {
	path, err := policy.Follow(image, data, "data-file", true)
	if err != nil {
		return err
	}
	if _, err := os.Stat(path); err == nil && !o.Overwrite {
		return nil
	}
	return Create(ctx, env, Disk{Name: path, Format: "raw"}, CreateOptions{Size: o.Size, Overwrite: o.Overwrite})
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
