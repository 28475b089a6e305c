// Package nbd is the driver for a disk that a server offers over NBD.
//
// Messages, handshake and the life of a request on one connection are in
// wire/nbd. What is here: what a user says (this file, address.go), what the
// server's words mean to the block layer (node.go, space.go), and what becomes
// of requests when a connection is lost (keep.go, lost.go).
//
// Sections are those of the NBD protocol document, doc/proto.md.
package nbd

import (
	"runtime"
	"syscall"
	"time"

	"github.com/platter-storage/platter/block"
	wire "github.com/platter-storage/platter/wire/nbd"
)

// Bounds of the options.
const (
	MaxConnections = 16
	// autoConnections is the most where nobody has said how many.
	autoConnections = 4
	// MaxSeconds bounds every option that is a time: a day.
	MaxSeconds = 24 * 3600
)

var options = []block.Option{
	{Name: "server.type", Type: block.OptEnum, Enum: []string{"inet", "unix"}, Help: "how the server is reached; follows from the other options where it is not given"},
	{Name: "server.host", Help: "the server's name or address"},
	{Name: "server.port", Default: "10809", Help: "its TCP port"},
	{Name: "server.path", Help: "its unix socket"},
	{Name: "host", Help: "short for server.host"},
	{Name: "port", Help: "short for server.port"},
	{Name: "path", Help: "short for server.path"},
	{Name: "export", Help: "the export's name; none is the server's default export"},
	{Name: "tls", Type: block.OptBool, Default: "off", Help: "encrypt, and use no server that does not; on where a tls- option is given"},
	{Name: "tls-certificates", Help: "a folder with ca-cert.pem and, where the server wants to know its clients, client-cert.pem and client-key.pem"},
	{Name: "tls-ca", Help: "a file with the authorities that the server's certificate must come from; none is the system's"},
	{Name: "tls-cert", Help: "a file with our certificate"},
	{Name: "tls-key", Help: "a file with its key"},
	{Name: "tls-hostname", Help: "the name in the server's certificate, where it is not server.host"},
	{Name: "tls-verify-peer", Type: block.OptBool, Default: "on", Help: "off believes any certificate: whoever is on the way can read and change everything"},
	{Name: "connections", Type: block.OptInt, Default: "0", Help: "connections to use, up to 16, where the server allows more than one; 0 is one a processor, up to 4"},
	{Name: "reconnect-delay", Type: block.OptInt, Default: "0", Help: "seconds that requests wait for a server that has gone, before they fail; 0 fails them at once. It is looked for until it is back either way"},
	{Name: "open-timeout", Type: block.OptInt, Default: "0", Help: "seconds to wait for a server that is not there yet when the disk is opened"},
	{Name: "request-timeout", Type: block.OptInt, Default: "0", Help: "seconds after which a connection on which requests wait and nothing is answered counts as lost; 0 waits for ever"},
	{Name: "after-loss", Type: block.OptEnum, Default: "trust", Enum: []string{"trust", "fail"},
		Help: "what a flush says of writes that a server acknowledged before it went, once it is back: trust that it has kept them, or fail"},
	{Name: "x-dirty-bitmap", Help: "a metadata context, qemu:dirty-bitmap:NAME, that block status shows in place of base:allocation"},
}

func init() {
	block.Register(&block.Driver{
		Name: "nbd", Kind: block.KindProtocol, Doc: "a disk that a server offers over NBD",
		Options: options, Schemes: []string{"nbd", "nbds", "nbd+unix", "nbds+unix", "nbd+tcp", "nbds+tcp"}, ParseURI: parseURI, Open: open,
	})
}

// config is what the options say.
type config struct {
	uri         wire.URI
	dial        wire.DialConfig
	context     string // the metadata context that block status shows
	own         bool   // which is not base:allocation
	connections int
	reconnectNs int64
	openNs      int64
	requestNs   int64
	strict      bool // after-loss=fail
	readOnly    bool
}

// configOf reads the options, which are of the right types.
func configOf(a *block.OpenArgs) (c config, err error) {
	o := a.Options
	c = config{context: wire.ContextAllocation, strict: o.String("after-loss") == "fail", readOnly: a.ReadOnly}
	if name := o.String("x-dirty-bitmap"); name != "" {
		c.context, c.own = name, true
	}
	var connections int64
	for _, x := range []struct {
		name     string
		to, unit int64
		into     *int64
	}{
		{"connections", MaxConnections, 1, &connections},
		{"reconnect-delay", MaxSeconds, int64(time.Second), &c.reconnectNs},
		{"open-timeout", MaxSeconds, int64(time.Second), &c.openNs},
		{"request-timeout", MaxSeconds, int64(time.Second), &c.requestNs},
	} {
		v := o.Int(x.name)
		if v < 0 || v > x.to {
			return c, block.Errorf(syscall.EINVAL, "driver nbd: %s %d is not in 0..%d", x.name, v, x.to)
		}
		*x.into = v * x.unit
	}
	if c.connections = int(connections); c.connections == 0 {
		c.connections = min(runtime.GOMAXPROCS(0), autoConnections)
	}
	if c.uri, err = addressOf(o); err != nil {
		return c, err
	}
	c.dial = wire.Best
	c.dial.Handshake.Contexts = []string{c.context}
	c.dial.TLSConfig, err = tlsOf(o)
	return c, err
}
