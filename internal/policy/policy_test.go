package policy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What an image in one folder may name, with and without trust.
func TestFollow(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(outside, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	image := filepath.Join(dir, "a.qcow2")
	for _, c := range []struct {
		name        string
		safe, trust bool
	}{
		{"base.qcow2", true, true},
		{"sub/base.qcow2", true, true},
		{"file:base.qcow2", true, true},
		{"./a:b", true, true},
		{filepath.Join(dir, "base"), true, true},
		{"..base", true, true},
		{"../base", false, true},
		{"sub/../../base", false, true},
		{outside, false, true},
		{"link", false, true},
		{"json:{}", false, false},
		{"nbd://host/x", false, false},
		{"", false, false},
		{"a\x00b", false, false},
		{strings.Repeat("a", MaxName+1), false, false},
	} {
		for trust, want := range map[bool]bool{false: c.safe, true: c.trust} {
			p, err := Follow(image, c.name, "backing", trust)
			if (err == nil) != want || want && !filepath.IsAbs(p) {
				t.Errorf("%q, trust %v: %q, %v", c.name, trust, p, err)
			}
		}
	}
}
