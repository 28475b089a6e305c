package image

import "syscall"

// Causes that this package gives by itself.
const (
	eloop   = syscall.ELOOP
	enotsup = syscall.ENOTSUP
)
