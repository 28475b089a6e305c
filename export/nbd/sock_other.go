//go:build !linux

package nbd

import "net"

// sock is used on Linux only; elsewhere every connection is a stream.
type sock struct{ link }

func newSock(net.Conn) *sock { return nil }

func (*sock) pending() int { return 0 }

func (*sock) writeMapped(mapped) (mapped, error) { panic("nbd: no mapped writes on this system") }

func (*sock) readMapped(m incoming, _ []byte) (incoming, error) {
	panic("nbd: no mapped reads on this system")
}

// pipe is used on Linux only.
type pipe struct{}

func (*pipe) close() {}

func (*conn) splice(*slot) bool { return false }

func peerName(nc net.Conn) string { return nc.RemoteAddr().String() }

// What a client takes is known on Linux only.
func blocksWriter(net.Conn) bool { return false }
func ackedBytes(net.Conn) uint64 { return 0 }

func keepSmall([]byte) {}
