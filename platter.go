// Package platter opens disk images, of any format and on any storage that it
// knows, for reading and writing in a Go program:
//
//	disk, err := platter.Open(ctx, "disk.img")
//
// A Disk is an io.ReaderAt and io.WriterAt of any alignment, with what a disk
// has beyond that: Flush, Discard, WriteZeroes, BlockStatus, Resize. All its
// methods may be called from many goroutines at once.
//
// Open takes what the command line takes: a path, a URI such as null:4G or
// mem:1G, or a whole description (driver=…,… or json:{…}).
package platter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"syscall"

	"github.com/platter-storage/platter/block"
	_ "github.com/platter-storage/platter/filter/all" // what Open can open
	_ "github.com/platter-storage/platter/format/all"
	"github.com/platter-storage/platter/graph"
	"github.com/platter-storage/platter/internal/realenv"
	_ "github.com/platter-storage/platter/protocol/all"
)

// Disk is an opened disk. Close it to release its locks and memory.
type Disk struct {
	env   *block.Env
	graph *graph.Graph
	child *block.Child
	queue *block.Queue
	group *block.QueueGroup
}

// Extent describes a run of a disk's content; see block.Extent.
type Extent = block.Extent

// Stats are a disk's counters; see block.Stats.
type Stats = block.Stats

// settings are what the options set.
type settings struct {
	disk      graph.Disk
	readOnly  bool
	bufLimit  int64
	log       *slog.Logger
	overwrite bool
	prealloc  string
}

// Option alters how Open and Create work.
type Option func(*settings)

// ReadOnly opens the disk for reading only.
func ReadOnly() Option { return func(s *settings) { s.readOnly = true } }

// Format says which format the image has: "raw" today. Without it a file that
// begins like an image of another format is refused.
func Format(name string) Option { return func(s *settings) { s.disk.Format = name } }

// Cache chooses the cache mode of a file: none, writeback, writethrough,
// directsync, unsafe, or auto (the default: direct I/O where it works).
func Cache(mode string) Option { return protocolOption("cache", mode) }

// AIO chooses how requests reach the kernel: auto, io_uring, native or threads.
func AIO(engine string) Option { return protocolOption("aio", engine) }

// Locking is auto, on or off: whether the file is locked against other
// writers, as QEMU locks it.
func Locking(mode string) Option { return protocolOption("locking", mode) }

// With sets any option of the driver at the bottom by its name.
func With(name, value string) Option { return protocolOption(name, value) }

func protocolOption(name, value string) Option {
	return func(s *settings) { s.disk.Protocol[name] = value }
}

// Logger is where warnings go: by default slog.Default().
func Logger(l *slog.Logger) Option { return func(s *settings) { s.log = l } }

// BufferMemory bounds the memory for bounce buffers, in bytes.
func BufferMemory(n int64) Option { return func(s *settings) { s.bufLimit = n } }

// Overwrite lets Create replace a file that exists.
func Overwrite() Option { return func(s *settings) { s.overwrite = true } }

// Preallocation is off, falloc or full: what Create does about the space.
func Preallocation(mode string) Option { return func(s *settings) { s.prealloc = mode } }

func apply(name string, opts []Option) *settings {
	s := &settings{log: slog.Default(), disk: graph.Disk{Name: name, Protocol: block.Values{}}}
	for _, o := range opts {
		o(s)
	}
	return s
}

// Open opens the disk called name. ctx bounds the opening only.
func Open(ctx context.Context, name string, opts ...Option) (*Disk, error) {
	s := apply(name, opts)
	env := realenv.New(s.log, s.bufLimit)
	g := graph.New(env)
	inst, err := g.Open(ctx, s.disk, "", s.readOnly)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", name, err), env.CloseBuffers())
	}
	perm := block.PermRead
	if !s.readOnly {
		perm |= block.PermWrite | block.PermResize
	}
	child, err := inst.NewChild("library user", block.RoleRoot, perm, block.PermAll)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", name, err), g.Close(), env.CloseBuffers())
	}
	group := block.NewQueueGroup()
	return &Disk{env: env, graph: g, child: child, queue: block.NewQueue(env, group), group: group}, nil
}

// Create makes a raw disk of size bytes in the file called name. It refuses a
// file that exists unless Overwrite is given.
func Create(ctx context.Context, name string, size int64, opts ...Option) error {
	s := apply(name, opts)
	env := realenv.New(s.log, s.bufLimit)
	err := graph.Create(ctx, env, s.disk, graph.CreateOptions{Size: size, Preallocation: s.prealloc, Overwrite: s.overwrite})
	return errors.Join(err, env.CloseBuffers())
}

