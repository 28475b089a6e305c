// Package config says what a daemon is asked to do: the settings that exist, as
// data; their values, from flags and from a YAML file; and every mistake in
// them by its place. It opens nothing.
package config

import (
	"io/fs"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/platter-storage/platter/block"
)

// Bounds on what a configuration can ask for.
const (
	MaxFileBytes = 1 << 20 // length of a configuration file
	MaxDisks     = 1024
	MaxExports   = 64 // of one disk
	MaxListen    = 64
	MaxConns     = 1 << 16
)

// Config is what a daemon is asked to do.
type Config struct {
	Disks  []Disk
	Listen []Listen
	TLS    TLS

	MaxConnections   int           // 0: the server's own
	HandshakeTimeout time.Duration // 0: the server's own
	BufferMemory     int64         // bytes; 0: the pool's own
	ConnectionMemory int64         // bytes; 0: the server's own
	SocketMode       fs.FileMode   // of Unix sockets; 0: 0600
	PIDFile          string
	HTTP             *Listen // nil: none
	HTTPToken        string  // a file; empty: none
	Stats            bool    // print counters on exit
	Once             bool    // exit when the last client has left
	LogFormat        string
	LogLevel         slog.Level

	// Settings are the effective values of everything that is not of a disk,
	// by name: what a reload compares.
	Settings map[string][]Text

	// File is the configuration file's name, empty where there is none.
	File string
}

// Disk is one thing to serve.
type Disk struct {
	// Name is unique among the disks: what messages, nodes and exports are
	// called.
	Name string
	// Path is a path, a URI, an option string or json:{…}.
	Path Text
	// Format is raw, or empty where nobody said.
	Format   string
	ReadOnly bool
	// Create is the size in bytes of a file to be made where there is none;
	// 0 makes none.
	Create        int64
	Preallocation string
	// Creating are further options of the driver's for making the file.
	Creating block.Values
	// Throttle are the disk's limits, empty for none.
	Throttle block.Values
	// IgnoreDiscard: discards succeed without effect.
	IgnoreDiscard bool
	// Options are for the driver at the bottom, as cache and aio; Defaults
	// too, but only those that it has.
	Options, Defaults block.Values
	Exports           []Export
	VhostUsers        []VhostUser
	At                Place

	named bool // the user gave the name
}

// Equal reports whether two disks are described alike.
func (d *Disk) Equal(o *Disk) bool {
	a, b := *d, *o
	if !maps.Equal(a.Options, b.Options) || !maps.Equal(a.Defaults, b.Defaults) || !maps.Equal(a.Creating, b.Creating) || !maps.Equal(a.Throttle, b.Throttle) || !slices.Equal(a.Exports, b.Exports) || !slices.Equal(a.VhostUsers, b.VhostUsers) {
		return false
	}
	for _, x := range []*Disk{&a, &b} {
		x.Options, x.Defaults, x.Creating, x.Throttle, x.Exports, x.VhostUsers = nil, nil, nil, nil, nil, nil
	}
	return reflect.DeepEqual(a, b)
}

// Export is a way to offer a disk to clients.
type Export struct {
	Name        string // "" is the default export
	Description string
	ReadOnly    bool
	At          Place
}

// TLS says how connections are encrypted.
type TLS struct {
	Mode          TLSMode
	Cert, Key, CA string // file names
	VerifyClient  bool
}

// TLSMode says whether clients may, must or cannot encrypt.
type TLSMode uint8

// The modes of TLS.
const (
	TLSOff TLSMode = iota
	TLSOptional
	TLSRequired
)

var tlsModes = []string{"off", "optional", "required"}

// String is the mode's name in settings.
func (m TLSMode) String() string { return tlsModes[m] }

// Layer is what one source says: the flags and arguments, or a file.
type Layer struct {
	// File is the file's name; empty for flags.
	File string
	// Settings by name, in the order given.
	Settings map[string][]Text
	Disks    []DiskLayer
}

// DiskLayer is what one source says of one disk.
type DiskLayer struct {
	Name     Text
	Path     Text
	Settings map[string][]Text
	Options  block.Values
	Exports  []Export
	// VhostUsers are those that the disk's place has; flags' are Settings.
	VhostUsers []VhostUser
	At         Place
}

// Set notes that a setting was given. It is checked when the layers are put
// together.
func (l *Layer) Set(name string, v Text) {
	if l.Settings == nil {
		l.Settings = map[string][]Text{}
	}
	l.Settings[name] = append(l.Settings[name], v)
}

// AddDisk notes an argument: a disk to serve.
func (l *Layer) AddDisk(path string) {
	l.Disks = append(l.Disks, DiskLayer{Path: Text{Value: path}})
}

// Build puts the layers together: what a later one says of a setting replaces
// what an earlier one said; disks add up. A disk's own setting replaces the
// general one.
func Build(layers ...*Layer) (*Config, error) {
	c := &Config{Settings: map[string][]Text{}}
	general := map[string][]Text{}
	for _, l := range layers {
		if l.File != "" {
			c.File = l.File
		}
		for name, v := range l.Settings {
			general[name] = v
		}
	}
	if err := c.applyDaemon(general); err != nil {
		return nil, err
	}
	for _, l := range layers {
		for i := range l.Disks {
			if err := c.addDisk(&l.Disks[i], general); err != nil {
				return nil, err
			}
		}
	}
	return c, c.finish(general["export"], general["vhost-user"])
}

// applyDaemon takes the settings that are not of a disk, in the order of the
// table.
func (c *Config) applyDaemon(general map[string][]Text) error {
	for i := range Settings {
		s := &Settings[i]
		vals, given := general[s.Name]
		if s.Disk() || !given {
			continue
		}
		for _, v := range vals {
			if err := s.checked(v); err != nil {
				return err
			}
			if err := s.daemon(c, v); err != nil {
				return err
			}
		}
		c.Settings[s.Name] = vals
	}
	return nil
}

// addDisk takes what one source says of a disk, above the general settings.
func (c *Config) addDisk(l *DiskLayer, general map[string][]Text) error {
	if len(c.Disks) == MaxDisks {
		return errorAt(l.At, "there are more than %d disks, the most that one daemon serves", MaxDisks)
	}
	if l.Path.Value == "" {
		return errorAt(l.At, "a disk has no path: write path: FILE, a URI such as mem:1G, or node: with a driver's options")
	}
	d := Disk{Path: l.Path, At: l.At, Options: block.Values{}, Defaults: block.Values{}, Exports: l.Exports, VhostUsers: l.VhostUsers}
	for i := range Settings {
		s := &Settings[i]
		if !s.Disk() {
			continue
		}
		if err := s.applyDisk(&d, general[s.Name], l.Settings[s.Name]); err != nil {
			return err
		}
	}
	for k, v := range l.Options {
		if _, twice := d.Options[k]; twice {
			return errorAt(l.At, "%s is given both as a setting of the disk and below options: leave one away", k)
		}
		d.Options[k] = v
	}
	if l.Name.Value != "" {
		if d.Name, d.named = l.Name.Value, true; !nodeName.MatchString(d.Name) {
			return errorAt(l.Name.At, "name %q: a letter, then up to 30 letters, digits, '-', '.' or '_'", d.Name)
		}
	}
	c.Disks = append(c.Disks, d)
	return nil
}
