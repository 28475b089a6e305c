package image

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/platter-storage/platter/block"
)

// Limits of a conversion: workers, the bytes that each moves at once, and the
// largest granularity of zero detection.
const (
	MaxWorkers   = 16
	copyPiece    = 2 << 20
	MaxSparse    = 16 << 20
	statusPiece  = 1 << 30 // asked for in one block status
	maxRateSleep = 1e9     // nanoseconds; the context is looked at in between
)

// ConvertOptions say how Convert works. The zero value makes a raw image,
// with holes where the source has zeroes.
type ConvertOptions struct {
	// Create is the target; Size is the sources' unless it is positive.
	Create CreateOptions
	// NoCreate writes to a target that is there, TargetIsZero says that all
	// of it reads as zeroes. Target then says how to open it.
	NoCreate, TargetIsZero bool
	Target                 *Source
	// Cache is the target's cache mode while it is written; empty is
	// unsafe, which leaves durability to the flush at the end.
	Cache string
	// Sparse is the granularity of zero detection in bytes; 0 writes all.
	Sparse int64
	// Compress writes compressed clusters.
	Compress bool
	// Workers is how many pieces are moved at once, at most MaxWorkers.
	Workers int
	// Rate bounds reading in bytes a second; 0 does not.
	Rate int64
	// Salvage takes what cannot be read for zeroes.
	Salvage bool
	// Skip and Count are the part of the source, in bytes; Count 0 is all.
	Skip, Count int64
	// Report is told of each piece that Salvage gave up.
	Report   func(line string)
	Progress block.Progress
}

// conversion is one under way.
type conversion struct {
	o          ConvertOptions
	src        []*Image
	starts     []int64 // of each source in the target
	dst        *Image
	size       int64
	blank      bool // the target reads as zeroes where nothing was written
	onBacking  bool // gaps of the source are gaps of the target
	granule    int64
	done       atomic.Int64
	begun      time.Time
	reportLock sync.Mutex // held while Report or Progress is called
}

// job is a piece to move, within one source.
type job struct {
	im       *Image
	from, to int64
	n        int64
	zero     bool
}

// Convert copies the content of the sources, one after the other, to an image
// called name. A new file gets its name only when it is whole: what is left of a
// conversion that was killed is called .NAME.partial.
func Convert(ctx context.Context, sources []Source, name string, o ConvertOptions) (err error) {
	c := &conversion{o: o, begun: time.Now()}
	defer func() {
		for _, im := range c.src {
			err = errors.Join(err, im.Close())
		}
	}()
	for _, s := range sources {
		im, err := Open(ctx, s, true)
		if err != nil {
			return err
		}
		c.src, c.starts = append(c.src, im), append(c.starts, c.size)
		c.size += im.Size()
	}
	if err := c.window(); err != nil {
		return err
	}
	if o.NoCreate {
		return c.into(ctx, *o.Target)
	}
	if o.Create.Size <= 0 {
		c.o.Create.Size = c.size
	}
	_, exists := regular(name)
	if exists || !plain(name) {
		return c.fresh(ctx, name)
	}
	partial := filepath.Join(filepath.Dir(name), "."+filepath.Base(name)+".partial")
	if err := c.fresh(ctx, partial); err != nil {
		return errors.Join(err, os.Remove(partial))
	}
	return os.Rename(partial, name)
}

// plain reports whether name is a path and no URI.
func plain(name string) bool {
	return block.DriverForURI(name) == nil && filepath.Base(name) != "." && len(filepath.Base(name)) < 240
}

// window cuts the sources down to the part that was asked for.
func (c *conversion) window() error {
	if c.o.Skip < 0 || c.o.Count < 0 {
		return block.Errorf(syscall.EINVAL, "a part of an image has no negative offset or length")
	}
	c.size = max(c.size-c.o.Skip, 0)
	if c.o.Count > 0 {
		c.size = min(c.size, c.o.Count)
	}
	return nil
}

// fresh makes the target, and fills it.
func (c *conversion) fresh(ctx context.Context, name string) error {
	if _, err := Create(ctx, name, c.o.Create); err != nil {
		return err
	}
	format := c.o.Create.Format
	if format == "" {
		format = "raw"
	}
	pre := c.o.Create.Options["preallocation"]
	c.onBacking = c.o.Create.Backing != "" || c.o.Create.Options["backing_file"] != ""
	fi, err := os.Stat(name)
	c.blank = !c.onBacking && pre != "full" && err == nil && fi.Mode().IsRegular()
	return c.into(ctx, Source{Name: name, Format: format, Trust: c.o.Create.Trust})
}

