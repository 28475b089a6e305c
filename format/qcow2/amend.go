package qcow2

import (
	"encoding/binary"
	"syscall"

	"github.com/platter-storage/platter/block"
)

// amendOptions are what can be changed in an image that exists.
var amendOptions = []block.Option{
	{Name: "compat", Type: block.OptEnum, Enum: []string{"0.10", "1.1", "v2", "v3"}, Help: "version of the format: 0.10 (v2) or 1.1 (v3)"},
	{Name: "refcount_bits", Type: block.OptInt, Help: "width of a refcount: 1, 2, 4, 8, 16, 32 or 64 bits"},
	{Name: "lazy_refcounts", Type: block.OptBool, Help: "write refcounts late; a crash costs a repair with the next open"},
	{Name: "backing_file", Type: block.OptString, Help: "name of the backing file, as it is to stand in the image; empty for none"},
	{Name: "backing_fmt", Type: block.OptString, Help: "format of the backing file"},
	{Name: "data_file", Type: block.OptString, Help: "name of the external data file, as it is to stand in the image"},
	{Name: "data_file_raw", Type: block.OptBool, Help: "off: the external data file is not a raw image by itself any more"},
}

// amending is one amend: what is to be, and how far it is.
type amending struct {
	e       *editor
	o       *block.Options
	version uint32
	order   uint32
	tell    block.Progress
	done    int64
}

// amend changes the image to what vals say. Each change is made so that a power
// cut leaves the image with it or without it, and lost space at worst.
func (e *editor) amend(vals block.Values, tell block.Progress) error {
	o, err := (&block.Driver{Name: "qcow2", Options: amendOptions}).Check(vals)
	if err != nil {
		return err
	}
	a := &amending{e: e, o: o, version: e.version, order: e.order, tell: tell}
	switch o.String("compat") {
	case "0.10", "v2":
		a.version = 2
	case "1.1", "v3":
		a.version = 3
	}
	if err := a.check(); err != nil {
		return err
	}
	if err := e.alterable(); err != nil {
		return err
	}
	if err := a.upgrade(); err != nil {
		return err
	}
	if err := a.refcountBits(); err != nil {
		return err
	}
	if err := a.names(); err != nil {
		return err
	}
	return a.downgrade()
}

// check refuses what cannot be, before anything is changed.
func (a *amending) check() error {
	e, o := a.e, a.o
	if o.Has("refcount_bits") {
		a.order = 7
		for order := range uint32(7) {
			if o.Int("refcount_bits") == 1<<order {
				a.order = order
			}
		}
	}
	lazy := o.Bool("lazy_refcounts") || !o.Has("lazy_refcounts") && e.compat&featLazy != 0
	external := e.incompat&featDataFile != 0
	raw := e.autoclear&featRawData != 0
	for _, x := range []struct {
		bad  bool
		what string
	}{
		{a.order > 6, "refcount_bits is 1, 2, 4, 8, 16, 32 or 64"},
		{a.version < 3 && a.order != 4, "images of version 0.10 have refcounts of 16 bits: give refcount_bits=16 too"},
		{a.version < 3 && lazy, "images of version 0.10 have no lazy refcounts: give lazy_refcounts=off too"},
		{a.version < 3 && e.incompat&^(featDirty|featCorrupt) != 0, "images of version 0.10 have no external data file, no other compression and no extended L2 entries"},
		{a.version < 3 && e.autoclear&featBitmaps != 0, "images of version 0.10 have no bitmaps: remove them first"},
		{o.Has("data_file") && (!external || o.String("data_file") == ""), "whether the data is in a file of its own cannot be changed: convert the image"},
		{o.Bool("data_file_raw") && !raw, "data_file_raw cannot be set in an image that exists: convert the image"},
		{o.String("backing_file") != "" && raw && (!o.Has("data_file_raw") || o.Bool("data_file_raw")), "an image whose data file is raw has no backing file"},
		{len(o.String("backing_file")) > maxBackingName || len(o.String("data_file")) > maxBackingName, "the name of a file has at most 1023 bytes"},
		{len(o.String("backing_fmt")) > maxFormatName, "the name of a format has at most 63 bytes"},
	} {
		if x.bad {
			return block.Errorf(syscall.EINVAL, "%s: %s", e.file.Info().Filename, x.what)
		}
	}
	return nil
}

const maxFormatName = 63

