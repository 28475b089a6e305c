package graph

import (
	"context"
	"maps"
	"os"
	"strings"
	"syscall"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/magic"
)

// Disk is a disk as a person names it, with what was said about it apart.
type Disk struct {
	// Name is a path, a URI (null:4G, mem:1G), an option string
	// (driver=…,…) or an object (json:{…}).
	Name string
	// Format is raw, or empty where the user did not say: then a file that
	// looks like another format is refused.
	Format string
	// Protocol options, such as cache and aio, for the file at the bottom;
	// those that its driver lacks are an error.
	Protocol block.Values
}

// Values turns what a person wrote into the description of nodes. Whole
// descriptions are taken as they are; a path or URI becomes a format node over
// a protocol node.
func (d Disk) Values() (block.Values, error) {
	var vals block.Values
	var err error
	switch {
	case strings.HasPrefix(d.Name, "json:"):
		vals, err = block.ParseJSONOptions([]byte(d.Name[len("json:"):]))
	case strings.HasPrefix(d.Name, "driver="):
		vals, err = block.ParseOptions(d.Name)
	default:
		return d.fromName()
	}
	if err != nil {
		return nil, err
	}
	return d.overrides(vals)
}

// overrides adds the protocol options to a whole description, where they were
// given, at its only file.
func (d Disk) overrides(vals block.Values) (block.Values, error) {
	if vals["driver"] == "" {
		return nil, block.Errorf(syscall.EINVAL, "the description of %q does not say which driver it is: add driver=…", d.Name)
	}
	if len(d.Protocol) == 0 {
		return vals, nil
	}
	prefix := ""
	for vals[prefix+"file.driver"] != "" {
		prefix += "file."
	}
	for k, x := range d.Protocol {
		if _, has := vals[prefix+k]; !has {
			vals[prefix+k] = x
		}
	}
	return vals, nil
}

func (d Disk) fromName() (block.Values, error) {
	proto := block.Values{"driver": "file", "filename": d.Name}
	if drv := block.DriverForURI(d.Name); drv != nil && drv.ParseURI != nil {
		var err error
		if proto, err = drv.ParseURI(d.Name); err != nil {
			return nil, err
		}
		proto["driver"] = drv.Name
	} else if scheme, _, ok := strings.Cut(d.Name, "://"); ok && !strings.ContainsAny(scheme, "/.") {
		return nil, block.Errorf(syscall.EINVAL, "%s: there is no driver for %s:// here; a file of this name is reached as ./%s", d.Name, scheme, d.Name)
	} else if fi, err := os.Stat(d.Name); err == nil && fi.Mode()&os.ModeDevice != 0 {
		proto["driver"] = "host_device"
	}
	maps.Copy(proto, d.Protocol)
	format := d.Format
	if format == "" {
		format = "raw"
	}
	vals := block.Values{"driver": format}
	for k, x := range proto {
		vals["file."+k] = x
	}
	return vals, nil
}

// Open opens the disk as a node of g. Unless the user named the format, its
// beginning must not look like another format than raw: a guest could write
// that beginning, and the next opening would then trust what the guest wrote.
func (g *Graph) Open(ctx context.Context, d Disk, nodeName string, readOnly bool) (*block.Instance, error) {
	vals, err := d.Values()
	if err != nil {
		return nil, err
	}
	if nodeName != "" && vals["node-name"] == "" {
		vals["node-name"] = nodeName
	}
	inst, err := g.Add(ctx, vals, readOnly)
	if err != nil || d.Format != "" || vals["driver"] != "raw" || wholeDescription(d.Name) {
		return inst, err
	}
	if err := g.refuseForeign(inst, d.Name); err != nil {
		if e := g.Remove(inst.Name()); e != nil {
			return nil, e
		}
		return nil, err
	}
	return inst, nil
}

func wholeDescription(name string) bool {
	return strings.HasPrefix(name, "json:") || strings.HasPrefix(name, "driver=")
}

// refuseForeign reads the node's beginning and refuses what looks like another
// format.
func (g *Graph) refuseForeign(inst *block.Instance, name string) error {
	c, err := inst.NewChild("format detection", block.RoleRoot, block.PermRead, block.PermAll)
	if err != nil {
		return err
	}
	defer c.Close()
	head := make([]byte, min(block.ProbeHead, c.Size()))
	rq := g.jobs.Begin()
	err = c.Preadv(rq, 0, block.Vec{head}, 0)
	g.jobs.End(rq, block.OpRead, int64(len(head)), err)
	if err != nil {
		return err
	}
	if format := magic.Find(head); format != "" {
		return block.Errorf(syscall.EINVAL,
			"%s begins like a %s image, and the format was not given; to use its bytes as they are say --format raw (option string: driver=raw,file.driver=file,file.filename=…)", name, format)
	}
	return nil
}
