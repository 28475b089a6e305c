package qcow2

import (
	"context"
	"encoding/binary"
	"strings"
	"syscall"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/policy"
)

var createOptions = []block.Option{
	{Name: "compat", Type: block.OptEnum, Enum: []string{"0.10", "1.1", "v2", "v3"}, Default: "1.1", Help: "version 2 (0.10) or 3 (1.1)"},
	{Name: "cluster_size", Type: block.OptSize, Default: "64K", Help: "bytes that are allocated at once: a power of two from 512 to 2M"},
	{Name: "refcount_bits", Type: block.OptInt, Default: "16", Help: "width of refcounts: 1, 2, 4, 8, 16, 32 or 64"},
	{Name: "lazy_refcounts", Type: block.OptBool, Default: "off", Help: "others may leave refcounts for a repair to mend"},
	{Name: "extended_l2", Type: block.OptBool, Default: "off", Help: "32 subclusters in each cluster, allocated apart"},
	{Name: "preallocation", Type: block.OptEnum, Enum: []string{"off", "metadata", "falloc", "full"}, Default: "off", Help: "what is allocated from the beginning"},
	{Name: "backing_file", Type: block.OptString, Help: "the name of the file to show where the image has nothing, relative to the image"},
	{Name: "backing_fmt", Type: block.OptString, Help: "its format"},
	{Name: "data_file", Type: block.OptString, Help: "the name of the file that the disk's data goes to, relative to the image"},
	{Name: "data_file_raw", Type: block.OptBool, Default: "off", Help: "the data file is the disk as it is"},
	{Name: "compression_type", Type: block.OptEnum, Enum: []string{"zlib", "zstd"}, Default: "zlib", Help: "of compressed clusters"},
}

// plan is what the options of creating mean.
type plan struct {
	layout
	pre                                block.Prealloc
	backing, backingFormat, dataFile   string
	zstd                               bool
	tableClusters, counts, l1Clusters  int64
	l1At, countsAt, tableAt, endOfMeta int64 // in clusters
}

// create makes an empty image in a.File.
func create(ctx context.Context, a *block.CreateArgs) error {
	p, err := planOf(a.Options, a.Size)
	if err != nil {
		return err
	}
	head, err := p.header()
	if err != nil {
		return err
	}
	p.place()
	q := block.NewQueue(a.Env, block.NewQueueGroup())
	rq := q.Begin()
	rq.SetContext(ctx)
	err = p.write(rq, a.File, head)
	if err == nil && (p.pre != block.PreallocOff || p.autoclear&featRawData != 0) {
		err = p.fill(rq, a)
	}
	q.End(rq, block.OpTruncate, a.Size, err)
	return err
}

func planOf(o *block.Options, size int64) (*plan, error) {
	p := &plan{backing: o.String("backing_file"), backingFormat: o.String("backing_fmt"), dataFile: o.String("data_file")}
	p.version, p.size, p.headerLen = 3, uint64(size), 112
	if c := o.String("compat"); c == "0.10" || c == "v2" {
		p.version, p.headerLen = 2, headerV2
	}
	cluster, width := o.Size("cluster_size"), o.Int("refcount_bits")
	if cluster < 512 || cluster > 2<<20 || cluster&(cluster-1) != 0 {
		return nil, block.Errorf(syscall.EINVAL, "cluster_size=%d: a power of two from 512 to 2M is needed", cluster)
	}
	if width < 1 || width > 64 || width&(width-1) != 0 {
		return nil, block.Errorf(syscall.EINVAL, "refcount_bits=%d: 1, 2, 4, 8, 16, 32 or 64 is needed", width)
	}
	for p.clusterBits = 9; p.clusterSize() < cluster; p.clusterBits++ {
	}
	for p.order = 0; 1<<p.order < width; p.order++ {
	}
	p.pre, _ = block.ParsePrealloc(o.String("preallocation"))
	if o.Bool("lazy_refcounts") {
		p.compat |= featLazy
	}
	if o.Bool("extended_l2") {
		p.incompat |= featExtendedL2
	}
	if o.String("compression_type") == "zstd" {
		p.zstd, p.incompat = true, p.incompat|featCompression
	}
	if p.dataFile != "" {
		p.incompat |= featDataFile
	}
	if o.Bool("data_file_raw") {
		p.autoclear |= featRawData
	}
	return p, p.agree()
}

