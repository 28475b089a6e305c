package luks

import (
	"fmt"
	"syscall"
)

// refusal is a sentence with the errno that it stands for.
type refusal struct {
	errno syscall.Errno
	text  string
}

func refuse(errno syscall.Errno, format string, a ...any) error {
	return &refusal{errno, fmt.Sprintf(format, a...)}
}

func (r *refusal) Error() string { return r.text }

// Unwrap tells kinds of refusal apart.
func (r *refusal) Unwrap() error { return r.errno }