// into opens the target and fills it.
func (c *conversion) into(ctx context.Context, s Source) error {
	s.Cache = c.o.Cache
	if s.Cache == "" {
		s.Cache = "unsafe"
	}
	c.blank = c.blank || c.o.TargetIsZero
	var err error
	if c.dst, err = Open(ctx, s, false); err != nil {
		return err
	}
	if c.dst.Size() < c.size {
		return errors.Join(block.Errorf(syscall.ENOSPC, "%s has %d bytes, and the source %d", s, c.dst.Size(), c.size), c.dst.Close())
	}
	if c.o.Compress && c.dst.child.Info().Abilities.WriteCompressed == nil {
		return errors.Join(c.dst.lacks("compression"), c.dst.Close())
	}
	c.granule = c.o.Sparse
	err = c.run()
	if err = errors.Join(err, c.dst.Close()); err == nil && s.Cache == "unsafe" {
		err = syncFile(s.String())
	}
	return err
}

// syncFile makes durable what was written with the mode unsafe. What is no
// regular file has been flushed by its driver.
func syncFile(name string) error {
	if is, _ := regular(name); !is {
		return nil
	}
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// run moves everything with workers, and stops all at the first error.
func (c *conversion) run() error {
	workers := min(max(c.o.Workers, 1), MaxWorkers)
	jobs, stop := make(chan job), make(chan struct{})
	var once sync.Once
	var failed error
	fail := func(err error) { once.Do(func() { failed = err; close(stop) }) }
	var wg sync.WaitGroup
	for range workers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			buf := make([]byte, c.piece())
			for j := range jobs {
				if err := c.move(j, buf); err != nil {
					fail(err)
					return
				}
			}
		}()
	}
	err := c.plan(func(j job) bool {
		select {
		case jobs <- j:
			return true
		case <-stop:
			return false
		}
	})
	close(jobs)
	wg.Wait()
	return errors.Join(failed, err)
}

// piece is how many bytes are moved at once: whole clusters where they are
// compressed.
func (c *conversion) piece() int64 {
	if c.o.Compress {
		return c.dst.Cluster()
	}
	return max(copyPiece, c.dst.Cluster())
}

// plan gives out the pieces, until give says that it is enough.
func (c *conversion) plan(give func(job) bool) error {
	if c.o.Compress {
		return c.planClusters(give)
	}
	for i, im := range c.src {
		off := max(c.o.Skip-c.starts[i], 0)
		for off < im.Size() {
			to := c.starts[i] + off - c.o.Skip
			if to >= c.size {
				return nil
			}
			e, err := im.Status(off, min(statusPiece, im.Size()-off, c.size-to))
			if err != nil && !c.o.Salvage {
				return err
			}
			if err != nil {
				e = block.Extent{Len: min(c.piece(), im.Size()-off, c.size-to), Data: true, Allocated: true}
			}
			// A piece begins where the one before it ended, on whole clusters
			// of the target.
			end := off + e.Len
			if !c.run1(im, e, off, to, give) {
				return nil
			}
			off = end
		}
	}
	return nil
}

// run1 gives out one extent.
func (c *conversion) run1(im *Image, e block.Extent, off, to int64, give func(job) bool) bool {
	if c.onBacking && (e.Depth > 0 || !e.Allocated) {
		c.advance(e.Len)
		return true
	}
	if e.Zero {
		if c.blank && c.o.Sparse > 0 {
			c.advance(e.Len)
			return true
		}
		return give(job{im, off, to, e.Len, true})
	}
	for left := e.Len; left > 0; {
		// Up to the next boundary of a piece, so that clusters are whole.
		n := min(c.piece()-to%c.piece(), left)
		if !give(job{im, off, to, n, e.Zero}) {
			return false
		}
		off, to, left = off+n, to+n, left-n
	}
	return true
}

// planClusters gives out whole clusters, whatever sources they lie in: a job of
// no source is read from all. Clusters that need nothing are passed over.
func (c *conversion) planClusters(give func(job) bool) error {
	for to := int64(0); to < c.size; {
		skip, err := c.gap(to)
		if err != nil {
			return err
		}
		if skip > 0 {
			c.advance(skip)
			to += skip
			continue
		}
		n := min(c.piece(), c.size-to)
		if !give(job{nil, to + c.o.Skip, to, n, false}) {
			return nil
		}
		to += n
	}
	return nil
}

// gap is how many bytes of whole clusters at to need not be written.
func (c *conversion) gap(to int64) (int64, error) {
	for i, im := range c.src {
		off := to + c.o.Skip - c.starts[i]
		if off < 0 || off >= im.Size() {
			continue
		}
		e, err := im.Status(off, min(statusPiece, im.Size()-off, c.size-to))
		if err != nil {
			if c.o.Salvage {
				err = nil
			}
			return 0, err
		}
		hole := c.onBacking && (e.Depth > 0 || !e.Allocated)
		switch {
		case !hole && !(e.Zero && c.blank):
			return 0, nil
		case to+e.Len == c.size:
			return e.Len, nil
		}
		return e.Len - e.Len%c.piece(), nil
	}
	return 0, nil
}

