package image

import (
	"encoding/json"
	"testing"

	"github.com/platter-storage/platter/block"
)

func TestDoubleQuoted(t *testing.T) {
	for in, want := range map[string]string{
		`{'a': 'b'}`:    `{"a": "b"}`,
		`{"a": "it's"}`: `{"a": "it's"}`,
		`{'a': 'x"y'}`:  `{"a": "x\"y"}`,
		`{'a': 'x\'y'}`: `{"a": "x'y"}`,
		`{"a": "x\"y"}`: `{"a": "x\"y"}`,
		`{'a': '\\'}`:   `{"a": "\\"}`,
	} {
		got := doubleQuoted(in)
		if got != want || !json.Valid([]byte(got)) {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}

// Options that belong to the file go there, and never over what it has.
func TestLower(t *testing.T) {
	vals := block.Values{"driver": "qcow2", "cache.direct": "on", "aio": "native", "read-only": "on",
		"file.driver": "file", "file.filename": "a", "file.aio": "threads"}
	lower(vals)
	want := block.Values{"driver": "qcow2", "file.driver": "file", "file.filename": "a", "file.aio": "threads", "file.cache.direct": "on"}
	if vals.String() != want.String() {
		t.Errorf("%s, want %s", vals, want)
	}
}

func FuzzDoubleQuoted(f *testing.F) {
	f.Add(`{'a': 'b\'c"d'}`)
	f.Add(`"\`)
	f.Fuzz(func(t *testing.T, s string) {
		if json.Valid([]byte(s)) && doubleQuoted(s) != s && !json.Valid([]byte(doubleQuoted(s))) {
			t.Errorf("valid JSON %q becomes %q", s, doubleQuoted(s))
		}
		if n := len(doubleQuoted(s)); n > 2*len(s) {
			t.Errorf("%q has grown to %d bytes", s, n)
		}
	})
}
