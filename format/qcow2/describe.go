package qcow2

import "github.com/platter-storage/platter/block"

// describe is the ability Describe. What the header says is kept in memory, all
// but the name of the backing file and the bitmaps.
func (n *node) describe(rq *block.Req) (block.Description, error) {
	var d block.Description
	var err error
	if d.Backing, d.BackingFormat, err = n.backingName(rq); err != nil {
		return d, err
	}
	d.Dirty, d.Encrypted = n.incompat&featDirty != 0, n.crypt != 0
	add := func(name string, x any) { d.Fields = append(d.Fields, block.Field{Name: name, Value: x}) }
	kind := "zlib"
	if n.zstd {
		kind = "zstd"
	}
	if n.version < 3 {
		add("compat", "0.10")
		add("compression-type", kind)
		add("refcount-bits", 1<<n.order)
		return d, nil
	}
	add("compat", "1.1")
	add("compression-type", kind)
	add("lazy-refcounts", n.compat&featLazy != 0)
	add("refcount-bits", 1<<n.order)
	add("corrupt", n.incompat&featCorrupt != 0)
	add("extended-l2", n.incompat&featExtendedL2 != 0)
	if n.incompat&featDataFile != 0 {
		add("data-file", string(n.extension(extDataFile)))
		add("data-file-raw", n.autoclear&featRawData != 0)
	}
	list, err := n.listBitmaps(rq)
	if err != nil || len(list) == 0 {
		return d, err
	}
	add("bitmaps", bitmapFacts(list))
	return d, nil
}

// bitmapFact is a bitmap as a description shows it.
type bitmapFact struct {
	Flags       []string `json:"flags"`
	Name        string   `json:"name"`
	Granularity int64    `json:"granularity"`
}

func bitmapFacts(list []block.Bitmap) []bitmapFact {
	var out []bitmapFact
	for _, b := range list {
		f := bitmapFact{Flags: []string{}, Name: b.Name, Granularity: b.Granularity}
		if b.InUse {
			f.Flags = append(f.Flags, "in-use")
		}
		if b.Enabled {
			f.Flags = append(f.Flags, "auto")
		}
		out = append(out, f)
	}
	return out
}
