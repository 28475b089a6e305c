package block

import (
	"context"
	"sort"
	"strings"
	"sync"
	"syscall"
)

// DriverKind groups drivers by what they are.
type DriverKind uint8

// The kinds of drivers.
const (
	KindProtocol DriverKind = iota // reaches storage
	KindFormat                     // interprets storage
	KindFilter                     // same content, added behaviour
)

var kindNames = [...]string{"protocol", "format", "filter"}

// String is the kind's name.
func (k DriverKind) String() string { return kindNames[k] }

// Driver is a registered kind of node. Everything but the functions is data,
// from which help, validation and documentation are made.
type Driver struct {
	Name string
	Kind DriverKind
	Doc  string // one line
	// Options of Open; CreateOptions of Create.
	Options, CreateOptions []Option
	Open                   func(ctx context.Context, a *OpenArgs) (Node, error)
	// Create makes new storage of size bytes; nil where it cannot.
	Create func(ctx context.Context, a *CreateArgs) error
	// Schemes are the URI schemes that name this driver, and ParseURI
	// turns such a URI into options.
	Schemes  []string
	ParseURI func(uri string) (Values, error)
	// Probe scores how surely the beginning of a file is of this format:
	// 0 not at all, 100 certain. name is the file's name, a weak hint.
	Probe func(head []byte, name string) int
}

// OpenArgs are what a driver opens with.
type OpenArgs struct {
	Env      *Env
	Options  *Options
	ReadOnly bool
	// Child opens, or finds by name, the node that the option name
	// describes, and makes the edge to it. The graph closes edges of a
	// node whose Open fails.
	Child func(name string, role Role, perm, shared Perm) (*Child, error)
	// Below opens the node that vals describe, which the driver has found
	// in the image and not among its options: a backing file. Without a
	// driver in vals the format is probed. nil where there is no graph.
	Below func(name string, vals Values, readOnly bool, role Role, perm, shared Perm) (*Child, error)
}

// CreateArgs are what a driver creates with.
type CreateArgs struct {
	Env     *Env
	Options *Options
	Size    int64
	// File is the storage that a format is made in, opened for writing and
	// resizing; nil for protocols.
	File *Child
}

var registry = struct {
	sync.RWMutex
	byName   map[string]*Driver
	byScheme map[string]*Driver
}{byName: map[string]*Driver{}, byScheme: map[string]*Driver{}}

// Register adds a driver; drivers call it when their package is imported.
func Register(d *Driver) {
	registry.Lock()
	defer registry.Unlock()
	if _, dup := registry.byName[d.Name]; dup {
		panic("block: driver " + d.Name + " is registered twice")
	}
	registry.byName[d.Name] = d
	for _, s := range d.Schemes {
		if other := registry.byScheme[s]; other != nil {
			panic("block: drivers " + other.Name + " and " + d.Name + " are both registered for " + s + ":")
		}
		registry.byScheme[s] = d
	}
}

// FindDriver is the driver called name. The error lists those there are.
func FindDriver(name string) (*Driver, error) {
	registry.RLock()
	d := registry.byName[name]
	registry.RUnlock()
	if d != nil {
		return d, nil
	}
	var names []string
	for _, d := range Drivers() {
		names = append(names, d.Name)
	}
	return nil, Errorf(syscall.EINVAL, "there is no driver %q; there are: %s", name, strings.Join(names, ", "))
}

// DriverForURI is the driver that the text before the first colon names, or
// nil.
func DriverForURI(uri string) *Driver {
	scheme, _, ok := strings.Cut(uri, ":")
	if !ok {
		return nil
	}
	registry.RLock()
	defer registry.RUnlock()
	return registry.byScheme[scheme]
}

// Drivers lists all drivers by name.
func Drivers() []*Driver {
	registry.RLock()
	defer registry.RUnlock()
	var all []*Driver
	for _, d := range registry.byName {
		all = append(all, d)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Name < all[j].Name })
	return all
}

// ProbeHead is how much of a file's beginning Probe functions see.
const ProbeHead = 4096

// Probe is the format that head looks most like, and its score; nil where it
// looks like none.
func Probe(head []byte, name string) (*Driver, int) {
	var best *Driver
	var score int
	for _, d := range Drivers() {
		if d.Probe == nil {
			continue
		}
		if s := d.Probe(head, name); s > score {
			best, score = d, s
		}
	}
	return best, score
}
