// Package image has the operations on whole images: info, create, convert, map,
// compare, measure, resize, check, snapshots, bitmaps, amend, rebase of a name,
// and dd. They work on any node that the caller's registry of drivers can open.
// Results are structs whose JSON has the fields and types of the reference's.
package image

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/graph"
	"github.com/platter-storage/platter/internal/realenv"
)

// Source says which image is meant and how it is opened.
type Source struct {
	// Name is a path, a URI, json:{…} or driver=…,….
	Name string
	// Options describe the image instead of Name.
	Options block.Values
	// Format is its format; empty lets it be found out.
	Format string
	// Cache is the mode of the file at the bottom; empty is writeback.
	Cache string
	// Shared opens without locks, for a look at an image that is in use.
	Shared bool
	// Trust follows whatever files the image names, and guesses its format
	// also where it is written to, as the reference does.
	Trust bool
	// Snapshot is the ID or name of an internal snapshot to show instead.
	Snapshot string
	// ForCheck opens an image whatever is wrong with it; NoBacking without
	// the backing file that it names.
	ForCheck, NoBacking bool
}

// String is what a person calls the image.
func (s Source) String() string {
	if s.Options == nil {
		return s.Name
	}
	for name := "filename"; len(name) < 80; name = "file." + name {
		if f := s.Options[name]; f != "" {
			return f
		}
	}
	return s.Options.String()
}

// Image is an opened image. Its methods may be called from many goroutines at
// once, Close when none of them runs.
type Image struct {
	Source Source
	env    *block.Env
	graph  *graph.Graph
	inst   *block.Instance
	child  *block.Child
	queue  *block.Queue
	ctx    context.Context
}

// Open opens an image. ctx bounds the opening and all its requests.
func Open(ctx context.Context, s Source, readOnly bool) (*Image, error) {
	env := realenv.New(slog.New(slog.NewTextHandler(io.Discard, nil)), 0)
	im := &Image{Source: s, env: env, graph: graph.New(env), ctx: ctx}
	if err := im.open(readOnly); err != nil {
		return nil, errors.Join(err, im.graph.Close(), env.CloseBuffers())
	}
	im.queue = block.NewQueue(env, block.NewQueueGroup())
	return im, nil
}

func (im *Image) open(readOnly bool) error {
	vals, err := im.Source.values()
	if err != nil {
		return err
	}
	if vals["driver"] == "" {
		if vals["driver"], err = im.format(vals); err != nil {
			return err
		}
	}
	if err := im.Source.adapt(vals); err != nil {
		return err
	}
	if im.inst, err = im.graph.Add(im.ctx, vals, readOnly || im.Source.Snapshot != ""); err != nil {
		return err
	}
	perm, shared := block.PermRead, block.PermAll
	if !readOnly && im.Source.Snapshot == "" {
		perm |= block.PermWrite | block.PermResize
	}
	im.child, err = im.inst.NewChild("image tool", block.RoleRoot, perm, shared)
	return err
}

// values are the description of the nodes, driver being empty where the format
// is to be found out.
func (s Source) values() (block.Values, error) {
	d := graph.Disk{Name: s.Name, Format: s.Format}
	if text, is := strings.CutPrefix(s.Name, "json:"); is && s.Trust {
		d.Name = "json:" + doubleQuoted(text)
	}
	if s.Options != nil {
		vals := maps.Clone(s.Options)
		bare := vals["driver"] == "" && vals["file.driver"] == "" && vals["file.filename"] == "" && vals["filename"] != ""
		if bare {
			d.Name = vals["filename"]
			return d.Values()
		}
		guess := vals["driver"] == ""
		if guess {
			vals["driver"] = "raw"
		}
		d.Name = vals.String()
		out, err := d.Values()
		if err == nil {
			lower(out)
		}
		if guess && err == nil {
			out["driver"] = ""
		}
		return out, err
	}
	vals, err := d.Values()
	whole := strings.HasPrefix(s.Name, "json:") || strings.HasPrefix(s.Name, "driver=")
	if err == nil && s.Format == "" && !whole {
		vals["driver"] = ""
	}
	return vals, err
}

// format finds out what an image is from its beginning, without following what
// it names.
func (im *Image) format(vals block.Values) (string, error) {
	probe := block.Values{"driver": "raw"}
	for k, x := range vals {
		if k == "file" || strings.HasPrefix(k, "file.") {
			probe[k] = x
		}
	}
	if err := (Source{Cache: im.Source.Cache, Shared: true}).adapt(probe); err != nil {
		return "", err
	}
	inst, err := im.graph.Add(im.ctx, probe, true)
	if err != nil {
		return "", err
	}
	q := block.NewQueue(im.env, block.NewQueueGroup())
	head, err := readHead(q, inst)
	if err := errors.Join(err, im.graph.Remove(inst.Name())); err != nil {
		return "", err
	}
	if d, score := block.Probe(head, im.Source.String()); d != nil && score > 0 {
		return d.Name, nil
	}
	if other := graph.Looks(head); other != "" {
		return "", block.Errorf(syscall.ENOTSUP, "%s begins like a %s image, %s; -f raw takes the bytes as they are", im.Source, other, graph.NotYet(other, im.Source.String()))
	}
	return "raw", nil
}

func readHead(q *block.Queue, inst *block.Instance) ([]byte, error) {
	c, err := inst.NewChild("format detection", block.RoleRoot, block.PermRead, block.PermAll)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	head := make([]byte, min(block.ProbeHead, c.Size()))
	rq := q.Begin()
	err = c.Preadv(rq, 0, block.Vec{head}, 0)
	q.End(rq, block.OpRead, int64(len(head)), err)
	return head, err
}