// progress tells that one more table is done.
func (a *amending) progress(total int64) {
	a.done++
	if a.tell != nil {
		a.tell(a.done, max(total, a.done))
	}
}

// upgrade makes the image one of version 3, whose snapshots all have their
// disk's size.
func (a *amending) upgrade() error {
	e := a.e
	if a.version < 3 || e.version == 3 {
		return nil
	}
	all, oldLen, err := e.readSnapshots()
	if err != nil {
		return err
	}
	if len(all) > 0 {
		if err := e.storeSnapshots(all, oldLen, func() error { return nil }); err != nil {
			return err
		}
	}
	backing, err := e.backingName()
	if err != nil {
		return err
	}
	l := e.layout
	l.version, l.headerLen = 3, headerV3+8
	l.incompat, l.compat, l.autoclear, l.order = 0, 0, 0, 4
	return e.writeHead(l, backing)
}

// names changes what the header says in words and bits.
func (a *amending) names() error {
	e, o := a.e, a.o
	backing, err := e.backingName()
	if err != nil {
		return err
	}
	l := e.layout
	if o.Has("backing_file") {
		if backing = o.String("backing_file"); backing == "" {
			l.setExtension(extBackingFormat, nil)
		}
	}
	if o.Has("backing_fmt") && backing != "" {
		l.setExtension(extBackingFormat, nonEmpty(o.String("backing_fmt")))
	}
	if o.Has("data_file") {
		l.setExtension(extDataFile, []byte(o.String("data_file")))
	}
	if o.Has("data_file_raw") && !o.Bool("data_file_raw") {
		l.autoclear &^= featRawData
	}
	if o.Has("lazy_refcounts") && l.version == 3 {
		l.compat &^= featLazy
		if o.Bool("lazy_refcounts") {
			l.compat |= featLazy
		}
	}
	if !o.Has("backing_file") && !o.Has("backing_fmt") && !o.Has("data_file") && l.autoclear == e.autoclear && l.compat == e.compat {
		return nil
	}
	return e.writeHead(l, backing)
}

func nonEmpty(s string) []byte {
	if s == "" {
		return nil
	}
	return []byte(s)
}

// refcountBits writes all refcounts anew in the other width, and makes them the
// image's with one write to the header.
func (a *amending) refcountBits() error {
	e := a.e
	if a.order == e.order {
		return nil
	}
	for i, x := range e.table {
		if x != 0 && !e.usableBlock(x) {
			return block.Errorf(syscall.EIO, "entry %d of the refcount table is %#x, which is no cluster of the file: repair the image (check -r all)", i, x)
		}
	}
	w := *e
	w.order = a.order
	var need []int64
	err := e.eachRefcount(func(cluster int64, n uint64) error {
		if n > w.maxRefcount() {
			return block.Errorf(syscall.ERANGE, "the cluster at offset %d has a refcount of %d, more than %d bits can say", cluster<<e.clusterBits, n, 1<<a.order)
		}
		if i := cluster / w.perBlock(); len(need) == 0 || need[len(need)-1] != i {
			need = append(need, i)
		}
		return nil
	})
	if err != nil {
		return err
	}
	n, err := w.layRefcounts(nil, need, e.clusters(e.file.Size()))
	if err != nil {
		return err
	}
	last := int64(-1)
	err = e.eachRefcount(func(cluster int64, x uint64) error {
		if i := cluster / w.perBlock(); i != last {
			last = i
			a.progress(int64(len(need)))
		}
		return n.setRefcount(cluster, x)
	})
	if err != nil {
		return err
	}
	return a.switchWidth(n)
}

// switchWidth puts n's refcounts in the place of the old ones, which are freed.
func (a *amending) switchWidth(n *editor) error {
	e := a.e
	if err := n.write(int64(n.tableOff), tableBytes(n.table)); err != nil {
		return err
	}
	if err := n.sync(); err != nil {
		return err
	}
	backing, err := e.backingName()
	if err != nil {
		return err
	}
	old := *e
	l := e.layout
	l.tableOff, l.tableLen, l.order = n.tableOff, n.tableLen, n.order
	if err := e.writeHead(l, backing); err != nil {
		return err
	}
	e.table, e.blocks, e.free = n.table, n.blocks, 0
	for _, x := range old.table {
		if x != 0 {
			if err := e.give(x, e.clusterSize()); err != nil {
				return err
			}
		}
	}
	if err := e.give(old.tableOff, int64(old.tableLen)<<e.clusterBits); err != nil {
		return err
	}
	return e.sync()
}

