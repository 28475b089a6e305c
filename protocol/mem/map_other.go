//go:build !unix

package mem

// mapMemory takes the memory from the Go heap.
func mapMemory(n int) ([]byte, error) { return make([]byte, n), nil }

func unmapMemory([]byte) error { return nil }
