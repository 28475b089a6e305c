package graph

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
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
		text := []byte(d.Name[len("json:"):])
		if vals, err = block.ParseJSONOptions(text); err != nil {
			err = jsonError(text, err)
		}
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

// jsonError says where a description does not parse, if that is what is wrong.
func jsonError(text []byte, err error) error {
	var tree any
	var syntax *json.SyntaxError
	if !errors.As(json.Unmarshal(text, &tree), &syntax) {
		return err
	}
	at := min(int(syntax.Offset), len(text))
	near := text[max(at-20, 0):at]
	return block.Errorf(syscall.EINVAL, "json: the description does not parse at byte %d, after %q: %v; write json:{\"driver\": \"raw\", …}, in a shell between single quotes", at, near, syntax)
}

// overrides adds to a whole description what goes without saying: the driver of
// a file that has a name; and the protocol options, where they were given, at
// its only file.
func (d Disk) overrides(vals block.Values) (block.Values, error) {
	if vals["driver"] == "" {
		return nil, block.Errorf(syscall.EINVAL, "the description of %q does not say which driver it is: add driver=…", d.Name)
	}
	prefix := ""
	for {
		if vals[prefix+"file.driver"] == "" && vals[prefix+"file.filename"] != "" {
			vals[prefix+"file.driver"] = "file" // as in the reference
		}
		if vals[prefix+"file.driver"] == "" {
			break
		}
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

// Open opens the disk as a node of g. Where the user did not name the format it is
// guessed with care: a guest could write what looks like the beginning of an image.
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
	format, err := g.guess(inst, d.Name, readOnly)
	if err == nil && format == "raw" {
		return inst, nil
	}
	if e := g.Remove(inst.Name()); e != nil || err != nil {
		return nil, errors.Join(err, e)
	}
	vals["driver"] = format
	return g.Add(ctx, vals, readOnly)
}

func wholeDescription(name string) bool {
	return strings.HasPrefix(name, "json:") || strings.HasPrefix(name, "driver=")
}

// NotYet says of a format that other programs know that it is not supported,
// and the two ways out. name is the image's, for the command.
func NotYet(format, name string) string {
	return fmt.Sprintf("and the format %s is not supported yet: convert it (qemu-img convert -f %s -O raw %s new.raw), or serve it with qemu-nbd", format, format, name)
}

// guess says which format a file is opened as whose format the user left out:
// raw, unless it begins like another. Then that one, if nothing can be changed
// through it or the file's name ends like the format's; a disk that was raw all
// the time and whose guest wrote that beginning is not taken for an image.
func (g *Graph) guess(inst *block.Instance, name string, readOnly bool) (string, error) {
	head, err := g.readHead(inst)
	if err != nil {
		return "", err
	}
	if d, score := block.Probe(head, name); d != nil && score > 0 {
		if readOnly || strings.EqualFold(strings.TrimPrefix(filepath.Ext(name), "."), d.Name) {
			return d.Name, nil
		}
		return "", block.Errorf(syscall.EINVAL, "%s begins like a %s image, and its name does not end in .%s: say which it is, --format %s, or --format raw for the bytes of the file itself, its header included",
			name, d.Name, d.Name, d.Name)
	}
	if format := magic.Find(head); format != "" {
		return "", block.Errorf(syscall.EINVAL,
			"%s begins like a %s image, %s; --format raw would give clients the bytes of the image file itself, its header included", name, format, NotYet(format, name))
	}
	return "raw", nil
}
