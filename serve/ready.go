package serve

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/wire/nbd"
)

// Ready is what a daemon says of itself when it serves.
type Ready struct {
	PID    int        `json:"pid"`
	Disks  []DiskInfo `json:"disks"`
	Listen []string   `json:"listen"`
	TLS    string     `json:"tls"`
	HTTP   string     `json:"http,omitempty"` // where there is a page, an API and metrics
	// Certificates says which files clients need, and where.
	Certificates string `json:"certificates,omitempty"`

	verbose bool // as text: all that is known
	checked bool // nothing is served
}

// DiskInfo is one disk.
type DiskInfo struct {
	Name     string       `json:"name"`
	Path     string       `json:"path"`
	Size     int64        `json:"size_bytes"`
	ReadOnly bool         `json:"read_only"`
	Created  bool         `json:"created"`
	Note     string       `json:"note,omitempty"`     // why it is not open, in a check
	Throttle string       `json:"throttle,omitempty"` // its limits, and who shares them
	Nodes    []NodeInfo   `json:"nodes"`
	Exports  []ExportInfo `json:"exports"`
	// VhostUsers are the sockets for virtual machines.
	VhostUsers []VhostUserInfo `json:"vhost_user,omitempty"`
}

// NodeInfo is one of the nodes that a disk stands on, from the top.
type NodeInfo struct {
	Driver   string `json:"driver"`
	Filename string `json:"filename"`
	Doc      string `json:"doc"` // what the driver is
	// Explain says in sentences how the node came to its decisions.
	Explain []string `json:"explain,omitempty"`
	// Alignments that the node needs, in bytes.
	ReadAlign  uint32 `json:"read_align"`
	WriteAlign uint32 `json:"write_align"`
	MemAlign   uint32 `json:"mem_align"`
}

// ExportInfo is one name of a disk.
type ExportInfo struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	ReadOnly    bool   `json:"read_only"`
	// Default: clients who name no export get this one.
	Default bool     `json:"default"`
	URIs    []string `json:"uris"`
	// Commands use the export at its first URI.
	Commands []string `json:"commands"`
}

// Ready describes the daemon as it serves now.
func (d *Daemon) Ready() *Ready {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ready()
}

func (d *Daemon) ready() *Ready {
	r := &Ready{PID: os.Getpid(), TLS: d.cfg.TLS.Mode.String(), HTTP: d.web.address(), Certificates: certificatesText(d.cfg.TLS)}
	for _, l := range d.listeners {
		r.Listen = append(r.Listen, addressText(l))
	}
	r.Listen = append(r.Listen, d.vhostSockets()...)
	for _, dk := range d.disks {
		r.Disks = append(r.Disks, d.describeDisk(dk))
	}
	return r
}

// addressText is where a listener really listens: a free port has a number.
func addressText(l *listener) string {
	a := l.l.Addr()
	if a.Network() == "unix" {
		return "unix:" + a.String()
	}
	return a.String()
}

func (d *Daemon) describeDisk(dk *disk) DiskInfo {
	info := dk.inst.Info()
	di := DiskInfo{Name: dk.cfg.Name, Path: dk.cfg.Path.Value, Size: info.Size(), ReadOnly: info.ReadOnly, Created: dk.created, Throttle: dk.gate.String()}
	for _, in := range d.graph.Below(dk.inst.Name()) {
		di.Nodes = append(di.Nodes, describeNode(in.Info()))
	}
	for _, e := range dk.exports {
		if !e.alias {
			di.Exports = append(di.Exports, d.describeExport(e, info.ReadOnly))
		}
	}
	for _, x := range dk.vhosts {
		di.VhostUsers = append(di.VhostUsers, describeVhost(x, info.ReadOnly))
	}
	return di
}

func (d *Daemon) describeExport(e *export, readOnly bool) ExportInfo {
	ei := ExportInfo{Name: e.cfg.Name, Description: e.cfg.Description, ReadOnly: e.cfg.ReadOnly || readOnly, Default: isDefault(d.cfg)(e.cfg.Name)}
	var all []nbd.URI
	for _, l := range d.listeners {
		all = append(all, l.addresses(d.cfg.TLS)...)
	}
	for i, u := range all {
		if only := len(d.disks) == 1 && len(d.disks[0].cfg.Exports) == 1; !only {
			u.Export = e.cfg.Name
		}
		ei.URIs = append(ei.URIs, uriText(u))
		if i == 0 {
			ei.Commands = clientLines(u, ei.ReadOnly, d.cfg.TLS)
		}
	}
	return ei
}

func describeNode(info *block.Info) NodeInfo {
	l := info.Limits()
	n := NodeInfo{Driver: info.Driver, Filename: info.Filename, ReadAlign: l.ReadAlign, WriteAlign: l.WriteAlign, MemAlign: l.MinMem}
	if drv, err := block.FindDriver(info.Driver); err == nil {
		n.Doc = drv.Doc
	}
	if info.Abilities.Explain != nil {
		n.Explain = info.Abilities.Explain()
	}
	return n
}

