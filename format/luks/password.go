package luks

import (
	"io"
	"os"
	"syscall"

	"github.com/platter-storage/platter/block"
)

// maxPassword bounds a password in bytes.
const maxPassword = 1 << 20

// readPassword is the whole content of a file, as the other tools take it: a
// line feed at its end is part of the password. It is never an option's value,
// which every user of the machine could read in the list of processes.
func readPassword(path string) ([]byte, error) {
	if path == "" {
		return nil, block.Errorf(syscall.EACCES, "the disk is encrypted: give password-file=FILE, a file with the password and nothing else")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxPassword+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxPassword {
		return nil, block.Errorf(syscall.EINVAL, "%s: a password has at most %d bytes", path, maxPassword)
	}
	return b, nil
}
