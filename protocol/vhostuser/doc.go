// Package vhostuser is the driver for a disk that another process serves over
// vhost-user: the front end's side of a vhost-user-blk device, with this
// process in the place of a virtual machine.
//
// The two share memory: one memfd that holds the rings and everything that
// requests carry. What a caller reads or writes is copied through it, because
// his memory is not shared. A request takes a place and as many chunks as it
// needs, in the order in which requests came; who finds none waits.
//
// The server is not trusted: what it puts into rings, answers and
// configuration is checked before it is used, and a server that breaks the
// rules is left for good.
//
// Read it in this order: this file (what a user says), open_linux.go (the
// node), request_linux.go (the life of a request), queue_linux.go (a
// virtqueue), link_linux.go (a connection), space_linux.go (what the server
// says of the disk), memory_linux.go, lost_linux.go (when the server goes).
//
// Sections of virtio are those of version 1.2; those of vhost-user are headings
// of its document.
package vhostuser

import (
	"net/url"
	"strings"
	"syscall"

	"github.com/platter-storage/platter/block"
)

// Bounds of the options.
const (
	DefaultQueueSize = 128 // descriptors
	MinQueueSize     = 4
	MaxQueueSize     = 1024
	MaxQueues        = 64
	// autoQueues is the most queues where nobody has said how many.
	autoQueues = 4

	DefaultMemory = 8 << 20 // bytes of data of one queue
	MinMemory     = 1 << 20
	MaxMemory     = 1 << 30

	MaxPollNs      = 1e6 // looking for longer than a millisecond is waste
	MaxReconnectS  = 24 * 3600
	maxPathInBytes = 107 // sun_path, with its end
)

var options = []block.Option{
	{Name: "path", Type: block.OptString, Required: true, Help: "the server's socket"},
	{Name: "queues", Type: block.OptInt, Default: "0", Help: "virtqueues to use, up to 64; 0 is one a processor, up to 4, as far as the server has them"},
	{Name: "queue-size", Type: block.OptInt, Default: "128", Help: "descriptors of a queue, a power of two from 4 to 1024"},
	{Name: "memory", Type: block.OptSize, Default: "8M", Help: "memory shared with the server for the data of each queue, 1M to 1G"},
	{Name: "packed", Type: block.OptBool, Default: "off", Help: "packed rings rather than split ones; the server must offer them"},
	{Name: "event-idx", Type: block.OptBool, Default: "on", Help: "event indexes, where the server offers them"},
	{Name: "in-order", Type: block.OptBool, Default: "off", Help: "requests come back in order; the server must offer it"},
	{Name: "poll-ns", Type: block.OptInt, Default: "0", Help: "nanoseconds that a request looks for its end before it sleeps, less where that is in vain; up to a millisecond"},
	{Name: "reconnect", Type: block.OptInt, Default: "0", Help: "seconds to wait for a server that has gone, keeping requests; 0 fails them"},
}

func init() {
	block.Register(&block.Driver{
		Name: "vhostuser", Kind: block.KindProtocol, Doc: "a disk that another process serves over vhost-user",
		Options: options, Schemes: []string{"vhost-user"}, ParseURI: parseURI, Open: open,
	})
}

// parseURI reads vhost-user:PATH, where the path is as it is, and
// vhost-user:///PATH?option=value&…, where it is percent-encoded.
func parseURI(uri string) (block.Values, error) {
	rest := strings.TrimPrefix(uri, "vhost-user:")
	if !strings.HasPrefix(rest, "//") {
		return block.Values{"path": rest}, nil
	}
	u, err := url.Parse(uri)
	if err != nil || u.Host != "" || u.User != nil || u.Fragment != "" {
		return nil, block.Errorf(syscall.EINVAL, "%s: write it as vhost-user:///run/disk.sock, with options as ?queues=2&packed=on", uri)
	}
	vals := block.Values{"path": u.Path}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, block.Errorf(syscall.EINVAL, "%s: %v", uri, err)
	}
	for name, values := range query {
		if name == "path" || len(values) != 1 {
			return nil, block.Errorf(syscall.EINVAL, "%s: option %q is given twice", uri, name)
		}
		vals[name] = values[0]
	}
	return vals, nil
}

// config is what the options say.
type config struct {
	path                  string
	queues, size          int
	memory                int
	packed, event, order  bool
	pollNs, reconnectSecs int64
	readOnly              bool
}

// configOf reads the options, which are of the right types.
func configOf(a *block.OpenArgs) (c config, err error) {
	o := a.Options
	c = config{
		path: o.String("path"), memory: int(min(o.Size("memory"), MaxMemory+1)),
		packed: o.Bool("packed"), event: o.Bool("event-idx"), order: o.Bool("in-order"), readOnly: a.ReadOnly,
		pollNs: o.Int("poll-ns"), reconnectSecs: o.Int("reconnect"),
	}
	for _, x := range []struct {
		name     string
		from, to int64
		into     *int
	}{
		{"queues", 0, MaxQueues, &c.queues},
		{"queue-size", MinQueueSize, MaxQueueSize, &c.size},
		{"poll-ns", 0, MaxPollNs, nil},
		{"reconnect", 0, MaxReconnectS, nil},
	} {
		v := o.Int(x.name)
		if v < x.from || v > x.to {
			return c, block.Errorf(syscall.EINVAL, "driver vhostuser: %s %d is not in %d..%d", x.name, v, x.from, x.to)
		}
		if x.into != nil {
			*x.into = int(v)
		}
	}
	switch {
	case c.path == "" || len(c.path) > maxPathInBytes:
		return c, block.Errorf(syscall.EINVAL, "driver vhostuser: path %q: a socket's path has 1 to %d bytes", c.path, maxPathInBytes)
	case c.size&(c.size-1) != 0:
		return c, block.Errorf(syscall.EINVAL, "driver vhostuser: queue-size %d is no power of two", c.size)
	case c.memory < MinMemory || c.memory > MaxMemory:
		return c, block.Errorf(syscall.EINVAL, "driver vhostuser: memory of %s is not in 1M..1G", o.String("memory"))
	}
	return c, nil
}
