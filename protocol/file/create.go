package file

import (
	"context"
	"fmt"
	"strings"
	"syscall"

	"github.com/platter-storage/platter/block"
)

// create makes a new file of a.Size bytes that reads as zeroes.
func create(ctx context.Context, a *block.CreateArgs) error {
	o := a.Options
	c := creation{
		config:     config{path: o.String("filename"), cacheName: "writeback", locking: o.String("locking"), discard: true},
		size:       a.Size,
		overwrite:  o.Bool("overwrite"),
		extentHint: o.Size("extent-size-hint"),
		nocow:      o.Bool("nocow"),
	}
	c.pre, _ = block.ParsePrealloc(o.String("preallocation"))
	s, fresh, warning, err := createSystem(&c)
	if err != nil {
		return err
	}
	if warning != "" {
		a.Env.Log.Warn(warning)
	}
	err = c.fill(s)
	if cerr := s.close(); err == nil {
		err = cerr
	}
	if err != nil && fresh {
		removeFile(c.path)
	}
	if err != nil {
		return c.explain(err)
	}
	return nil
}

// explain gives the error of a creation the file's name, once, and where space
// ran out, how much there is. The unfinished file is gone by then.
func (c *creation) explain(err error) error {
	if free := freeSpace(c.path); block.Errno(err) == syscall.ENOSPC && free >= 0 {
		err = block.Errorf(syscall.ENOSPC, "its file system has %s free, and %s are wanted at once (preallocation=%v): free some, choose another place, or take preallocation off, which takes space as it is written",
			block.FormatSize(free), block.FormatSize(c.size), c.pre)
	}
	if strings.HasPrefix(err.Error(), c.path+": ") {
		return err
	}
	return fmt.Errorf("%s: cannot be created: %w", c.path, err)
}

// creation is what the options of creating mean.
type creation struct {
	config
	size       int64
	pre        block.Prealloc
	overwrite  bool
	extentHint int64
	nocow      bool
}

// fill gives an opened, locked file its size and space. An old file is emptied
// first, so that nothing of it shows.
func (c *creation) fill(s system) error {
	if _, _, err := s.lockFile(&c.config); err != nil {
		return err
	}
	old, err := s.size()
	if err != nil {
		return err
	}
	if s.isDevice() {
		return c.fillDevice(s, old)
	}
	if old > 0 {
		if err := s.setSize(0); err != nil {
			return sizeError(0, err)
		}
	}
	if err := resize(s, 0, c.size, c.pre); err != nil {
		return err
	}
	return s.sync()
}

// fillDevice checks that the disk fits, and makes the device's beginning no
// longer look like what was there.
func (c *creation) fillDevice(s system, has int64) error {
	if c.size > has {
		return fmt.Errorf("the device has %d bytes, and %d are wanted: use a larger device, or a smaller disk", has, c.size)
	}
	return writeZeroes(s, 0, min(has, safeAlign))
}
