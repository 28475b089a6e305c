package guest

import (
	"bufio"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
)

// archive writes an initial RAM disk: a cpio archive in the "newc" form, as
// the kernel's Documentation/driver-api/early-userspace/buffer-format.rst has
// it. Several archives one after another are one RAM disk. It is not
// compressed, because an emulated processor takes longer to unpack it than
// the host takes to read it.
type archive struct {
	w    *bufio.Writer
	err  error
	ino  uint32
	pos  int64
	seen map[string]bool
}

func newArchive(w io.Writer) *archive {
	return &archive{w: bufio.NewWriterSize(w, 1<<20), seen: make(map[string]bool)}
}

// add writes one entry and, before it, the folders above it that are not there
// yet. The name is relative. What was added before is not added again.
func (a *archive) add(name string, mode uint32, data []byte) {
	name = path.Clean(name)
	if a.seen[name] {
		return
	}
	if dir := path.Dir(name); dir != "." {
		a.dir(dir)
	}
	a.seen[name] = true
	a.entry(name, mode, data)
}

func (a *archive) dir(name string)                           { a.add(name, 0o40755, nil) }
func (a *archive) link(name, to string)                      { a.add(name, 0o120777, []byte(to)) }
func (a *archive) text(name, content string)                 { a.add(name, 0o100644, []byte(content)) }
func (a *archive) file(name string, p fs.FileMode, d []byte) { a.add(name, 0o100000|uint32(p), d) }

func (a *archive) entry(name string, mode uint32, data []byte) {
	a.ino++
	fields := []uint32{
		a.ino, mode, 0, 0, 1, 0, uint32(len(data)), 0, 0, 0, 0, uint32(len(name) + 1), 0,
	}
	var head strings.Builder
	head.WriteString("070701")
	for _, f := range fields {
		fmt.Fprintf(&head, "%08X", f)
	}
	a.write([]byte(head.String() + name + "\x00"))
	a.pad()
	a.write(data)
	a.pad()
}

func (a *archive) pad() {
	if n := a.pos % 4; n != 0 {
		a.write(make([]byte, 4-n))
	}
}

func (a *archive) write(p []byte) {
	if a.err != nil {
		return
	}
	_, a.err = a.w.Write(p)
	a.pos += int64(len(p))
}

// close writes the trailer.
func (a *archive) close() error {
	a.entry("TRAILER!!!", 0, nil)
	if a.err != nil {
		return a.err
	}
	return a.w.Flush()
}