// agree refuses what does not go together.
func (p *plan) agree() error {
	entries := (int64(p.size) + p.l2Span() - 1) / p.l2Span()
	for _, f := range []struct {
		bad bool
		why string
	}{
		{p.version == 2 && (p.incompat|p.compat|p.autoclear != 0 || p.order != 4), "compat=0.10 has neither lazy_refcounts, extended_l2, data_file, compression_type nor refcount_bits other than 16: use compat=1.1"},
		{p.incompat&featExtendedL2 != 0 && p.clusterBits < 14, "extended_l2=on needs a cluster_size of at least 16K"},
		{p.autoclear&featRawData != 0 && p.dataFile == "", "data_file_raw=on needs data_file"},
		{p.autoclear&featRawData != 0 && p.backing != "", "a raw data file shows all of the disk, which leaves nothing for a backing file: drop data_file_raw or backing_file"},
		{p.backing == "" && p.backingFormat != "", "backing_fmt needs backing_file"},
		{len(p.backing) > policy.MaxName || len(p.dataFile) > policy.MaxName, "names of files in an image have at most 1023 bytes"},
		{strings.ContainsRune(p.backing+p.dataFile, 0), "names of files have no zero bytes"},
		{p.backing != "" && p.pre != block.PreallocOff && p.incompat&featExtendedL2 == 0, "preallocated clusters would hide the backing file: this needs extended_l2=on"},
		{p.size > block.MaxSize || entries*8 > maxL1Bytes, "the disk is larger than its L1 table can say: use larger clusters"},
	} {
		if f.bad {
			return block.Errorf(syscall.EINVAL, "%s", f.why)
		}
	}
	p.l1Entries = uint32(max(entries, 1))
	return nil
}

// place lays the metadata out: header, refcount table, refcount blocks, L1 table.
// The refcount table is long enough for the whole disk, so that it need not
// grow later, and the blocks for what there is now.
func (p *plan) place() {
	p.l1Clusters = p.clusters(int64(p.l1Entries) * 8)
	disk := p.clusters(int64(p.size))
	if p.incompat&featDataFile != 0 {
		disk = 0
	}
	tables := p.clusters(disk * p.entryLen())
	entries := (disk+tables+p.l1Clusters)/p.perBlock()*9/8 + 2
	p.tableClusters = min(p.clusters(entries*8), maxTableBytes>>p.clusterBits)
	p.counts = 1
	for {
		total := 1 + p.tableClusters + p.counts + p.l1Clusters
		need := (total + p.perBlock() - 1) / p.perBlock()
		p.tableClusters = max(p.tableClusters, p.clusters(need*8))
		if need <= p.counts && total == 1+p.tableClusters+p.counts+p.l1Clusters {
			break
		}
		p.counts = max(need, p.counts)
	}
	p.tableAt = 1
	p.countsAt = p.tableAt + p.tableClusters
	p.l1At = p.countsAt + p.counts
	p.endOfMeta = p.l1At + p.l1Clusters
	p.tableOff, p.tableLen = uint64(p.tableAt)<<p.clusterBits, uint32(p.tableClusters)
	p.l1Off = uint64(p.l1At) << p.clusterBits
}

// write writes the tables, and the header last.
func (p *plan) write(rq *block.Req, file *block.Child, head []byte) error {
	if err := file.Truncate(rq, 0, block.PreallocOff); err != nil && !block.IsNotSupported(err) {
		return err
	}
	end := p.endOfMeta << p.clusterBits
	if file.Size() < end {
		if err := file.Truncate(rq, end, block.PreallocOff); err != nil {
			return err
		}
	} else if err := file.WriteZeroes(rq, 0, end, block.MayUnmap); err != nil {
		return err
	}
	table := make([]byte, 0, p.counts*8)
	for i := range p.counts {
		table = binary.BigEndian.AppendUint64(table, uint64(p.countsAt+i)<<p.clusterBits)
		b := alignedBytes(p.clusterSize())
		for c := range min(p.perBlock(), p.endOfMeta-i*p.perBlock()) {
			setRefAt(b, p.order, c, 1)
		}
		if err := file.Pwritev(rq, (p.countsAt+i)<<p.clusterBits, block.Vec{b}, 0); err != nil {
			return err
		}
	}
	if err := file.Pwritev(rq, int64(p.tableOff), block.Vec{table}, 0); err != nil {
		return err
	}
	if err := file.Flush(rq); err != nil {
		return err
	}
	binary.BigEndian.PutUint64(head[atL1Offset:], p.l1Off)
	binary.BigEndian.PutUint64(head[atTable:], p.tableOff)
	binary.BigEndian.PutUint32(head[56:], p.tableLen)
	if err := file.Pwritev(rq, 0, block.Vec{head}, 0); err != nil {
		return err
	}
	return file.Flush(rq)
}

