package image

import (
	"context"
	"io"
	"log/slog"
	"maps"
	"syscall"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/graph"
	"github.com/platter-storage/platter/internal/realenv"
)

// CreateOptions say what Create makes.
type CreateOptions struct {
	// Format is raw where it is empty.
	Format string
	// Size is in bytes; negative takes that of the backing file.
	Size int64
	// Backing is the name as it is to stand in the image, BackingFormat its
	// format.
	Backing, BackingFormat string
	// Unchecked does not look at the backing file.
	Unchecked bool
	// Options are further ones of the format and the storage.
	Options block.Values
	// Trust is that of Source, for the backing file.
	Trust bool
}

// Create makes an image, over what there is of that name. It returns the size of
// its disk.
func Create(ctx context.Context, name string, o CreateOptions) (int64, error) {
	if o.Format == "" {
		o.Format = "raw"
	}
	vals := block.Values{}
	maps.Copy(vals, o.Options)
	if x, has := vals["backing_file"]; has && o.Backing == "" {
		o.Backing = x
	}
	if x, has := vals["backing_fmt"]; has && o.BackingFormat == "" {
		o.BackingFormat = x
	}
	delete(vals, "backing_file")
	delete(vals, "backing_fmt")
	if x, has := vals["size"]; has {
		n, err := block.ParseSize(x)
		if err != nil {
			return 0, err
		}
		if delete(vals, "size"); o.Size < 0 {
			o.Size = n
		}
	}
	if o.Backing != "" {
		vals["backing_file"] = o.Backing
		if o.BackingFormat == "" {
			return 0, block.Errorf(syscall.EINVAL, "%s: the format of the backing file %q is not given; a guest could choose it: say it with -F", name, o.Backing)
		}
		vals["backing_fmt"] = o.BackingFormat
		if err := o.lookBelow(ctx, name); err != nil {
			return 0, err
		}
	}
	if o.Size < 0 {
		return 0, block.Errorf(syscall.EINVAL, "%s: an image needs a size: give one, as in 10G, or a backing file to take it from", name)
	}
	if o.Format == "raw" {
		o.Size = (o.Size + 511) &^ 511 // whole sectors, as the reference
	}
	dashed(o.Format, vals)
	pre := vals["preallocation"]
	delete(vals, "preallocation")
	env := realenv.New(slog.New(slog.NewTextHandler(io.Discard, nil)), 0)
	err := graph.Create(ctx, env, graph.Disk{Name: name, Format: o.Format},
		graph.CreateOptions{Size: o.Size, Preallocation: pre, Overwrite: true, Options: vals})
	if cerr := env.CloseBuffers(); err == nil {
		err = cerr
	}
	return o.Size, err
}

// lookBelow opens the backing file, to see that it is there and how large.
func (o *CreateOptions) lookBelow(ctx context.Context, name string) error {
	if o.Unchecked {
		return nil
	}
	s := Source{Name: beside(name, o.Backing), Format: o.BackingFormat, Trust: o.Trust, Shared: true}
	return with(ctx, s, true, func(im *Image) error {
		if o.Size < 0 {
			o.Size = im.Size()
		}
		return nil
	})
}
