//go:build !linux

package sys

// CloseFd closes a descriptor that came over a socket: none does on this
// system.
func CloseFd(int) {}
