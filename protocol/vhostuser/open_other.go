//go:build !linux

package vhostuser

import (
	"context"
	"syscall"

	"github.com/platter-storage/platter/block"
)

func open(_ context.Context, a *block.OpenArgs) (block.Node, error) {
	if _, err := configOf(a); err != nil {
		return nil, err
	}
	return nil, block.Errorf(syscall.ENOSYS, "driver vhostuser: this system has no memory that is shared by descriptor; use it on Linux")
}
