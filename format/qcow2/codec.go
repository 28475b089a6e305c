package qcow2

import (
	"bytes"
	"compress/flate"
	goio "io"
	"sync"
	"syscall"

	"github.com/platter-storage/platter/block"
)

// inflaters are reused: one has about 40 KiB of state.
var inflaters = sync.Pool{New: func() any { return flate.NewReader(bytes.NewReader(nil)) }}

// decode decompresses src, which may have more bytes than the stream, into
// exactly dst.
func (n *node) decode(dst, src []byte) error {
	if n.zstd {
		return block.Errorf(syscall.ENOTSUP, "zstd is not supported yet")
	}
	r := inflaters.Get().(goio.Reader)
	defer inflaters.Put(r)
	if err := r.(flate.Resetter).Reset(bytes.NewReader(src), nil); err != nil {
		return err
	}
	_, err := goio.ReadFull(r, dst)
	return err
}
