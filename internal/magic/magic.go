// Package magic recognises image formats by their first bytes: enough to refuse
// treating one as raw by accident. It interprets nothing.
package magic

import (
	"bytes"
	"encoding/binary"
)

// signatures are the marks at the beginning of image files, from each format's
// own description.
var signatures = []struct {
	format string
	off    int
	mark   []byte
}{
	{"qcow2", 0, []byte("QFI\xfb\x00\x00\x00\x02")},
	{"qcow2", 0, []byte("QFI\xfb\x00\x00\x00\x03")},
	{"qcow", 0, []byte("QFI\xfb\x00\x00\x00\x01")},
	{"qed", 0, []byte("QED\x00")},
	{"vmdk", 0, []byte("KDMV")},
	{"vmdk", 0, []byte("COWD")},
	{"vmdk", 0, []byte("# Disk DescriptorFile")},
	{"vhdx", 0, []byte("vhdxfile")},
	{"vpc", 0, []byte("conectix")},
	{"vdi", 64, []byte("\x7f\x10\xda\xbe")},
	{"luks", 0, []byte("LUKS\xba\xbe")},
	{"parallels", 0, []byte("WithoutFreeSpace")},
	{"parallels", 0, []byte("WithouFreSpacExt")},
	{"bochs", 0, []byte("Bochs Virtual HD Image\x00")},
	{"cloop", 0, []byte("#!/bin/sh\n#V2.0 Format")},
}

// Known reports whether format is one that Find can name.
func Known(format string) bool {
	for _, s := range signatures {
		if s.format == format {
			return true
		}
	}
	return false
}

// Find names the format that head begins like, or "".
func Find(head []byte) string {
	for _, s := range signatures {
		if len(head) >= s.off && bytes.HasPrefix(head[s.off:], s.mark) {
			return s.format
		}
	}
	if len(head) >= 8 && bytes.HasPrefix(head, []byte("QFI\xfb")) && binary.BigEndian.Uint32(head[4:]) > 3 {
		return "qcow2" // a later version
	}
	return ""
}
