//go:build unix && !linux && !darwin

package engine

import "golang.org/x/sys/unix"

func datasync(fd int) error { return unix.Fsync(fd) }