// header is the first cluster, less what place decides.
func (p *plan) header() ([]byte, error) {
	b := make([]byte, p.headerLen, p.clusterSize())
	copy(b, "QFI\xfb")
	binary.BigEndian.PutUint32(b[atVersion:], p.version)
	binary.BigEndian.PutUint32(b[20:], p.clusterBits)
	binary.BigEndian.PutUint64(b[atSize:], p.size)
	binary.BigEndian.PutUint32(b[atL1Size:], p.l1Entries)
	if p.version >= 3 {
		binary.BigEndian.PutUint64(b[atFeatures:], p.incompat)
		binary.BigEndian.PutUint64(b[80:], p.compat)
		binary.BigEndian.PutUint64(b[atAutoclear:], p.autoclear)
		binary.BigEndian.PutUint32(b[atOrder:], p.order)
		binary.BigEndian.PutUint32(b[100:], p.headerLen)
		if p.zstd {
			b[headerV3] = 1
		}
	}
	if p.backingFormat != "" {
		b = appendExtension(b, extBackingFormat, []byte(p.backingFormat))
	}
	if p.dataFile != "" {
		b = appendExtension(b, extDataFile, []byte(p.dataFile))
	}
	names := featureNames()
	if p.version >= 3 && int64(len(b)+8+len(names)+8+len(p.backing)) <= p.clusterSize() {
		b = appendExtension(b, extFeatures, names)
	}
	b = append(b, make([]byte, 8)...)
	if int64(len(b)+len(p.backing)) > p.clusterSize() {
		return nil, block.Errorf(syscall.EINVAL, "the names of files do not fit the header, which is one cluster of %d bytes: use larger clusters or shorter names", p.clusterSize())
	}
	if p.backing != "" {
		binary.BigEndian.PutUint64(b[atBacking:], uint64(len(b)))
		binary.BigEndian.PutUint32(b[16:], uint32(len(p.backing)))
		b = append(b, p.backing...)
	}
	return b[:cap(b)], nil
}

func appendExtension(b []byte, kind uint32, data []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, kind)
	b = binary.BigEndian.AppendUint32(b, uint32(len(data)))
	b = append(b, data...)
	for len(b)%8 != 0 {
		b = append(b, 0)
	}
	return b
}

// features are the names of the feature bits (section "Feature name table").
var features = []struct {
	kind, bit byte
	name      string
}{
	{0, 0, "dirty bit"}, {0, 1, "corrupt bit"}, {0, 2, "external data file"}, {0, 3, "compression type"}, {0, 4, "extended L2 entries"},
	{1, 0, "lazy refcounts"}, {2, 0, "bitmaps"}, {2, 1, "raw external data"},
}

func featureNames() []byte {
	b := make([]byte, 0, 48*len(features))
	for _, f := range features {
		entry := make([]byte, 48)
		entry[0], entry[1] = f.kind, f.bit
		copy(entry[2:], f.name)
		b = append(b, entry...)
	}
	return b
}

// fill preallocates: the image that was made is opened for that.
func (p *plan) fill(rq *block.Req, a *block.CreateArgs) error {
	n := &node{env: a.Env, file: a.File, data: a.File}
	n.info = block.Info{Driver: "qcow2", Filename: a.File.Info().Filename}
	n.opts.sliceBytes = 4096
	if err := n.reload(rq); err != nil {
		return err
	}
	pre := p.pre
	if n.external() {
		pre = block.PreallocMetadata // the data file is its own creator's
	}
	if n.size > 0 {
		if err := n.preallocate(rq, 0, int64(n.size), pre); err != nil {
			return err
		}
	}
	return n.shut(rq)
}
