package config

import (
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/platter-storage/platter/block"
)

// nodeName is the form of a node's name, which a disk's name has too.
var nodeName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9\-._]{0,30}$`)

const maxName = 31

// finish gives the disks names and exports, and looks at what only the whole
// can show.
func (c *Config) finish(exports, vhostUsers []Text) error {
	if err := c.nameDisks(); err != nil {
		return err
	}
	if err := c.giveExports(exports); err != nil {
		return err
	}
	if err := c.nameExports(); err != nil {
		return err
	}
	if err := c.giveVhostUsers(vhostUsers); err != nil {
		return err
	}
	if err := c.checkListen(); err != nil {
		return err
	}
	return c.checkTLS()
}

// nameDisks names those disks that have no name after their files.
func (c *Config) nameDisks() error {
	taken := map[string]Place{}
	for i := range c.Disks {
		d := &c.Disks[i]
		if !d.named {
			continue
		}
		if at, twice := taken[d.Name]; twice {
			return errorAt(d.At, "a disk is called %q already (%s): names are unique", d.Name, at)
		}
		taken[d.Name] = d.At
	}
	for i := range c.Disks {
		if d := &c.Disks[i]; !d.named {
			d.Name = unused(nameOf(d.Path.Value), taken)
			taken[d.Name] = d.At
		}
	}
	return nil
}

// unused is name, or name-2 and so on where it is taken.
func unused(name string, taken map[string]Place) string {
	try := name
	for n := 2; ; n++ {
		if _, twice := taken[try]; !twice {
			return try
		}
		suffix := "-" + strconv.Itoa(n)
		try = name[:min(len(name), maxName-len(suffix))] + suffix
	}
}

// nameOf makes a name from a path, a URI or a description.
func nameOf(path string) string {
	var vals block.Values
	switch {
	case strings.HasPrefix(path, "json:"):
		vals, _ = block.ParseJSONOptions([]byte(path[len("json:"):]))
	case strings.HasPrefix(path, "driver="):
		vals, _ = block.ParseOptions(path)
	default:
		return cleanName(path)
	}
	if vals["node-name"] != "" {
		return cleanName(vals["node-name"])
	}
	prefix := ""
	for vals[prefix+"file.driver"] != "" || vals[prefix+"file.filename"] != "" {
		prefix += "file."
	}
	if f := vals[prefix+"filename"]; f != "" {
		return cleanName(f)
	}
	return cleanName(vals[prefix+"driver"])
}

// cleanName takes the last element of a path or the scheme of a URI, without
// ending, and makes a node's name of it.
func cleanName(path string) string {
	if scheme, _, ok := strings.Cut(path, ":"); ok && !strings.Contains(scheme, "/") {
		path = scheme
	}
	base := filepath.Base(path)
	if ext := filepath.Ext(base); ext != base {
		base = strings.TrimSuffix(base, ext)
	}
	clean := strings.Map(func(r rune) rune {
		if r < 128 && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-._", r)) {
			return r
		}
		return '-'
	}, base)
	if clean == "" || !nodeName.MatchString(clean[:1]) {
		clean = "disk-" + clean
	}
	return clean[:min(len(clean), maxName)]
}

// giveExports hands out the exports that were asked for in general, by flags or
// at the top of the file: all to the only disk, or one to each in order.
func (c *Config) giveExports(texts []Text) error {
	for i, t := range texts {
		e, err := parseExport(t)
		if err != nil {
			return err
		}
		d, err := c.diskOf(i, t.At, "exports", "--export")
		if err != nil {
			return err
		}
		d.Exports = append(d.Exports, e)
	}
	return nil
}

// diskOf is the disk that the i-th of what was asked for in general belongs
// to: the only one, or the i-th. what and flag are words for the error.
func (c *Config) diskOf(i int, at Place, what, flag string) (*Disk, error) {
	if len(c.Disks) == 1 {
		i = 0
	}
	if i >= len(c.Disks) {
		return nil, errorAt(at, "there are more %s than disks: with several disks the first %s is for the first one, and so on", what, flag)
	}
	return &c.Disks[i], nil
}

// nameExports gives each disk that has no export one of the disk's name.
func (c *Config) nameExports() error {
	taken := map[string]Place{}
	for i := range c.Disks {
		d := &c.Disks[i]
		if len(d.Exports) == 0 {
			d.Exports = []Export{{Name: d.Name, At: d.At}}
		}
		if len(d.Exports) > MaxExports {
			return errorAt(d.At, "disk %s has more than %d exports", d.Name, MaxExports)
		}
		for _, e := range d.Exports {
			if at, twice := taken[e.Name]; twice {
				return errorAt(e.At, "an export is called %q already%s: give this one another name", e.Name, parenthesised(at))
			}
			taken[e.Name] = e.At
		}
	}
	return nil
}

func parenthesised(at Place) string {
	if s := at.String(); s != "" {
		return " (" + s + ")"
	}
	return ""
}

// DefaultExport is the export that clients reach who name none: the one called
// "", or the first. False where there is no disk.
func (c *Config) DefaultExport() (name string, ok bool) {
	for i := range c.Disks {
		for _, e := range c.Disks[i].Exports {
			if e.Name == "" {
				return "", true
			}
		}
	}
	if len(c.Disks) == 0 {
		return "", false
	}
	return c.Disks[0].Exports[0].Name, true
}

// parseExport reads name=…,description=…,read-only=on.
func parseExport(t Text) (Export, error) {
	vals, err := block.ParseOptions(t.Value)
	if err != nil {
		return Export{}, &Error{At: t.At, Msg: err.Error(), Err: err}
	}
	e := Export{At: t.At}
	if !strings.ContainsAny(t.Value, "=,") && !slices.Contains(exportKeys, t.Value) {
		e.Name = t.Value // a name alone
		return e, nil
	}
	for k, v := range vals {
		if err := e.set(k, Text{v, t.At}, t.At); err != nil {
			return Export{}, err
		}
	}
	return e, nil
}

var exportKeys = []string{"name", "description", "read-only"}

// set takes one key of an export; at is the key's place.
func (e *Export) set(key string, v Text, at Place) error {
	switch key {
	case "name":
		e.Name = v.Value
	case "description":
		e.Description = v.Value
	case "read-only":
		on, ok := parseBool(v.Value)
		if !ok {
			return errorAt(v.At, "read-only %q of the export: write on or off", v.Value)
		}
		e.ReadOnly = on
	default:
		return errorAt(at, "an export has no %q: %s", key, oneOf(key, exportKeys))
	}
	return nil
}

func (c *Config) checkListen() error {
	if len(c.Listen) > MaxListen {
		return errorAt(c.Listen[MaxListen].At, "there are more than %d listeners", MaxListen)
	}
	seen := map[string]bool{}
	for _, l := range c.Listen {
		if s := l.String(); seen[s] {
			return errorAt(l.At, "%s is listened on twice", s)
		}
		seen[l.String()] = true
	}
	return nil
}

// checkTLS holds the parts of the TLS settings against each other.
func (c *Config) checkTLS() error {
	t := &c.TLS
	at := func(name string) Place {
		if v := c.Settings[name]; len(v) > 0 {
			return v[len(v)-1].At
		}
		return Place{}
	}
	_, said := c.Settings["tls"]
	if t.Cert != "" && !said {
		t.Mode = TLSRequired
	}
	switch {
	case t.Cert != "" && t.Key == "":
		return errorAt(at("tls-cert"), "the certificate needs its key: add tls-key (a PEM file)")
	case t.Key != "" && t.Cert == "":
		return errorAt(at("tls-key"), "the key needs its certificate: add tls-cert (a PEM file)")
	case t.Mode != TLSOff && t.Cert == "":
		return errorAt(at("tls"), "TLS needs a certificate and its key: add tls-cert and tls-key (PEM files)")
	case t.VerifyClient && t.CA == "":
		return errorAt(at("tls-verify-client"), "clients are verified against an authority: add tls-ca (a PEM file)")
	case t.CA != "" && !t.VerifyClient:
		return errorAt(at("tls-ca"), "an authority is for verifying clients: add tls-verify-client, or leave it away")
	}
	return nil
}
