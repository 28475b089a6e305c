//go:build !linux

package sys

import "syscall"

// SignalEvent adds one to an eventfd, which this system does not have.
func SignalEvent(int) error { return syscall.ENOSYS }
