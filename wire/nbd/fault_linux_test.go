package nbd_test

import (
	"context"
	"errors"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/platter-storage/platter/wire/nbd"
)

// Memory that goes away under a request ends the connection with EFAULT, not
// the process: it may be a guest's.
func TestMemoryOfARequestIsGone(t *testing.T) {
	for name, f := range map[string]func(c *nbd.Client, p []byte) error{
		"read":        func(c *nbd.Client, p []byte) error { return c.Pread(p, 0, 0) },
		"short read":  func(c *nbd.Client, p []byte) error { return c.Pread(p[:512], 0, 0) },
		"write":       func(c *nbd.Client, p []byte) error { return c.Pwrite(p, 0, 0) },
		"short write": func(c *nbd.Client, p []byte) error { return c.Pwrite(p[:512], 0, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			socket := filepath.Join(dir, "s")
			serve(t, socket, "nbdkit", "--foreground", "--unix", socket, "memory", "1M")
			c, err := nbd.Dial(context.Background(), "nbd+unix:///?socket="+socket, nbd.Best)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			p, err := syscall.Mmap(-1, 0, 128<<10, syscall.PROT_NONE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
			if err != nil {
				t.Fatal(err)
			}
			defer syscall.Munmap(p)
			if err := f(c, p); !errors.Is(err, syscall.EFAULT) {
				t.Errorf("%v, want EFAULT", err)
			}
		})
	}
}
