package qcow2

import (
	"context"
	"encoding/binary"
	"slices"
	"strings"
	"syscall"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/policy"
)

// Bounds of the caches in bytes, where the user says nothing: L2 tables for the
// whole disk up to maxAutoL2, which covers 256 GiB with clusters of 64 KiB.
const (
	maxAutoL2    = 32 << 20
	minSlices    = 8
	minCounts    = 4
	autoCounts   = 4 << 20
	maxCacheSize = 8 << 30
)

var options = []block.Option{
	{Name: "file", Type: block.OptNode, Required: true, Help: "the image"},
	{Name: "backing", Type: block.OptNode, Help: "what shows where the image has nothing, instead of the backing file that it names; empty for nothing"},
	{Name: "data-file", Type: block.OptNode, Help: "the external data file, instead of the one that the image names"},
	{Name: "trust", Type: block.OptBool, Default: "off", Help: "open whatever files the image names, not only those in its folder"},
	{Name: "lazy-refcounts", Type: block.OptBool, Help: "accepted: refcounts are always written in order, at no cost"},
	{Name: "pass-discard-request", Type: block.OptBool, Default: "on", Help: "discards free space in the file"},
	{Name: "pass-discard-snapshot", Type: block.OptBool, Default: "on", Help: "so does what is no longer used after a copy or a deleted snapshot"},
	{Name: "pass-discard-other", Type: block.OptBool, Default: "off", Help: "so do tables that were replaced"},
	{Name: "discard-no-unref", Type: block.OptBool, Default: "off", Help: "discarded clusters keep their place in the file"},
	{Name: "l2-cache-size", Type: block.OptSize, Help: "bytes of L2 tables in memory (default: for the whole disk, at most 32M)"},
	{Name: "l2-cache-entry-size", Type: block.OptSize, Help: "bytes of an L2 table that are read at once: a power of two from 512 to the cluster size (default 4K)"},
	{Name: "refcount-cache-size", Type: block.OptSize, Help: "bytes of refcount blocks in memory (default: 4M, at least 4 clusters)"},
	{Name: "cache-size", Type: block.OptSize, Help: "bytes of both together"},
	{Name: "snapshot", Type: block.OptString, Help: "ID or name of an internal snapshot that is shown, read-only, instead of the disk"},
	{Name: "check", Type: block.OptBool, Default: "off", Help: "open the image, whatever is wrong with it, for a check or repair only"},
	{Name: "overlap-check", Type: block.OptEnum, Enum: []string{"none", "constant", "cached", "all"}, Default: "cached", Help: "none turns the guard off; the others all mean that it is on"},
}

func init() {
	block.Register(&block.Driver{
		Name: "qcow2", Kind: block.KindFormat, Doc: "images that grow, with backing files, snapshots and compression",
		Options: options, CreateOptions: createOptions, Open: open, Create: create, Probe: probe,
	})
}

// probe is certain of the magic with a version that there is.
func probe(head []byte, _ string) int {
	if len(head) < headerV2 || string(head[:4]) != "QFI\xfb" {
		return 0
	}
	if v := binary.BigEndian.Uint32(head[4:]); v < 2 {
		return 0
	}
	return 100
}

func open(ctx context.Context, a *block.OpenArgs) (block.Node, error) {
	n := &node{env: a.Env}
	n.opts.readOnly = a.ReadOnly
	perm, shared := block.PermRead, block.PermAll&^block.PermWrite&^block.PermResize
	if !a.ReadOnly {
		perm |= block.PermWrite | block.PermResize
		shared = block.PermRead
	}
	var err error
	if n.file, err = a.Child("file", block.RoleData, perm, shared); err != nil {
		return nil, err
	}
	if a.Options.Bool("check") {
		return openForCheck(a, n.file), nil
	}
	n.data = n.file
	below := n.file.Info()
	n.info = block.Info{Driver: "qcow2", Filename: below.Filename, ReadOnly: a.ReadOnly, MultiConn: true,
		WriteFlags: block.FUA, ZeroFlags: block.MayUnmap, Inline: false, Cached: below.Cached}
	q := block.NewQueue(a.Env, block.NewQueueGroup())
	rq := q.Begin()
	rq.SetContext(ctx)
	err = n.start(rq, a)
	q.End(rq, block.OpRead, 0, err)
	if err != nil {
		return nil, err
	}
	return n, nil
}