// Size is the disk's size in bytes.
func (d *Disk) Size() int64 { return d.child.Size() }

// do runs one request on the disk's queue.
func (d *Disk) do(op block.Op, n int64, f func(rq *block.Req) error) error {
	rq := d.queue.Begin()
	if rq == nil {
		return block.Errorf(syscall.EBUSY, "more than %d requests at once", block.MaxReqs)
	}
	err := f(rq)
	d.queue.End(rq, op, n, err)
	return err
}

// ReadAt reads len(p) bytes from off, as io.ReaderAt has it: at the end of the
// disk it reads what is there and returns io.EOF.
func (d *Disk) ReadAt(p []byte, off int64) (int, error) {
	n, short := clip(len(p), off, d.Size())
	if n < 0 {
		return 0, block.Errorf(syscall.EINVAL, "read at negative offset %d", off)
	}
	err := d.do(block.OpRead, int64(n), func(rq *block.Req) error { return d.child.Preadv(rq, off, block.Vec{p[:n]}, 0) })
	switch {
	case err != nil:
		return 0, err
	case short:
		return n, io.EOF
	}
	return n, nil
}

// WriteAt writes p at off. A disk does not grow by writing: what would pass
// the end is refused whole, with io.ErrShortWrite among the causes.
func (d *Disk) WriteAt(p []byte, off int64) (int, error) {
	if n, short := clip(len(p), off, d.Size()); n < 0 || short {
		return 0, fmt.Errorf("write of %d bytes at offset %d passes the end of the disk at %d (Resize makes it larger): %w",
			len(p), off, d.Size(), io.ErrShortWrite)
	}
	err := d.do(block.OpWrite, int64(len(p)), func(rq *block.Req) error { return d.child.Pwritev(rq, off, block.Vec{p}, 0) })
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

// clip is how many of n bytes from off lie before size; negative where off is.
func clip(n int, off, size int64) (int, bool) {
	switch {
	case off < 0:
		return -1, false
	case off >= size:
		return 0, n > 0
	case int64(n) > size-off:
		return int(size - off), true
	}
	return n, false
}

// Flush makes all writes that completed before it durable.
func (d *Disk) Flush() error {
	return d.do(block.OpFlush, 0, func(rq *block.Req) error { return d.child.Flush(rq) })
}

// Discard says that the content of [off, off+n) is of no use any more.
func (d *Disk) Discard(off, n int64) error {
	return d.do(block.OpDiscard, n, func(rq *block.Req) error { return d.child.Discard(rq, off, n) })
}

// WriteZeroes makes [off, off+n) read as zeroes; unmap allows to give its
// space back.
func (d *Disk) WriteZeroes(off, n int64, unmap bool) error {
	var fl block.Flags
	if unmap {
		fl = block.MayUnmap
	}
	return d.do(block.OpZero, n, func(rq *block.Req) error { return d.child.WriteZeroes(rq, off, n, fl) })
}

// BlockStatus describes the run that starts at off, at most n bytes of it.
func (d *Disk) BlockStatus(off, n int64) (e Extent, err error) {
	err = d.do(block.OpStatus, n, func(rq *block.Req) error {
		e, err = d.child.BlockStatus(rq, off, n)
		return err
	})
	return e, err
}

// Resize sets the disk's size. What is added reads as zeroes.
func (d *Disk) Resize(size int64) error {
	return d.do(block.OpTruncate, size, func(rq *block.Req) error { return d.child.Truncate(rq, size, block.PreallocOff) })
}

// Limits are what the storage can take as it stands; the Disk's methods take
// anything, and copy where they must.
func (d *Disk) Limits() block.Limits { return *d.child.Limits() }

// Explain says in sentences how the disk was opened and why.
func (d *Disk) Explain() []string {
	var all []string
	for _, inst := range d.graph.Nodes() {
		if f := inst.Info().Abilities.Explain; f != nil {
			all = append(all, f()...)
		}
	}
	return all
}

// Stats are the disk's counters since it was opened.
func (d *Disk) Stats() *Stats { return d.group.Stats() }

// Close flushes and closes the disk. No other method may be running.
func (d *Disk) Close() error {
	var err error
	if d.child.Perm()&block.PermWrite != 0 {
		err = d.Flush()
	}
	d.child.Close()
	d.queue.Close()
	return errors.Join(err, d.graph.Close(), d.env.CloseBuffers())
}

// Interfaces of the standard library that a Disk satisfies.
var (
	_ io.ReaderAt = (*Disk)(nil)
	_ io.WriterAt = (*Disk)(nil)
	_ io.Closer   = (*Disk)(nil)
)
