package image

import (
	"syscall"

	"github.com/platter-storage/platter/block"
)

// Measure is how large the file of an image will be, in bytes.
type Measure struct {
	// Required is for the content as it is, FullyAllocated for any.
	Required       int64  `json:"required"`
	FullyAllocated int64  `json:"fully-allocated"`
	Bitmaps        *int64 `json:"bitmaps,omitempty"`
}

// MeasureSize is for an empty image of size bytes.
func MeasureSize(size int64, format string, o block.Values) (Measure, error) {
	return measure(size, format, o, func(int64, func(off, n int64)) error { return nil })
}

// MeasureImage is for a copy of im.
func MeasureImage(im *Image, format string, o block.Values) (Measure, error) {
	m, err := measure(im.Size(), format, o, func(_ int64, f func(off, n int64)) error {
		return im.Map(0, im.Size(), func(r Run) error {
			if !r.Zero && r.Data {
				f(r.Start, r.Length)
			}
			return nil
		})
	})
	if err == nil && format == "qcow2" && o["compat"] != "0.10" && o["compat"] != "v2" {
		m.Bitmaps, err = im.measureBitmaps(o)
	}
	return m, err
}

// measureBitmaps is what a copy of the image's dirty bitmaps takes: for each its
// bits and a table of their clusters, and the directory of all; nil where the
// image cannot have any.
func (im *Image) measureBitmaps(o block.Values) (*int64, error) {
	cluster := int64(64 << 10)
	if x := o["cluster_size"]; x != "" {
		n, err := block.ParseSize(x)
		if err != nil {
			return nil, err
		}
		cluster = n
	}
	up := func(n, by int64) int64 { return (n + by - 1) / by }
	var sum *int64
	err := im.exclusive(block.PermRead, func(rq *block.Req, a *block.Abilities) error {
		if a.Bitmaps == nil || a.Describe == nil {
			return nil
		}
		d, err := a.Describe(rq)
		if err != nil || len(d.Fields) == 0 || d.Fields[0].Value == "0.10" {
			return err
		}
		list, err := a.Bitmaps.List(rq)
		clusters, directory := int64(0), int64(0)
		for _, b := range list {
			bits := up(up(up(im.Size(), b.Granularity), 8), cluster)
			clusters += bits + up(bits*8, cluster)
			directory += (24 + int64(len(b.Name)) + 7) &^ 7
		}
		n := (clusters + up(directory, cluster)) * cluster
		sum = &n
		return err
	})
	return sum, err
}

func measure(size int64, format string, o block.Values, data func(cluster int64, f func(off, n int64)) error) (Measure, error) {
	switch format {
	case "", "raw":
		size = (size + 511) &^ 511
		return Measure{Required: size, FullyAllocated: size}, nil
	case "qcow2":
		return measureQcow2(size, o, data)
	}
	return Measure{}, block.Errorf(syscall.ENOTSUP, "the size of images of format %q is not known in advance", format)
}

// measureQcow2 adds up the clusters that the format's specification asks for:
// header, L1 and L2 tables, and refcounts of all of them and of the data.
func measureQcow2(size int64, o block.Values, data func(int64, func(off, n int64)) error) (Measure, error) {
	d, err := block.FindDriver("qcow2")
	if err != nil {
		return Measure{}, err
	}
	opts, err := d.CheckCreate(o)
	if err != nil {
		return Measure{}, err
	}
	cluster, bits := opts.Size("cluster_size"), opts.Int("refcount_bits")
	if cluster < 512 || cluster > 2<<20 || cluster&(cluster-1) != 0 || bits < 1 || bits > 64 {
		return Measure{}, block.Errorf(syscall.EINVAL, "clusters of %d bytes with refcounts of %d bits are not possible", cluster, bits)
	}
	entry := int64(8)
	if opts.Bool("extended_l2") {
		entry = 16
	}
	size = (size + 511) &^ 511
	up := func(n, by int64) int64 { return (n + by - 1) / by }
	clusters := up(size, cluster)
	l2 := up(clusters, cluster/entry)
	if l2 > (32<<20)/8 {
		return Measure{}, block.Errorf(syscall.EFBIG, "a disk of %d bytes is too large for clusters of %d bytes", size, cluster)
	}
	meta := 1 + l2 + up(l2*8, cluster)
	meta += refcountClusters(meta+clusters, cluster, bits)
	used := int64(0)
	next := int64(0) // the first cluster that is not counted yet
	err = data(cluster, func(off, n int64) {
		first, end := max(off/cluster, next), up(off+n, cluster)
		if end > first {
			used, next = used+end-first, end
		}
	})
	switch opts.String("preallocation") {
	case "falloc", "full":
		used = clusters
	}
	full := meta*cluster + size
	return Measure{Required: min(meta*cluster+used*cluster, full), FullyAllocated: full}, err
}

// refcountClusters is how many clusters refcount blocks and their table take,
// for n other clusters and for themselves.
func refcountClusters(n, cluster, bits int64) int64 {
	perBlock := cluster * 8 / bits
	total, table, blocks := n, int64(0), int64(0)
	for {
		blocks = (total + perBlock - 1) / perBlock
		table = (blocks*8 + cluster - 1) / cluster
		if n+blocks+table == total {
			return blocks + table
		}
		total = n + blocks + table
	}
}