// start reads the image's metadata and opens the files that it needs.
func (n *node) start(rq *block.Req, a *block.OpenArgs) error {
	if err := n.takeOptions(a.Options); err != nil {
		return err
	}
	if err := n.reload(rq); err != nil {
		return err
	}
	if !n.info.ReadOnly {
		if err := n.mendOnOpen(rq); err != nil {
			return err
		}
	}
	if err := n.acceptable(); err != nil {
		return err
	}
	if err := n.openData(rq, a); err != nil {
		return err
	}
	if err := n.openBacking(rq, a); err != nil {
		return err
	}
	n.limits()
	n.info.Abilities.Mapper = n
	n.offer()
	n.info.Abilities.Cluster = n.clusterSize()
	n.info.Abilities.WriteCompressed = n.writeCompressed
	if n.info.ReadOnly {
		return nil
	}
	if err := n.firstWrite(rq); err != nil {
		return err
	}
	return n.openBitmaps(rq)
}

func (n *node) takeOptions(o *block.Options) error {
	n.opts.passRequest, n.opts.passSnapshot = o.Bool("pass-discard-request"), o.Bool("pass-discard-snapshot")
	n.opts.passOther, n.opts.keepUnmapped = o.Bool("pass-discard-other"), o.Bool("discard-no-unref")
	n.opts.noGuard = o.String("overlap-check") == "none"
	n.opts.snapshot = o.String("snapshot")
	if n.opts.snapshot != "" && !n.opts.readOnly {
		return block.Errorf(syscall.EROFS, "snapshot %q can only be read: open the image read-only", n.opts.snapshot)
	}
	n.opts.l2Bytes, n.opts.refBytes, n.opts.sliceBytes = o.Size("l2-cache-size"), o.Size("refcount-cache-size"), o.Size("l2-cache-entry-size")
	total := o.Size("cache-size")
	for _, x := range []int64{n.opts.l2Bytes, n.opts.refBytes, total} {
		if x > maxCacheSize {
			return block.Errorf(syscall.EINVAL, "a cache of %d bytes is more than the %d that are possible", x, int64(maxCacheSize))
		}
	}
	if total > 0 {
		if n.opts.l2Bytes+n.opts.refBytes > total || n.opts.l2Bytes > 0 && n.opts.refBytes > 0 {
			return block.Errorf(syscall.EINVAL, "cache-size=%d and both others: give two of the three, none above cache-size", total)
		}
		switch {
		case n.opts.l2Bytes > 0:
			n.opts.refBytes = total - n.opts.l2Bytes
		case n.opts.refBytes > 0:
			n.opts.l2Bytes = total - n.opts.refBytes
		default:
			n.opts.l2Bytes, n.opts.refBytes = total-total/4, total/4
		}
	}
	if s := n.opts.sliceBytes; s != 0 && (s < 512 || s&(s-1) != 0 || s > 2<<20) {
		return block.Errorf(syscall.EINVAL, "l2-cache-entry-size=%d: a power of two from 512 to the cluster size is needed", s)
	}
	if n.opts.sliceBytes == 0 {
		n.opts.sliceBytes = 4096
	}
	return nil
}

// reload reads header, L1 and refcount table from the file and forgets all that
// is in memory, which must be settled. No request is in flight.
func (n *node) reload(rq *block.Req) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	head := make([]byte, min(1<<21, n.file.Size()))
	if err := n.readFile(rq, 0, head); err != nil {
		return err
	}
	l, err := parseLayout(head)
	if err != nil {
		return block.Errorf(syscall.EINVAL, "%s: %v", n.info.Filename, err)
	}
	if n.opts.snapshot != "" {
		if l, err = (&editor{rq: rq, file: n.file, layout: l}).viewSnapshot(n.opts.snapshot); err != nil {
			return err
		}
	}
	n.layout = l
	n.zstd = l.version >= 3 && l.headerLen > headerV3 && head[headerV3] == 1
	if l.headerLen > headerV3 && (head[headerV3] > 1 || n.zstd != (l.incompat&featCompression != 0)) {
		return block.Errorf(syscall.EINVAL, "%s: the header's compression_type at byte %d is %d, which is none, or its feature bit disagrees", n.info.Filename, headerV3, head[headerV3])
	}
	if err := n.placesFit(); err != nil {
		return err
	}
	n.setGeometry()
	n.packed.forget()
	n.copies.init(n.clusterSize())
	n.guard, n.busy, n.packedAt = guard{}, nil, 0
	n.l1Dirty = map[int64]bool{}
	n.refs = refcounts{tableDirty: map[int64]bool{}, blocks: map[int64]*countBlock{}}
	n.fileEnd = n.clusters(n.file.Size()) << n.clusterBits
	n.sizeCaches()
	if err := n.loadTables(rq); err != nil {
		return err
	}
	n.info.SetSize(int64(n.size))
	n.durable.Store(n.changes.Load())
	return nil
}

