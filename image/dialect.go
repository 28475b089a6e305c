package image

import (
	"strings"

	"github.com/platter-storage/platter/block"
)

// What scripts write that were made for the reference, in our terms.

// doubleQuoted is JSON whose strings are in single quotes, as the reference
// takes it, with double ones.
func doubleQuoted(s string) string {
	var b strings.Builder
	var in byte // the quote that ends the string that s[i] is in
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case in != 0 && c == '\\' && i+1 < len(s):
			i++
			if s[i] != '\'' {
				b.WriteByte(c)
			}
			c = s[i]
		case in == 0 && (c == '"' || c == '\''):
			in, c = c, '"'
		case in != 0 && c == in:
			in, c = 0, '"'
		case in == '\'' && c == '"':
			b.WriteByte('\\')
		}
		b.WriteByte(c)
	}
	return b.String()
}

// lowered are options of any node in the reference that here belong to the file
// at the bottom.
var lowered = []string{"cache.direct", "cache.no-flush", "aio", "locking"}

// lower moves them there, and drops what only says how Open was called.
func lower(vals block.Values) {
	delete(vals, "read-only")
	delete(vals, "auto-read-only")
	delete(vals, "force-share")
	prefix := ""
	for vals[prefix+"file.driver"] != "" {
		prefix += "file."
	}
	if d := vals[prefix+"driver"]; prefix == "" || d != "file" && d != "host_device" {
		return
	}
	for _, k := range lowered {
		x, has := vals[k]
		if !has {
			continue
		}
		if delete(vals, k); vals[prefix+k] == "" {
			vals[prefix+k] = x
		}
	}
}

// dashed gives options of storage that the reference writes with underscores
// the names that they have here.
func dashed(format string, vals block.Values) {
	f, err := block.FindDriver(format)
	if err != nil {
		return
	}
	for k, x := range vals {
		if name := strings.ReplaceAll(k, "_", "-"); name == "extent-size-hint" && !f.HasCreateOption(k) {
			delete(vals, k)
			vals[name] = x
		}
	}
}