// eachRefcount calls f for each cluster whose refcount is not 0, in order.
func (e *editor) eachRefcount(f func(cluster int64, n uint64) error) error {
	per := e.perBlock()
	for i, x := range e.table {
		if x == 0 || e.hole(int64(x), e.clusterSize()) {
			continue
		}
		for k := range per {
			c := int64(i)*per + k
			n, err := e.refcount(c)
			if err != nil {
				return err
			}
			if n == 0 {
				continue
			}
			if err := f(c, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// downgrade makes the image one of version 2, which has no clusters of zeroes:
// they become data, or nothing where nothing reads as zeroes too.
func (a *amending) downgrade() error {
	e := a.e
	if a.version == 3 || e.version == 2 {
		return nil
	}
	if err := a.sameSizes(); err != nil {
		return err
	}
	backing, err := e.backingName()
	if err != nil {
		return err
	}
	return e.within(func() error {
		if err := a.expandZeroes(backing != ""); err != nil {
			return err
		}
		if err := e.sync(); err != nil {
			return err
		}
		l := e.layout
		l.version, l.headerLen = 2, headerV2
		l.incompat, l.compat, l.autoclear = 0, 0, 0
		l.setExtension(extBitmaps, nil)
		l.setExtension(extFeatures, nil)
		return e.writeHead(l, backing)
	})
}

// sameSizes refuses snapshots of another size, which readers of version 2 do
// not expect.
func (a *amending) sameSizes() error {
	all, _, err := a.e.readSnapshots()
	if err != nil {
		return err
	}
	for _, s := range all {
		if s.diskSize != a.e.size {
			return block.Errorf(syscall.ENOTSUP, "snapshot %q is of a disk of %d bytes, and images of version 0.10 have one size", s.id, s.diskSize)
		}
	}
	return nil
}

// expandZeroes replaces clusters of zeroes in the tables of the disk and of all
// snapshots.
func (a *amending) expandZeroes(backed bool) error {
	c := &checker{e: a.e}
	if err := c.gather(); err != nil {
		return err
	}
	if c.lost > 0 || c.res.CheckErrors > 0 {
		return block.Errorf(syscall.EIO, "not all tables can be read: repair the image first (check -r all)")
	}
	b := make([]byte, a.e.clusterSize())
	for lo, done := uint64(0), false; !done; {
		set := newTableSet(lo, maxTableSet)
		for _, l := range c.l1s {
			if err := c.walkL1(l, set, false); err != nil {
				return err
			}
		}
		for _, off := range set.sorted() {
			if err := a.expandTable(int64(off), b, backed); err != nil {
				return err
			}
			a.progress(int64(len(set.times)))
		}
		lo, done = set.hi, set.hi == ^uint64(0)
	}
	return nil
}

// expandTable does one L2 table. New clusters are whole and counted before the
// table refers to them, old ones are freed after.
func (a *amending) expandTable(off int64, b []byte, backed bool) error {
	e := a.e
	if err := e.read(off, b); err != nil {
		return err
	}
	users, err := e.refcount(off >> e.clusterBits)
	if err != nil {
		return err
	}
	var old []uint64
	changed := false
	for at := int64(0); at < int64(len(b)); at += 8 {
		x := binary.BigEndian.Uint64(b[at:])
		if x&entryCompressed != 0 || x&entryZero == 0 {
			continue
		}
		y := uint64(0)
		if backed {
			if y, err = a.zeroCluster(users); err != nil {
				return err
			}
		}
		if x&entryOffset != 0 {
			old = append(old, x&entryOffset)
		}
		binary.BigEndian.PutUint64(b[at:], y)
		changed = true
	}
	if !changed {
		return nil
	}
	for _, f := range []func() error{e.sync, func() error { return e.write(off, b) }, e.sync} {
		if err := f(); err != nil {
			return err
		}
	}
	for _, x := range old {
		if err := e.addRefcounts(int64(x), e.clusterSize(), -int64(users)); err != nil {
			return err
		}
	}
	return nil
}

// zeroCluster makes a cluster of zeroes for an entry of a table that users
// share, and gives the entry.
func (a *amending) zeroCluster(users uint64) (uint64, error) {
	e := a.e
	off, err := e.place(make([]byte, e.clusterSize()))
	if err != nil || users == 1 {
		return off | entryCopied, err
	}
	return off, e.addRefcounts(int64(off), e.clusterSize(), int64(users)-1)
}