// Bounds on what people are shown without --verbose: disks with whole commands,
// and a node's sentences; its decisions come first, then the evidence.
const (
	maxShown     = 4
	maxExplained = 4
)

// WriteText writes what people want to know first.
func (r *Ready) WriteText(w io.Writer) error {
	var b strings.Builder
	for i := range r.Disks {
		r.Disks[i].writeText(&b, i < maxShown || r.verbose, r.verbose)
	}
	if r.Certificates != "" {
		fmt.Fprintf(&b, "%s\n\n", r.Certificates)
	}
	if r.checked {
		fmt.Fprintf(&b, "checked: %s; nothing is served and nothing was made\n", plural(len(r.Disks), "disk"))
		_, err := io.WriteString(w, b.String())
		return err
	}
	fmt.Fprintf(&b, "ready: process %d serves on %s", r.PID, strings.Join(r.Listen, ", "))
	if r.TLS != "off" {
		fmt.Fprintf(&b, ", TLS %s", r.TLS)
	}
	if r.HTTP != "" {
		fmt.Fprintf(&b, "; page and API: %s", r.HTTP)
	}
	fmt.Fprintln(&b, "; Ctrl-C or SIGTERM ends it, SIGUSR1 prints statistics")
	_, err := io.WriteString(w, b.String())
	return err
}

// plural is a number of things: 1 disk, 2 disks.
func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// writeText writes the disk: path and size, how it is opened, its exports.
func (di *DiskInfo) writeText(b *strings.Builder, commands, verbose bool) {
	fmt.Fprintf(b, "%s: %s (%d bytes)", di.Path, block.FormatSize(di.Size), di.Size)
	if di.Created {
		b.WriteString(", made now")
	}
	if di.ReadOnly {
		b.WriteString(", read-only")
	}
	b.WriteString("\n")
	if di.Note != "" {
		fmt.Fprintf(b, "  %s\n", di.Note)
	}
	for i := range di.Nodes {
		di.Nodes[i].writeText(b, verbose)
	}
	if di.Throttle != "" {
		fmt.Fprintf(b, "  throttle: %s\n", di.Throttle)
	}
	for _, e := range di.Exports {
		if len(e.URIs) > 0 || len(di.VhostUsers) == 0 {
			e.writeText(b, commands)
		}
	}
	for _, v := range di.VhostUsers {
		v.writeText(b, commands)
	}
	b.WriteString("\n")
}

// writeText writes how the node came to its decisions: the short form of them,
// or everything. What has nothing to say is named by what it is.
func (n *NodeInfo) writeText(b *strings.Builder, verbose bool) {
	indent := "  "
	if verbose {
		fmt.Fprintf(b, "  driver %s\n", n.Driver)
		indent = "    "
	} else if len(n.Explain) == 0 && n.Driver != "raw" {
		fmt.Fprintf(b, "  %s\n", n.Doc)
	}
	for i, s := range n.Explain {
		if !verbose {
			if i == maxExplained {
				break
			}
			s, _, _ = strings.Cut(s, ";")
		}
		fmt.Fprintf(b, "%s%s\n", indent, s)
	}
}

// Reloaded is what a daemon says after it was told to read its configuration
// again.
type Reloaded struct {
	Ready
	// Changes are what was done, in sentences.
	Changes []string `json:"changes"`
	// Error is why not all that was asked for was done.
	Error string `json:"error,omitempty"`

	file string // the configuration file
}

// WriteText writes what has changed. An error is in the log, once.
func (r *Reloaded) WriteText(w io.Writer) error {
	var b strings.Builder
	for _, s := range r.Changes {
		fmt.Fprintf(&b, "reloaded: %s\n", s)
	}
	switch {
	case len(r.Changes) > 0 || r.Error != "":
	case r.file == "" && r.TLS == "off":
		b.WriteString("reloaded: there is nothing to read again: it was started without --config\n")
	case r.file == "":
		b.WriteString("reloaded: nothing has changed; the certificates were read again, and there is no --config\n")
	default:
		fmt.Fprintf(&b, "reloaded: nothing has changed in %s\n", r.file)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (e *ExportInfo) writeText(b *strings.Builder, commands bool) {
	notes := ""
	if e.Description != "" {
		notes += ", " + e.Description
	}
	if e.ReadOnly {
		notes += ", read-only"
	}
	if e.Default {
		notes += ", also found without a name"
	}
	fmt.Fprintf(b, "  export %q%s\n", e.Name, notes)
	for _, u := range e.URIs {
		fmt.Fprintf(b, "    %s\n", u)
	}
	if !commands {
		return
	}
	for _, c := range e.Commands {
		fmt.Fprintf(b, "      %s\n", c)
	}
}