// placesFit refuses tables that lie where no table can.
func (n *node) placesFit() error {
	need := n.clusters(int64(n.size)) * n.entryLen()
	need = n.clusters(need)
	for _, f := range []struct {
		bad  bool
		name string
		at   int
		n    uint64
	}{
		{int64(n.l1Entries) < need, "l1_size", atL1Size, uint64(n.l1Entries)},
		{n.l1Entries > 0 && (!n.aligned(n.l1Off) || n.l1Off == 0 || n.l1Off > maxHost || int64(n.l1Off) >= n.file.Size()), "l1_table_offset", atL1Offset, n.l1Off},
		{!n.aligned(n.tableOff) || n.tableOff == 0 || n.tableOff > maxHost || int64(n.tableOff) >= n.file.Size(), "refcount_table_offset", atTable, n.tableOff},
		{n.tableLen == 0, "refcount_table_clusters", 56, uint64(n.tableLen)},
		{n.crypt > 2, "crypt_method", 32, uint64(n.crypt)},
		{n.external() && n.version < 3, "incompatible_features", atFeatures, n.incompat},
	} {
		if f.bad {
			return block.Errorf(syscall.EINVAL, "%s: the header's %s at byte %d is %d, which does not go with the rest of it", n.info.Filename, f.name, f.at, f.n)
		}
	}
	return nil
}

func (n *node) sizeCaches() {
	l2 := n.opts.l2Bytes
	if l2 == 0 {
		l2 = min(n.clusters(int64(n.size))*n.entryLen()+n.clusterSize(), maxAutoL2)
	}
	n.cache.max = int(max(l2/n.cache.sliceBytes, minSlices))
	refs := n.opts.refBytes
	if refs == 0 {
		refs = autoCounts
	}
	n.refs.max = int(max(refs/n.clusterSize(), minCounts))
}

func (n *node) loadTables(rq *block.Req) error {
	var err error
	if n.l1, err = n.readEntries(rq, int64(n.l1Off), int64(n.l1Entries)); err != nil {
		return err
	}
	if n.opts.readOnly {
		return nil // nothing is allocated or written
	}
	if n.refs.table, err = n.readEntries(rq, int64(n.tableOff), int64(n.tableLen)<<n.clusterBits/8); err != nil {
		return err
	}
	if n.opts.noGuard {
		return nil
	}
	return n.guardTables(rq)
}

// readEntries reads a table of 8-byte entries, which the header's limits bound.
func (n *node) readEntries(rq *block.Req, off, count int64) ([]uint64, error) {
	t := make([]uint64, count)
	b := alignedBytes(min(count*8, 1<<20))
	for at := int64(0); at < count; {
		part := b[:min(int64(len(b)), (count-at)*8)]
		if off+at*8 >= n.file.Size() {
			break
		}
		if err := n.readFile(rq, off+at*8, part); err != nil {
			return nil, err
		}
		for ; len(part) > 0; part, at = part[8:], at+1 {
			t[at] = binary.BigEndian.Uint64(part)
		}
	}
	return t, nil
}

// acceptable refuses images that this driver cannot serve, or not for writing.
func (n *node) acceptable() error {
	name := n.info.Filename
	switch {
	case n.crypt != 0:
		return block.Errorf(syscall.ENOTSUP, "%s: it is encrypted (method %d), which is not supported yet: convert it with qemu-img", name, n.crypt)
	case n.info.ReadOnly:
		return nil
	case n.incompat&featCorrupt != 0:
		return block.Errorf(syscall.EROFS, "%s: it is marked corrupt: repair it (check -r all), or open it read-only to save what it shows", name)
	case n.incompat&featDirty != 0:
		return block.Errorf(syscall.EROFS, "%s: it was not closed and its refcounts may be wrong: repair it (check -r all), or open it read-only", name)
	}
	return nil
}