// advance counts n bytes as done.
func (c *conversion) advance(n int64) {
	done := c.done.Add(n)
	if c.o.Progress == nil {
		return
	}
	c.reportLock.Lock()
	defer c.reportLock.Unlock()
	c.o.Progress(done, c.size)
}

// move moves one piece.
func (c *conversion) move(j job, buf []byte) error {
	defer c.advance(j.n)
	switch {
	case c.o.Compress:
		return c.squeeze(j, buf)
	case j.zero:
		return c.clear(j.to, j.n)
	}
	b := buf[:j.n]
	if err := c.read(j, b); err != nil {
		return err
	}
	return c.write(b, j.to)
}

// clear makes a part of the target zeroes, where it is not.
func (c *conversion) clear(to, n int64) error {
	switch {
	case c.blank && c.o.Sparse > 0:
		return nil
	case c.o.Sparse > 0:
		return c.dst.Zero(to, n, block.MayUnmap)
	}
	for n > 0 {
		k := min(n, int64(len(zeroes)))
		if err := c.dst.Write(zeroes[:k], to, 0); err != nil {
			return err
		}
		to, n = to+k, n-k
	}
	return nil
}

// read reads a piece from the source, or from all where it names none.
func (c *conversion) read(j job, b []byte) error {
	if err := c.pace(int64(len(b))); err != nil {
		return err
	}
	if j.im != nil {
		return c.readOne(j.im, b, j.from)
	}
	for i, im := range c.src {
		lo, hi := max(j.from, c.starts[i]), min(j.from+j.n, c.starts[i]+im.Size())
		if lo < hi {
			if err := c.readOne(im, b[lo-j.from:hi-j.from], lo-c.starts[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// readOne reads from one source; where it is to save what can be saved, sector
// by sector after an error.
func (c *conversion) readOne(im *Image, b []byte, off int64) error {
	err := im.Read(b, off)
	if err == nil || !c.o.Salvage || im.ctx.Err() != nil {
		return err
	}
	for len(b) > 0 {
		n := min(512, len(b))
		if err := im.Read(b[:n], off); err != nil {
			clear(b[:n])
			if c.o.Report != nil {
				c.reportLock.Lock()
				c.o.Report(err.Error() + ": zeroes are written instead")
				c.reportLock.Unlock()
			}
		}
		b, off = b[n:], off+int64(n)
	}
	return nil
}

// write writes what is not zero, in runs of whole granules.
func (c *conversion) write(b []byte, to int64) error {
	if c.granule <= 0 {
		return c.dst.Write(b, to, 0)
	}
	for len(b) > 0 {
		n, zero := c.sameRun(b, to)
		var err error
		if zero {
			err = c.clear(to, int64(n))
		} else {
			err = c.dst.Write(b[:n], to, 0)
		}
		if err != nil {
			return err
		}
		b, to = b[n:], to+int64(n)
	}
	return nil
}

// sameRun is the length of the run at the beginning of b that is all zeroes, or
// has no whole granule that is.
func (c *conversion) sameRun(b []byte, to int64) (n int, zero bool) {
	for n < len(b) {
		k := int(min(c.granule-(to+int64(n))%c.granule, int64(len(b)-n)))
		z := allZero(b[n : n+k])
		if n > 0 && z != zero {
			return n, zero
		}
		zero = z
		n += k
	}
	return n, zero
}

// squeeze writes one cluster compressed, or as it is where that does not help.
func (c *conversion) squeeze(j job, buf []byte) error {
	b := buf[:j.n]
	if j.zero {
		clear(b)
	} else if err := c.read(j, b); err != nil {
		return err
	}
	if allZero(b) {
		return c.clear(j.to, j.n)
	}
	whole := j.to%c.piece() == 0 && (j.n == c.piece() || j.to+j.n == c.dst.Size())
	if whole {
		if err := c.dst.WriteCompressed(b, j.to); !block.IsNotSupported(err) {
			return err
		}
	}
	return c.dst.Write(b, j.to, 0)
}

// pace waits while reading n more bytes would be faster than the rate.
func (c *conversion) pace(n int64) error {
	if c.o.Rate <= 0 {
		return nil
	}
	for {
		due := time.Duration(float64(c.done.Load()+n) / float64(c.o.Rate) * 1e9)
		wait := due - time.Since(c.begun)
		if wait <= 0 {
			return nil
		}
		select {
		case <-time.After(min(wait, maxRateSleep)):
		case <-c.dst.ctx.Done():
			return c.dst.ctx.Err()
		}
	}
}
