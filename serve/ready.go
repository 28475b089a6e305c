package serve

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/platter-storage/platter/block"
)

// Ready is what a daemon says of itself when it serves.
type Ready struct {
	PID    int        `json:"pid"`
	Disks  []DiskInfo `json:"disks"`
	Listen []string   `json:"listen"`
	TLS    string     `json:"tls"`
	// Error is why a reload did not do all that was asked for.
	Error string `json:"error,omitempty"`
}

// DiskInfo is one disk.
type DiskInfo struct {
	Name     string       `json:"name"`
	Path     string       `json:"path"`
	Size     int64        `json:"size_bytes"`
	ReadOnly bool         `json:"read_only"`
	Created  bool         `json:"created"`
	Nodes    []NodeInfo   `json:"nodes"`
	Exports  []ExportInfo `json:"exports"`
}

// NodeInfo is one of the nodes that a disk stands on, from the top.
type NodeInfo struct {
	Driver   string `json:"driver"`
	Filename string `json:"filename"`
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
	r := &Ready{PID: os.Getpid(), TLS: d.cfg.TLS.Mode.String()}
	for _, l := range d.listeners {
		r.Listen = append(r.Listen, addressText(l))
	}
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
	di := DiskInfo{Name: dk.cfg.Name, Path: dk.cfg.Path.Value, Size: info.Size(), ReadOnly: info.ReadOnly, Created: dk.created}
	for _, in := range d.graph.Below(dk.inst.Name()) {
		di.Nodes = append(di.Nodes, describeNode(in.Info()))
	}
	for _, e := range dk.exports {
		if !e.alias {
			di.Exports = append(di.Exports, d.describeExport(e, info.ReadOnly))
		}
	}
	return di
}

func (d *Daemon) describeExport(e *export, readOnly bool) ExportInfo {
	ei := ExportInfo{Name: e.cfg.Name, Description: e.cfg.Description, ReadOnly: e.cfg.ReadOnly || readOnly, Default: isDefault(d.cfg)(e.cfg.Name)}
	for i, l := range d.listeners {
		u := l.address(d.cfg.TLS)
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
	if info.Abilities.Explain != nil {
		n.Explain = info.Abilities.Explain()
	}
	return n
}

// Bounds on what people are shown: disks with whole commands, and a node's
// sentences; its decisions come first, then the evidence.
const (
	maxShown     = 4
	maxExplained = 4
)

// WriteText writes what people want to know first.
func (r *Ready) WriteText(w io.Writer) error {
	var b strings.Builder
	for i := range r.Disks {
		r.Disks[i].writeText(&b, i < maxShown)
	}
	if len(r.Disks) == 0 {
		fmt.Fprintln(&b, "no disks: add some to the configuration and send SIGHUP")
	}
	fmt.Fprintf(&b, "ready: process %d serves on %s", r.PID, strings.Join(r.Listen, ", "))
	if r.TLS != "off" {
		fmt.Fprintf(&b, ", TLS %s", r.TLS)
	}
	fmt.Fprintln(&b, "; Ctrl-C or SIGTERM ends it, SIGUSR1 prints statistics")
	if r.Error != "" {
		fmt.Fprintf(&b, "not all that was asked for: %s\n", r.Error)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (di *DiskInfo) writeText(b *strings.Builder, commands bool) {
	fmt.Fprintf(b, "%s: %s (%d bytes)", di.Path, block.FormatSize(di.Size), di.Size)
	if di.Created {
		b.WriteString(", made now")
	}
	if di.ReadOnly {
		b.WriteString(", read-only")
	}
	b.WriteString("\n")
	for _, n := range di.Nodes {
		fmt.Fprintf(b, "  driver %s\n", n.Driver)
		for i, s := range n.Explain {
			if i == maxExplained {
				fmt.Fprintf(b, "    … %d lines more with --json\n", len(n.Explain)-i)
				break
			}
			fmt.Fprintf(b, "    %s\n", s)
		}
	}
	for _, e := range di.Exports {
		e.writeText(b, commands)
	}
	b.WriteString("\n")
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
