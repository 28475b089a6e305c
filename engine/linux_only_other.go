//go:build !linux

package engine

import "fmt"

func newUring(Config) (Queue, error) {
	return nil, fmt.Errorf("io_uring: %w: only Linux has it; use aio=threads", ErrUnavailable)
}

func newNative(Config) (Queue, error) {
	return nil, fmt.Errorf("native: %w: only Linux has Linux AIO; use aio=threads", ErrUnavailable)
}
