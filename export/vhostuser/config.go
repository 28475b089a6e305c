// Package vhostuser offers a node to virtual machines as a virtio block device
// over vhost-user: a front end shares the guest's memory and rings with us, and
// package queue serves them. This package is the control side: it decides what
// the guest sees, and keeps memory mapped for exactly as long as something
// touches it.
//
// Read it in this order: config.go and device.go (what a caller sees),
// session.go (one front end from connect to end), features.go and space.go
// (what the guest sees), memory.go (guest memory), vring.go (rings), inflight.go
// (what survives our death), dirty.go (the log of a migration), eventfd.go and
// pace.go.
//
// Messages are those of package wire/vhostuser; sections of the vhost-user
// specification are cited as there, those of virtio by number, of version 1.2.
package vhostuser

import (
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"time"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/queue"
	"github.com/platter-storage/platter/virtio"
)

// Defaults and bounds of Config.
const (
	// DefaultQueues is how many queues a front end may have: more than it is
	// likely to ask for, because only those it starts cost anything.
	DefaultQueues = 16
	MaxQueues     = 64

	DefaultQueueSize = 1024 // descriptors of a queue, at most
	MinQueueSize     = 4
	MaxQueueSize     = virtio.MaxQueueSize

	DefaultBlockSize = 512
	MaxBlockSize     = 4096
)

// Config is how a device is offered. In every field but Name, Child and Env the
// zero value is the default.
type Config struct {
	Name string // what messages call the disk
	// Child is the edge to the node. It stays the caller's, who closes it after
	// Shutdown has returned nil, not before.
	Child *block.Child
	Group *block.QueueGroup // where requests are counted
	Env   *block.Env
	Log   *slog.Logger // for people who operate the server; nil means Env.Log

	// ReadOnly refuses changes. It is implied where the edge may not write.
	ReadOnly bool
	// Queues is how many queues the device has at most, and QueueSize how many
	// descriptors each, a power of two.
	Queues, QueueSize int
	// NoPacked keeps to split rings; InOrder offers VIRTIO_F_IN_ORDER, with
	// which a slow request holds up the ones behind it.
	NoPacked, InOrder bool
	// BlockSize is the logical block size in bytes, 512 or 4096. It is never
	// taken from the storage: a guest must find the disk as it was partitioned.
	BlockSize int
	// Serial is what the guest reads as the disk's, at most virtio.BlkIDSize
	// bytes.
	Serial string
	// Poll is for how long a queue looks for more before it sleeps; 0 means
	// queue.DefaultPoll, negative never.
	Poll time.Duration
	// Durable says that the storage has no cache that a flush would empty: the
	// guest is told that there is nothing to flush.
	Durable bool
	// Limiter holds requests back; nil lets all pass.
	Limiter queue.Limiter
	// Came and Left, where set, are called when a front end has connected and
	// when it has gone. They must not wait.
	Came, Left func()

	wait time.Duration // of a second front end; 0: secondWait
}

// withDefaults fills in defaults and says what cannot be.
func (c Config) withDefaults() (Config, error) {
	if c.Child == nil || c.Env == nil {
		return c, errors.New("vhost-user: configuration lacks Child or Env")
	}
	if c.Child.Perm()&block.PermRead == 0 {
		return c, fmt.Errorf("vhost-user: disk %s: the edge to %s may not read", c.Name, c.Child.Name())
	}
	if c.Log == nil {
		c.Log = c.Env.Log
	}
	if c.Group == nil {
		c.Group = block.NewQueueGroup()
	}
	orDefault(&c.Queues, DefaultQueues)
	orDefault(&c.QueueSize, DefaultQueueSize)
	orDefault(&c.BlockSize, DefaultBlockSize)
	orDefault(&c.wait, secondWait)
	c.ReadOnly = c.ReadOnly || c.Child.Info().ReadOnly || c.Child.Perm()&block.PermWrite == 0
	switch {
	case c.Queues < 1 || c.Queues > MaxQueues:
		return c, fmt.Errorf("vhost-user: disk %s: %d queues: choose from 1 to %d", c.Name, c.Queues, MaxQueues)
	case c.QueueSize < MinQueueSize || c.QueueSize > MaxQueueSize || bits.OnesCount(uint(c.QueueSize)) != 1:
		return c, fmt.Errorf("vhost-user: disk %s: queues of %d descriptors: choose a power of two from %d to %d", c.Name, c.QueueSize, MinQueueSize, MaxQueueSize)
	case c.BlockSize != 512 && c.BlockSize != MaxBlockSize:
		return c, fmt.Errorf("vhost-user: disk %s: logical blocks of %d bytes: choose 512 or %d", c.Name, c.BlockSize, MaxBlockSize)
	case len(c.Serial) > virtio.BlkIDSize:
		return c, fmt.Errorf("vhost-user: disk %s: serial number %q: at most %d bytes", c.Name, c.Serial, virtio.BlkIDSize)
	case c.Poll > queue.MaxPoll:
		return c, fmt.Errorf("vhost-user: disk %s: polling for %v: at most %v", c.Name, c.Poll, queue.MaxPoll)
	}
	return c, nil
}

func orDefault[T int | time.Duration](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}