// firstWrite clears the autoclear bits that are not understood: what they
// describe will be out of date.
func (n *node) firstWrite(rq *block.Req) error {
	keep := n.autoclear & (featBitmaps | featRawData)
	if n.version < 3 || n.autoclear == keep {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.autoclear = keep
	return n.writeHeader(rq, atAutoclear, binary.BigEndian.AppendUint64(nil, keep))
}

// limits are those of the data file where clusters are as large, so that only
// our edge pads and copies.
func (n *node) limits() {
	l := *n.data.Limits()
	if int64(max(l.ReadAlign, l.WriteAlign)) > n.clusterSize() {
		l.ReadAlign, l.WriteAlign, l.SegmentAlign, l.MinMem = 1, 1, 1, 1
	}
	l.ZeroAlign, l.DiscardAlign = l.WriteAlign, uint32(n.clusterSize())
	l.MaxZero, l.MaxDiscard = 0, 0
	l.MaxTransfer = 0
	l.Generation++
	n.info.SetLimits(&l)
}

// described reports whether the user has given a node for an option: a name, or
// options.
func described(a *block.OpenArgs, name string) bool {
	return a.Options.Has(name) || a.Options.HasNested(name)
}

func (n *node) openData(rq *block.Req, a *block.OpenArgs) error {
	if !n.external() {
		return nil
	}
	perm, shared := n.file.Perm(), block.PermRead
	var err error
	if described(a, "data-file") {
		n.data, err = a.Child("data-file", block.RoleData, perm, shared)
		return err
	}
	name := string(n.extension(extDataFile))
	if name == "" || a.Below == nil {
		return block.Errorf(syscall.EINVAL, "%s: its data is in another file, whose name it does not have: give data-file.filename=…", n.info.Filename)
	}
	path, err := policy.Follow(n.info.Filename, name, "data-file", a.Options.Bool("trust"))
	if err != nil {
		return err
	}
	n.data, err = a.Below("data-file", fileValues("", path), a.ReadOnly, block.RoleData, perm, shared)
	return err
}

// fileValues describe a file of a format, or as it is.
func fileValues(format, path string) block.Values {
	if format == "" {
		return block.Values{"driver": "file", "filename": path}
	}
	return block.Values{"driver": format, "file.driver": "file", "file.filename": path}
}

func (n *node) openBacking(rq *block.Req, a *block.OpenArgs) error {
	var err error
	if described(a, "backing") {
		if a.Options.String("backing") == "" && !a.Options.HasNested("backing") {
			return nil // null: none is wanted
		}
		n.backing, err = a.Child("backing", block.RoleBacking, block.PermRead, block.PermRead|block.PermWriteUnchanged)
		return err
	}
	name, format, err := n.backingName(rq)
	if name == "" || err != nil {
		return err
	}
	if a.Below == nil {
		return block.Errorf(syscall.EINVAL, "%s: its backing file %q is not opened here: give backing=…", n.info.Filename, name)
	}
	path, err := policy.Follow(n.info.Filename, name, "backing", a.Options.Bool("trust"))
	if err != nil {
		return err
	}
	vals := fileValues(format, path)
	if format == "" {
		vals = block.Values{"file.driver": "file", "file.filename": path}
	}
	if a.Options.Bool("trust") && format == "qcow2" {
		vals["trust"] = "on"
	}
	n.backing, err = a.Below("backing", vals, true, block.RoleBacking, block.PermRead, block.PermRead|block.PermWriteUnchanged)
	return err
}

// knownFormats are those that an image may name for its backing file.
var knownFormats = []string{"qcow2", "raw", "luks", "vdi", "vmdk", "vhdx", "vpc", "qcow", "qed", "parallels"}

// backingName is what the header says of the backing file.
func (n *node) backingName(rq *block.Req) (name, format string, err error) {
	if n.backingOff == 0 || n.backingLen == 0 {
		return "", "", nil
	}
	if n.backingLen > policy.MaxName || n.backingOff > uint64(n.clusterSize()) || n.backingOff+uint64(n.backingLen) > uint64(max(n.clusterSize(), 4096)) {
		return "", "", block.Errorf(syscall.EINVAL, "%s: the header's backing_file_size at byte 16 is %d, or its offset %d is outside the first cluster", n.info.Filename, n.backingLen, n.backingOff)
	}
	b := make([]byte, n.backingLen)
	if err := n.readFile(rq, int64(n.backingOff), b); err != nil {
		return "", "", err
	}
	format = strings.ToLower(string(n.extension(extBackingFormat)))
	if format == "file" || format == "host_device" {
		format = "raw" // what the reference once wrote
	}
	if format != "" && !slices.Contains(knownFormats, format) {
		return "", "", block.Errorf(syscall.EINVAL, "%s: it names the backing format %q, which is none", n.info.Filename, format)
	}
	return string(b), format, nil
}