// adapt adds to a description what the source says beside it.
func (s Source) adapt(vals block.Values) error {
	prefix := ""
	for vals[prefix+"file.driver"] != "" {
		prefix += "file."
	}
	if d := vals[prefix+"driver"]; d == "file" || d == "host_device" {
		if s.Cache != "" && vals[prefix+"cache"] == "" {
			vals[prefix+"cache"] = s.Cache
		}
		if s.Shared {
			vals[prefix+"locking"] = "off"
		}
	}
	d, err := block.FindDriver(vals["driver"])
	if err != nil {
		return err
	}
	set := func(name, x string) {
		for _, o := range d.Options {
			if o.Name == name {
				vals[name] = x
			}
		}
	}
	if s.Trust {
		set("trust", "on")
	}
	if s.ForCheck {
		set("check", "on")
	}
	if s.NoBacking && vals.Sub("backing") == nil {
		set("backing", "")
	}
	if s.Snapshot != "" {
		set("snapshot", s.Snapshot)
		if vals["snapshot"] == "" {
			return block.Errorf(syscall.ENOTSUP, "%s: the format %s has no snapshots", s, d.Name)
		}
	}
	return nil
}

// Close flushes what was written and closes the image.
func (im *Image) Close() error {
	var err error
	if im.child.Perm()&block.PermWrite != 0 {
		err = im.Flush()
	}
	im.child.Close()
	im.queue.Close()
	return errors.Join(err, im.graph.Close(), im.env.CloseBuffers())
}

// Size is that of the disk in bytes.
func (im *Image) Size() int64 { return im.child.Size() }

// Format is the name of the image's driver.
func (im *Image) Format() string { return im.child.Info().Driver }

// Cluster is the image's unit of allocation in bytes, 0 where it has none.
func (im *Image) Cluster() int64 { return im.child.Info().Abilities.Cluster }

// do runs one request.
func (im *Image) do(op block.Op, n int64, f func(rq *block.Req) error) error {
	if err := im.ctx.Err(); err != nil {
		return err
	}
	rq := im.queue.Begin()
	if rq == nil {
		return block.Errorf(syscall.EBUSY, "%s: more than %d requests at once", im.Source, block.MaxReqs)
	}
	rq.SetContext(im.ctx)
	err := f(rq)
	im.queue.End(rq, op, n, err)
	return err
}

// Read reads len(p) bytes at off.
func (im *Image) Read(p []byte, off int64) error {
	return im.do(block.OpRead, int64(len(p)), func(rq *block.Req) error { return im.child.Preadv(rq, off, block.Vec{p}, 0) })
}

// Write writes p at off.
func (im *Image) Write(p []byte, off int64, fl block.Flags) error {
	return im.do(block.OpWrite, int64(len(p)), func(rq *block.Req) error { return im.child.Pwritev(rq, off, block.Vec{p}, fl) })
}

// WriteCompressed is block.Child.WriteCompressed.
func (im *Image) WriteCompressed(p []byte, off int64) error {
	return im.do(block.OpWrite, int64(len(p)), func(rq *block.Req) error { return im.child.WriteCompressed(rq, off, block.Vec{p}) })
}

// Zero makes n bytes at off read as zeroes.
func (im *Image) Zero(off, n int64, fl block.Flags) error {
	return im.do(block.OpZero, n, func(rq *block.Req) error { return im.child.WriteZeroes(rq, off, n, fl) })
}

// Discard says that n bytes at off are of no use any more.
func (im *Image) Discard(off, n int64) error {
	return im.do(block.OpDiscard, n, func(rq *block.Req) error { return im.child.Discard(rq, off, n) })
}

// Flush makes durable what was written.
func (im *Image) Flush() error {
	return im.do(block.OpFlush, 0, func(rq *block.Req) error { return im.child.Flush(rq) })
}

// Status describes the run at off, at most n bytes of it.
func (im *Image) Status(off, n int64) (e block.Extent, err error) {
	err = im.do(block.OpStatus, n, func(rq *block.Req) (err error) { e, err = im.child.BlockStatus(rq, off, n); return err })
	return e, err
}

// Truncate sets the size of the disk.
func (im *Image) Truncate(size int64, pre block.Prealloc) error {
	return im.do(block.OpTruncate, size, func(rq *block.Req) error { return im.child.Truncate(rq, size, pre) })
}

// exclusive calls one of the image's abilities.
func (im *Image) exclusive(perm block.Perm, f func(rq *block.Req, a *block.Abilities) error) error {
	return im.do(block.OpFlush, 0, func(rq *block.Req) error {
		return im.child.Exclusive(rq, perm, func(a *block.Abilities) error { return f(rq, a) })
	})
}

// with opens an image, calls f, and closes it.
func with(ctx context.Context, s Source, readOnly bool, f func(im *Image) error) error {
	im, err := Open(ctx, s, readOnly)
	if err != nil {
		return err
	}
	return errors.Join(f(im), im.Close())
}

// beside makes a name that an image holds for another file a path.
func beside(image, name string) string {
	scheme, _, is := strings.Cut(name, ":")
	if name == "" || filepath.IsAbs(name) || is && !strings.Contains(scheme, "/") {
		return name
	}
	return filepath.Join(filepath.Dir(image), name)
}

// regular reports whether name is a regular file; exists whether there is
// anything of that name.
func regular(name string) (is, exists bool) {
	fi, err := os.Lstat(name)
	return err == nil && fi.Mode().IsRegular(), !errors.Is(err, os.ErrNotExist)
}
