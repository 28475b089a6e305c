package deflate

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os/exec"
	"testing"
)

// zlib, told of a window of 4 KiB, decompresses every stream to what it was made
// of: nothing refers further back.
func TestReference(t *testing.T) {
	const script = `
import struct, sys, zlib
b, at, n = sys.stdin.buffer.read(), 0, 0
while at < len(b):
    m, k = struct.unpack_from("<II", b, at)
    src, packed = b[at+8:at+8+m], b[at+8+m:at+8+m+k]
    at += 8 + m + k
    d = zlib.decompressobj(-12)
    if d.decompress(packed) + d.flush() != src or not d.eof or d.unused_data:
        sys.exit("stream %d of %d bytes is not that of its %d" % (n, k, m))
    n += 1
print(n)
`
	var e Encoder
	var all, out, errs bytes.Buffer
	dst := make([]byte, MaxInput+1<<10)
	in := inputs(t)
	for name, src := range in {
		n, ok := e.Encode(dst, src)
		if !ok {
			t.Fatalf("%s: it does not fit", name)
		}
		all.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(src))))
		all.Write(binary.LittleEndian.AppendUint32(nil, uint32(n)))
		all.Write(src)
		all.Write(dst[:n])
	}
	cmd := exec.Command("python3", "-c", script)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = &all, &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("python3: %v: %s", err, errs.String())
	}
	if got := out.String(); got != fmt.Sprintln(len(in)) {
		t.Errorf("it saw %q streams of %d", got, len(in))
	}
}
