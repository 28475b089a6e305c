package file

import (
	"log/slog"
	"net/url"
	"strings"
	"syscall"

	"github.com/platter-storage/platter/block"
)

// cacheModes are the values of the option cache, by what they mean.
var cacheModes = map[string]struct {
	direct  bool // O_DIRECT
	sync    bool // each write is durable when it completes
	noFlush bool // nothing is ever made durable on purpose
}{
	"none":         {direct: true},
	"writeback":    {},
	"writethrough": {sync: true},
	"directsync":   {direct: true, sync: true},
	"unsafe":       {noFlush: true},
}

// Options of opening. Defaults are the reference tools', but for discard,
// which edges gate.
var openOptions = []block.Option{
	{Name: "filename", Type: block.OptString, Required: true, Help: "path of the file or block device"},
	{Name: "cache", Type: block.OptEnum, Default: "writeback", Enum: []string{"auto", "none", "writeback", "writethrough", "directsync", "unsafe"},
		Help: "auto: direct I/O where the file takes it and its alignment is known, else writeback; none: direct I/O; writeback: page cache; writethrough, directsync: each write durable; unsafe: flush does nothing"},
	{Name: "cache.direct", Type: block.OptBool, Help: "direct I/O, whatever cache says"},
	{Name: "cache.no-flush", Type: block.OptBool, Help: "flush does nothing, whatever cache says: data is lost if the host fails"},
	{Name: "aio", Type: block.OptEnum, Default: "auto", Enum: []string{"auto", "io_uring", "native", "threads"},
		Help: "how requests reach the kernel; auto takes the best that works here"},
	{Name: "locking", Type: block.OptEnum, Default: "auto", Enum: []string{"auto", "on", "off"},
		Help: "keep other programs from writing the file meanwhile; auto: where the file system can"},
	{Name: "discard", Type: block.OptEnum, Default: "unmap", Enum: []string{"unmap", "ignore"},
		Help: "give space back on discard, or keep it"},
	{Name: "fallback", Type: block.OptEnum, Default: "error", Enum: []string{"error", "buffered"},
		Help: "where direct I/O was asked for and cannot be had: fail, or use the page cache"},
	{Name: "linearise", Type: block.OptEnum, Default: "auto", Enum: []string{"auto", "always", "never"},
		Help: "direct I/O of several pieces of memory through one buffer; auto: where that is measured to be faster (NFS, mostly)"},
	{Name: "request-align", Type: block.OptSize, Help: "alignment of offsets and lengths in direct I/O, instead of finding it; for odd storage and tests"},
	{Name: "mem-align", Type: block.OptSize, Help: "alignment of memory addresses in direct I/O, instead of finding it"},
	{Name: "segment-align", Type: block.OptSize, Help: "alignment of the length of each element in direct I/O, instead of finding it"},
}

// Options of creating.
var createOptions = []block.Option{
	{Name: "filename", Type: block.OptString, Required: true, Help: "path of the new file"},
	{Name: "preallocation", Type: block.OptEnum, Default: "off", Enum: []string{"off", "falloc", "full"},
		Help: "off: space as it is written; falloc: reserved at once; full: written with zeroes"},
	{Name: "overwrite", Type: block.OptBool, Default: "off", Help: "empty a file that is there already, instead of refusing"},
	{Name: "extent-size-hint", Type: block.OptSize, Default: "1M", Help: "size of the pieces in which XFS allocates; 0: its own choice"},
	{Name: "nocow", Type: block.OptBool, Default: "off", Help: "no copy on write (btrfs): no checksums, less fragmentation"},
	{Name: "locking", Type: block.OptEnum, Default: "auto", Enum: []string{"auto", "on", "off"}, Help: "as for opening"},
}

// config is what the options mean.
type config struct {
	path     string
	readOnly bool
	// mustBeDevice: opened as host_device.
	mustBeDevice bool

	cacheName string
	// auto: direct if possible. Otherwise direct says what was asked for.
	auto, direct bool
	sync         bool
	noFlush      bool
	aio          string
	locking      string
	linearise    string
	discard      bool
	fallback     bool
	forced       forced
	log          *slog.Logger // nil: nobody listens
}

// parseOptions reads checked options.
func parseOptions(o *block.Options, readOnly bool) (config, error) {
	c := config{path: o.String("filename"), readOnly: readOnly, cacheName: o.String("cache"), aio: o.String("aio"), locking: o.String("locking"), linearise: o.String("linearise"),
		discard: o.String("discard") == "unmap", fallback: o.String("fallback") == "buffered"}
	mode := cacheModes[c.cacheName]
	c.auto, c.direct, c.sync, c.noFlush = c.cacheName == "auto", mode.direct, mode.sync, mode.noFlush
	if o.Has("cache.direct") {
		c.auto, c.direct = false, o.Bool("cache.direct")
	}
	if o.Has("cache.no-flush") {
		c.noFlush = o.Bool("cache.no-flush")
	}
	if c.path == "" || strings.ContainsRune(c.path, 0) {
		return c, block.Errorf(syscall.EINVAL, "the file name %q is not possible: filename=PATH", c.path)
	}
	for _, a := range []struct {
		name string
		to   *uint32
	}{{"request-align", &c.forced.request}, {"mem-align", &c.forced.mem}, {"segment-align", &c.forced.segment}} {
		if !o.Has(a.name) {
			continue
		}
		n := o.Size(a.name)
		if n < 1 || n > block.MaxAlign || n&(n-1) != 0 {
			return c, block.Errorf(syscall.EINVAL, "%s: %s=%d is not possible: a power of two from 1 to %d", c.path, a.name, n, block.MaxAlign)
		}
		*a.to = uint32(n)
	}
	return c, nil
}

// parseURI reads file:PATH, where PATH is taken as it stands, and
// file:///PATH, which is a URI and may have %-escapes.
func parseURI(uri string) (block.Values, error) {
	path := strings.TrimPrefix(uri, "file:")
	if strings.HasPrefix(path, "//") {
		u, err := url.Parse(uri)
		if err != nil || u.Host != "" && u.Host != "localhost" || u.Path == "" {
			return nil, block.Errorf(syscall.EINVAL, "%q does not name a local file: write file:///path, file:path, or the path alone", uri)
		}
		path = u.Path
	}
	return block.Values{"filename": path}, nil
}
