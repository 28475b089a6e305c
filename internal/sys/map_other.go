//go:build !unix

package sys

func mapAnon(n int) ([]byte, error) { return make([]byte, n), nil }

// Unmap gives a mapping of MapAligned back to the system: here the collector
// does it.
func Unmap([]byte) error { return nil }
