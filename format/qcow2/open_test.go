package qcow2

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/platter-storage/platter/block"
	bt "github.com/platter-storage/platter/block/blocktest"
)

// asked opens an image over file and gives what it wanted opened below.
func asked(t *testing.T, env *block.Env, file *block.Instance, vals block.Values) (below block.Values, readOnly bool, err error) {
	t.Helper()
	d, err := block.FindDriver("qcow2")
	if err != nil {
		t.Fatal(err)
	}
	vals["file"] = "file"
	o, err := d.Check(vals)
	if err != nil {
		t.Fatal(err)
	}
	_, err = d.Open(context.Background(), &block.OpenArgs{Env: env, Options: o, ReadOnly: false,
		Child: func(name string, role block.Role, perm, shared block.Perm) (*block.Child, error) {
			c, err := file.NewChild("image", role, perm, shared)
			if err == nil {
				t.Cleanup(c.Close)
			}
			return c, err
		},
		Below: func(_ string, v block.Values, ro bool, _ block.Role, _, _ block.Perm) (*block.Child, error) {
			below, readOnly = v, ro
			return nil, syscall.ENOENT
		}})
	return below, readOnly, err
}

// Which backing files an image may name, how they are opened, and what the error
// says of the others.
func TestBackingFilesAreFollowedUnderThePolicy(t *testing.T) {
	for _, c := range []struct {
		name, format, trust string
		opened, refused     string
	}{
		{"base.qcow2", "qcow2", "off", "qcow2", ""},
		{"base.img", "raw", "off", "raw", ""},
		{"base", "", "off", "", ""},
		{"../base", "raw", "off", "", "trust=on"},
		{"/etc/hostname", "raw", "off", "", "trust=on"},
		{"/etc/hostname", "raw", "on", "raw", ""},
		{"json:{}", "raw", "on", "", "cannot choose a protocol"},
		{"base", "nbd", "on", "", "which is none"},
	} {
		env := bt.NewEnv(t)
		file := bt.Attach(t, env, bt.NewEmulator(t, bt.EmulatorConfig{}), "file")
		create := block.Values{"backing_file": c.name}
		if c.format != "" {
			create["backing_fmt"] = c.format
		}
		makeImage(t, env, file, 1<<20, create)
		below, readOnly, err := asked(t, env, file, block.Values{"trust": c.trust})
		switch {
		case c.refused != "":
			if below != nil || err == nil || !strings.Contains(err.Error(), c.refused) {
				t.Errorf("%s: opened %v, error %v; want %q", c.name, below, err, c.refused)
			}
		case !errors.Is(err, syscall.ENOENT) || below["driver"] != c.opened || !readOnly || !strings.HasSuffix(below["file.filename"], c.name):
			t.Errorf("%s: opened %v, read-only %v, error %v", c.name, below, readOnly, err)
		}
	}
}

// The user's own word is not judged, and nothing is what he may say.
func TestNoBackingFileIfTheUserSaysSo(t *testing.T) {
	env := bt.NewEnv(t)
	file := bt.Attach(t, env, bt.NewEmulator(t, bt.EmulatorConfig{}), "file")
	makeImage(t, env, file, 1<<20, block.Values{"backing_file": "/etc/hostname", "backing_fmt": "raw"})
	if below, _, err := asked(t, env, file, block.Values{"backing": ""}); below != nil || err != nil {
		t.Errorf("opened %v, error %v", below, err)
	}
}

// Caches: what sizes mean, and which do not go together.
func TestCacheSizes(t *testing.T) {
	for vals, ok := range map[string]bool{
		"l2-cache-size=1M": true, "cache-size=2M": true, "cache-size=2M,l2-cache-size=1M": true, "cache-size=1M,l2-cache-size=2M": false,
		"cache-size=4M,l2-cache-size=1M,refcount-cache-size=1M": false, "l2-cache-entry-size=1000": false, "l2-cache-entry-size=512": true, "l2-cache-size=1T": false,
	} {
		env := bt.NewEnv(t)
		_, file := newImage(t, env, 4<<20, block.Values{"cluster_size": "4K"}, nil)
		opts, err := block.ParseOptions(vals)
		if err != nil {
			t.Fatal(err)
		}
		opts["driver"] = "qcow2"
		in, err := bt.TryOpen(t, env, opts, map[string]*block.Instance{"file": file}, false)
		if (err == nil) != ok {
			t.Errorf("%s: %v", vals, err)
		}
		if err != nil {
			continue
		}
		c := bt.NewClient(t, bt.Edge(t, in))
		if err := c.Write(0, 0, bt.Pattern(make([]byte, 4<<20), 1)); err != nil {
			t.Error(err)
		}
		if n := nodeOf(in); n.cache.max < minSlices || n.refs.max < minCounts {
			t.Errorf("%s: %d slices, %d refcount blocks", vals, n.cache.max, n.refs.max)
		}
	}
}
