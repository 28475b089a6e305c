package qcow2

import (
	"bytes"
	stream "io"
	"sync"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/zstd"

	"github.com/platter-storage/platter/internal/deflate"
)

// Compressed clusters are raw deflate streams with a window of 4 KiB, or zstd
// frames (section "Compressed Clusters Descriptor"; compression_type in the
// header). A stream may be followed by anything up to the end of its last sector.

// maxZstdWindow bounds the memory of a decoder in bytes: no frame of one cluster
// needs more than the largest cluster.
const maxZstdWindow = 8 << 20

// Coders are reused: each has some hundred KiB of state.
var (
	inflaters = sync.Pool{New: func() any { return flate.NewReader(bytes.NewReader(nil)) }}
	deflaters = sync.Pool{New: func() any { return new(deflate.Encoder) }}
	unzstds   = sync.Pool{New: func() any {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxZstdWindow), zstd.WithDecoderLowmem(true))
		if err != nil {
			panic("qcow2: zstd: " + err.Error())
		}
		return d
	}}
	zstds = sync.Pool{New: func() any {
		e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false))
		if err != nil {
			panic("qcow2: zstd: " + err.Error())
		}
		return e
	}}
)

// decode decompresses src, which may have more bytes than the stream, into
// exactly dst.
func (n *node) decode(dst, src []byte) error {
	if n.zstd {
		d := unzstds.Get().(*zstd.Decoder)
		defer unzstds.Put(d)
		if err := d.Reset(bytes.NewReader(src)); err != nil {
			return err
		}
		_, err := stream.ReadFull(d, dst)
		return err
	}
	r := inflaters.Get().(stream.ReadCloser)
	defer inflaters.Put(r)
	if err := r.(flate.Resetter).Reset(bytes.NewReader(src), nil); err != nil {
		return err
	}
	_, err := stream.ReadFull(r, dst)
	return err
}

// encode compresses src into dst and gives the length; ok is false where it does
// not fit.
func (n *node) encode(dst, src []byte) (length int, ok bool) {
	if n.zstd {
		e := zstds.Get().(*zstd.Encoder)
		defer zstds.Put(e)
		b := e.EncodeAll(src, dst[:0:len(dst)])
		return len(b), len(b) <= len(dst)
	}
	e := deflaters.Get().(*deflate.Encoder)
	defer deflaters.Put(e)
	return e.Encode(dst, src)
}
