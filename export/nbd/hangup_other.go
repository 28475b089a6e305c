//go:build !linux

package nbd

import "net"

// hangup is used on Linux only: elsewhere a client that has gone is seen when the
// next answer is sent.
type hangup struct{}

func (*hangup) init(net.Conn) {}
func (*hangup) seen() bool    { return false }
