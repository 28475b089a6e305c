// Package null is the driver for a disk that keeps nothing: it reads as zeroes
// and forgets what is written, without touching a device. It measures what is
// above it.
//
// It answers to null and, so that command lines for the reference work, to
// null-co and null-aio.
package null

import (
	"context"
	"strings"
	"syscall"

	"github.com/platter-storage/platter/block"
)

// DefaultSize is the size in bytes where none is given: the reference's.
const DefaultSize = 1 << 30

// MaxLatency bounds latency-ns: what takes longer than a minute is a fault to
// inject, not a latency to measure with.
const MaxLatency = 60e9

var options = []block.Option{
	{Name: "size", Type: block.OptSize, Default: "1G", Help: "the disk's size in bytes"},
	{Name: "latency-ns", Type: block.OptInt, Default: "0", Help: "nanoseconds that each read, write, write zeroes, discard and flush takes, up to a minute"},
	{Name: "read-zeroes", Type: block.OptBool, Default: "on",
		Help: "whether block status says that the disk is zeroes; it reads as zeroes either way, because memory that a read left alone would show other requests' data"},
}

func init() {
	for _, name := range []string{"null", "null-co", "null-aio"} {
		block.Register(&block.Driver{
			Name: name, Kind: block.KindProtocol, Doc: "reads as zeroes, forgets what is written",
			Options: options, Schemes: []string{name}, ParseURI: parseURI,
			Open: func(_ context.Context, a *block.OpenArgs) (block.Node, error) { return open(name, a) },
		})
	}
}

// parseURI reads null:4G and null://4G; without a size it is the default.
func parseURI(uri string) (block.Values, error) {
	_, size, _ := strings.Cut(uri, ":")
	if size = strings.TrimPrefix(size, "//"); size == "" {
		return block.Values{}, nil
	}
	if _, err := block.ParseSize(size); err != nil {
		return nil, block.Errorf(syscall.EINVAL, "%s: %v; write it as null:4G", uri, err)
	}
	return block.Values{"size": size}, nil
}

// node is the disk: stateless beside its size.
type node struct {
	info      block.Info
	latencyNs int64
	knownZero bool
}

func open(name string, a *block.OpenArgs) (block.Node, error) {
	latency := a.Options.Int("latency-ns")
	if latency < 0 || latency > MaxLatency {
		return nil, block.Errorf(syscall.EINVAL, "driver %s: latency-ns %d is not in 0..%d", name, latency, int64(MaxLatency))
	}
	size := a.Options.Size("size")
	n := &node{latencyNs: latency, knownZero: a.Options.Bool("read-zeroes")}
	n.info = block.Info{
		Driver: name, Filename: "null:" + a.Options.String("size"), ReadOnly: a.ReadOnly,
		WriteFlags: block.FUA, ZeroFlags: block.FUA | block.MayUnmap,
		Inline: latency == 0, MultiConn: true,
	}
	if latency == 0 {
		n.info.Abilities.Mapper = n
	}
	n.info.SetSize(size)
	n.info.SetLimits(block.ByteLimits())
	return n, nil
}

func (n *node) Info() *block.Info { return &n.info }

// wait takes the time that an operation is to take.
func (n *node) wait(rq *block.Req) error {
	if n.latencyNs == 0 {
		return nil
	}
	return rq.Sleep(n.latencyNs)
}

func (n *node) Preadv(rq *block.Req, _ int64, v block.Vec, _ block.Flags) error {
	for _, e := range v {
		clear(e)
	}
	return n.wait(rq)
}

func (n *node) Pwritev(rq *block.Req, _ int64, _ block.Vec, _ block.Flags) error { return n.wait(rq) }

func (n *node) WriteZeroes(rq *block.Req, _, _ int64, _ block.Flags) error { return n.wait(rq) }

func (n *node) Discard(rq *block.Req, _, _ int64) error { return n.wait(rq) }

func (n *node) Flush(rq *block.Req) error { return n.wait(rq) }

func (n *node) BlockStatus(_ *block.Req, off, length int64) (block.Extent, error) {
	return block.Extent{
		Len: length, Data: !n.knownZero, Zero: n.knownZero, Allocated: true,
		EOF: off+length == n.info.Size(), Host: -1,
	}, nil
}

func (n *node) Truncate(_ *block.Req, size int64, _ block.Prealloc) error {
	n.info.SetSize(size)
	return nil
}

func (n *node) Close() error { return nil }

// Map answers all that passed the edge: the bytes are nowhere.
func (n *node) Map(*block.Req, block.Op, int64, block.Vec, block.Flags) (block.Mapping, bool) {
	return block.Mapping{Kind: block.MapZero}, true
}

func (n *node) Done(block.Op, uint64, error) {}
