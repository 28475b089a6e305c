//go:build !linux

package sys

// AdviseHuge asks for huge pages behind b: nothing to ask for on this system.
func AdviseHuge([]byte) error { return nil }
