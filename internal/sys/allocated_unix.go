//go:build unix

package sys

import (
	"os"
	"syscall"
)

// Allocated is how many bytes of storage a file takes; nil where nobody knows.
func Allocated(name string) *int64 {
	fi, err := os.Stat(name)
	if err != nil {
		return nil
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	n := int64(st.Blocks) * 512
	return &n
}
