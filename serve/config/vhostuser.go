package config

import (
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/queue"
	"github.com/platter-storage/platter/virtio"
)

// Bounds of a VhostUser.
const (
	MaxVhostUsers     = 64 // of one disk
	MaxVhostQueues    = 64
	MaxVhostQueueSize = virtio.MaxQueueSize
	MinVhostQueueSize = 4
)

// VhostUser is a way to offer a disk to virtual machines. What is zero has the
// export's own default.
type VhostUser struct {
	Path      string // of the socket
	Queues    int
	Size      int // descriptors of a queue, at most
	NoPacked  bool
	InOrder   bool
	BlockSize int // bytes
	Serial    string
	Poll      time.Duration // negative: never
	Connect   bool          // the front end listens
	Mode      fs.FileMode   // of the socket
	At        Place
}

// String is how messages call it.
func (v VhostUser) String() string { return "vhost-user:" + v.Path }

// Same reports whether two are described alike, wherever.
func (v VhostUser) Same(o VhostUser) bool {
	v.At, o.At = Place{}, Place{}
	return v == o
}

// parseVhostUser reads PATH,queues=N,size=N,…
func parseVhostUser(t Text) (VhostUser, error) {
	v := VhostUser{At: t.At}
	text := t.Value
	if !strings.HasPrefix(text, "path=") {
		text = "path=" + text
	}
	vals, err := block.ParseOptions(text)
	if err != nil {
		return v, &Error{At: t.At, Msg: err.Error(), Err: err}
	}
	for k, x := range vals {
		if err := v.set(k, Text{x, t.At}, t.At); err != nil {
			return v, err
		}
	}
	return v, v.check()
}

var vhostKeys = []string{"path", "queues", "size", "packed", "in-order", "block-size", "serial", "poll", "connect", "mode"}

// set takes one key; at is the key's place.
func (v *VhostUser) set(key string, x Text, at Place) error {
	switch key {
	case "path":
		v.Path = x.Value
	case "queues":
		return setInt(&v.Queues, x, 1, MaxVhostQueues)
	case "size":
		return v.setSize(x)
	case "packed":
		on := false
		err := setBool(&on, x)
		v.NoPacked = !on
		return err
	case "in-order":
		return setBool(&v.InOrder, x)
	case "block-size":
		if x.Value != "512" && x.Value != "4096" {
			return errorAt(x.At, "block-size %q: guests' logical blocks have 512 or 4096 bytes", x.Value)
		}
		return setInt(&v.BlockSize, x, 512, 4096)
	case "serial":
		if len(x.Value) > virtio.BlkIDSize {
			return errorAt(x.At, "serial %q: at most %d bytes", x.Value, virtio.BlkIDSize)
		}
		v.Serial = x.Value
	case "poll":
		return v.setPoll(x)
	case "connect":
		return setBool(&v.Connect, x)
	case "mode":
		return setMode(&v.Mode, x)
	default:
		return errorAt(at, "vhost-user has no %q: %s", key, oneOf(key, vhostKeys))
	}
	return nil
}

func (v *VhostUser) setSize(x Text) error {
	if err := setInt(&v.Size, x, MinVhostQueueSize, MaxVhostQueueSize); err != nil {
		return err
	}
	if v.Size&(v.Size-1) != 0 {
		return errorAt(x.At, "size %d: the descriptors of a queue are a power of two", v.Size)
	}
	return nil
}

func (v *VhostUser) setPoll(x Text) error {
	on, ok := parseBool(x.Value)
	switch {
	case ok && on:
		v.Poll = 0
		return nil
	case ok || x.Value == "0":
		v.Poll = -1
		return nil
	}
	d, err := time.ParseDuration(x.Value)
	if err != nil || d <= 0 || d > queue.MaxPoll {
		return errorAt(x.At, "poll %q: write off, or how long a queue looks for more before it sleeps: 50us, up to %v", x.Value, queue.MaxPoll)
	}
	v.Poll = d
	return nil
}

// check holds the keys against each other.
func (v *VhostUser) check() error {
	switch {
	case v.Path == "":
		return errorAt(v.At, "vhost-user lacks the socket's path: write /run/disk.sock,queues=4")
	case len(v.Path) > MaxSocketPath:
		return errorAt(v.At, "%q: the path of a Unix socket has at most %d bytes: choose a shorter one", v.Path, MaxSocketPath)
	case v.Connect && v.Mode != 0:
		return errorAt(v.At, "mode is of a socket that is made here, and with connect=on the front end makes it: leave one away")
	}
	return nil
}

// giveVhostUsers hands out what was asked for in general, by flags: all to the
// only disk, or one to each in order.
func (c *Config) giveVhostUsers(texts []Text) error {
	for i, t := range texts {
		v, err := parseVhostUser(t)
		if err != nil {
			return err
		}
		d, err := c.diskOf(i, t.At, "vhost-user sockets", "--vhost-user")
		if err != nil {
			return err
		}
		d.VhostUsers = append(d.VhostUsers, v)
	}
	return c.checkVhostUsers()
}

// checkVhostUsers looks for sockets that are wanted twice.
func (c *Config) checkVhostUsers() error {
	taken := map[string]bool{}
	for _, l := range c.Listen {
		if l.Kind == ListenUnix {
			taken[l.Path] = true
		}
	}
	for i := range c.Disks {
		d := &c.Disks[i]
		if len(d.VhostUsers) > MaxVhostUsers {
			return errorAt(d.At, "disk %s is offered over vhost-user more than %d times", d.Name, MaxVhostUsers)
		}
		for _, v := range d.VhostUsers {
			if taken[v.Path] {
				return errorAt(v.At, "socket %s is used twice: give each its own", v.Path)
			}
			taken[v.Path] = true
		}
	}
	return nil
}

// OnlyVhostUser reports whether every disk is offered over vhost-user: then
// nobody has asked for another way.
func (c *Config) OnlyVhostUser() bool {
	return len(c.Disks) > 0 && !slices.ContainsFunc(c.Disks, func(d Disk) bool { return len(d.VhostUsers) == 0 })
}
