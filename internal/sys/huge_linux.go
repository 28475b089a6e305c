package sys

import "golang.org/x/sys/unix"

// AdviseHuge asks for huge pages behind b. It is advice: an error says only
// that the kernel was built without them.
func AdviseHuge(b []byte) error { return unix.Madvise(b, unix.MADV_HUGEPAGE) }
