package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter"
	"github.com/platter-storage/platter/block"
)

// way is a manner of writing to a file.
type way struct {
	name    string
	prepare func(name string, size int64) error
	open    func(name string) (write func(b []byte, off int64) error, finish func() error, err error)
}

// ways differ in who writes, and in what the file system has to do: make a
// file grow, fill a hole in it, or write where there is data already.
var ways = []way{
	{"write-growing", empty, openCalls},
	{"write-sparse", sparse, openCalls},
	{"write-written", written, openCalls},
	{"platter-sparse", sparse, openPlatter},
	{"platter-written", written, openPlatter},
}

func empty(name string, _ int64) error { return os.WriteFile(name, nil, 0o644) }

func sparse(name string, size int64) error {
	return errors.Join(empty(name, 0), os.Truncate(name, size))
}

// written makes a file that has storage and data everywhere, on disk.
func written(name string, size int64) (err error) {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	b := make([]byte, 1<<20)
	for i := range b {
		b[i] = byte(i)
	}
	for off := int64(0); off < size; off += int64(len(b)) {
		if _, err := f.WriteAt(b[:min(int64(len(b)), size-off)], off); err != nil {
			return err
		}
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
}

// openCalls writes with bare system calls.
func openCalls(name string) (func([]byte, int64) error, func() error, error) {
	fd, err := unix.Open(name, unix.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open %s with O_DIRECT: %w", name, err)
	}
	write := func(b []byte, off int64) error {
		n, err := unix.Pwrite(fd, b, off)
		if err == nil && n != len(b) {
			err = fmt.Errorf("%d of %d bytes written", n, len(b))
		}
		return err
	}
	return write, func() error { return unix.Close(fd) }, nil
}

// openPlatter writes through the library's front door. The buffer is the
// caller's: at +512 it is valid for the device, and a bounce would be a copy
// that nobody asked for.
func openPlatter(name string) (func([]byte, int64) error, func() error, error) {
	disk, err := platter.Open(context.Background(), name, platter.Format("raw"), platter.Cache("none"))
	if err != nil {
		return nil, nil, err
	}
	write := func(b []byte, off int64) error {
		_, err := disk.WriteAt(b, off)
		return err
	}
	finish := func() error {
		bounced := disk.Stats().Path(block.PathBounceMem)
		if err := disk.Close(); err != nil {
			return err
		}
		if bounced > 0 {
			return fmt.Errorf("%d writes were copied for the sake of their address: the device takes multiples of 512", bounced)
		}
		return nil
	}
	return write, finish, nil
}
