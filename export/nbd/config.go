// Package nbd is the NBD server: it offers nodes, through their edges, to any
// number of clients over stream sockets, with or without TLS.
//
// Read it in this order: config.go and server.go (what a caller sees),
// exports.go (what a client is told of a disk), conn.go (the life of a
// connection), reader.go (one goroutine a connection: parses, decides the way
// of each request), turn.go (what limits hold back), inline.go and mapped.go
// (disks in memory: served in place), pace.go (and the page cache, while it is
// quick), slot.go and lane.go (disks that wait: many requests at a time),
// worker.go and status.go (what may block), reply.go and send.go (one vectored
// write for all that is ready), link.go (sockets and TLS), memory.go (who may
// hold how much while a client keeps us waiting).
//
// Messages and handshake are those of package wire/nbd; sections of the
// specification are cited as there.
package nbd

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/bufpool"
	wire "github.com/platter-storage/platter/wire/nbd"
)

// Defaults of Config, as in the reference where it has them.
const (
	DefaultMaxConns         = 100
	DefaultHandshakeTimeout = 10 * time.Second
	DefaultMaxInFlight      = 128
	DefaultMaxInFlightBytes = 32 << 20
	DefaultMemory           = 128 << 20
)

// Bounds of Config.
const (
	// NoLimit switches a limit of Config off, where that is allowed.
	NoLimit = -1
	// MinMaxInFlight and MaxMaxInFlight bound MaxInFlight. A long request
	// takes two places at least, one for the whole and one for its pieces.
	MinMaxInFlight = 2
	MaxMaxInFlight = 1024
	// MinMemory is the least memory that a server gets along with.
	MinMemory = 4 << 20
)

// TLSMode says what the server does about TLS.
type TLSMode = wire.TLSMode

// The modes.
const (
	TLSOff      = wire.TLSOff      // refuse it
	TLSOptional = wire.TLSOptional // clients choose
	TLSRequired = wire.TLSRequired // refuse everything else
)

// Config is how a server runs. In every field but Env and TLS the zero value
// is the default.
type Config struct {
	// Env is where the time, the goroutines and the bounce buffers of the
	// requests come from. Required.
	Env *block.Env
	// Log is for people who operate the server; nil means Env.Log.
	Log *slog.Logger

	// TLS has certificates and, for client certificates, ClientAuth. It is
	// required unless TLSMode is TLSOff, and is not changed after New.
	TLS     *tls.Config
	TLSMode TLSMode

	// MaxConns is how many clients are served at once; more wait, accepted
	// but without a greeting. NoLimit is allowed.
	MaxConns int
	// HandshakeTimeout is how long a client may take to choose an export,
	// TLS included. NoLimit is allowed.
	HandshakeTimeout time.Duration

	// MaxInFlight is how many requests of one connection run at once; the
	// connection is not read from while that many do.
	MaxInFlight int
	// MaxInFlightBytes is how much payload of one connection is in memory
	// at once, between socket and disk.
	MaxInFlightBytes int
	// Memory is how much payload of all connections is. It is taken from
	// the system as it is needed.
	Memory int64

	// NoList keeps the names of exports from clients.
	NoList bool

	// Left, where set, is called when a connection that used an export has
	// ended, with the number of those that still do. It may be called from
	// several goroutines at once and must not wait.
	Left func(others int)

	// linger is how long a client may take to leave that the server sent
	// away; for tests, on whose machines all takes longer.
	linger time.Duration
	// patient: what is served in place goes on to be, however long it takes;
	// for tests of that way.
	patient bool
}

// withDefaults fills in defaults and says what cannot be.
func (cfg Config) withDefaults() (Config, error) {
	if cfg.Env == nil {
		return cfg, errors.New("nbd server: configuration lacks Env")
	}
	if cfg.TLSMode != TLSOff && cfg.TLS == nil {
		return cfg, errors.New("nbd server: TLS is switched on without certificates: configure TLS credentials, or switch it off")
	}
	if cfg.Log == nil {
		cfg.Log = cfg.Env.Log
	}
	orDefault(&cfg.MaxConns, DefaultMaxConns)
	orDefault(&cfg.HandshakeTimeout, DefaultHandshakeTimeout)
	orDefault(&cfg.linger, lingerTime)
	orDefault(&cfg.MaxInFlight, DefaultMaxInFlight)
	orDefault(&cfg.MaxInFlightBytes, DefaultMaxInFlightBytes)
	orDefault(&cfg.Memory, DefaultMemory)
	for _, r := range []struct {
		name           string
		val, low, high int64
	}{
		{"connections at once", int64(cfg.MaxConns), NoLimit, 1 << 20},
		{"requests in flight", int64(cfg.MaxInFlight), MinMaxInFlight, MaxMaxInFlight},
		{"bytes in flight", int64(cfg.MaxInFlightBytes), bufpool.MaxBuf, bufpool.MaxLimit},
		{"bytes of memory", cfg.Memory, MinMemory, bufpool.MaxLimit},
	} {
		if r.val < r.low || r.val > r.high {
			return cfg, fmt.Errorf("nbd server: limit of %d %s: choose one from %d to %d", r.val, r.name, max(r.low, 1), r.high)
		}
	}
	return cfg, nil
}

func orDefault[T int | int64 | time.Duration](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}
