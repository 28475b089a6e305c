//go:build !linux

package file

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/platter-storage/platter/block"
)

func createSystem(c *creation) (s system, fresh bool, warning string, err error) {
	f, err := os.OpenFile(c.path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	switch {
	case err == nil:
		return &plainFile{f}, true, "", nil
	case errors.Is(err, os.ErrExist) && c.overwrite:
		s, err := openSystem(&c.config, false)
		return s, false, "", err
	case errors.Is(err, os.ErrExist):
		return nil, false, "", block.Errorf(syscall.EEXIST, "%s: is there already; choose another name, or say that it is to be overwritten (overwrite=on)", c.path)
	}
	var path *os.PathError
	if errors.As(err, &path) {
		err = path.Err // the name is said once
	}
	return nil, false, "", fmt.Errorf("%s: cannot be created: %w", c.path, err)
}

// freeSpace is not known here.
func freeSpace(string) int64 { return -1 }

func removeFile(path string) { _ = os.Remove(path) }
