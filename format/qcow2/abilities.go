package qcow2

import (
	"errors"
	"syscall"

	"github.com/platter-storage/platter/block"
)

// offer lists what can be done with an image beside reading and writing. All of
// it runs on the file itself while the node is drained: what is in memory is
// settled first, and read anew after.
func (n *node) offer() {
	a := &n.info.Abilities
	a.Check = n.check
	a.Describe = n.describe
	a.Snapshots = &block.SnapshotAbility{
		List: func(rq *block.Req) (list []block.Snapshot, err error) {
			err = n.lookInto(rq, func(e *editor) error { list, err = e.listSnapshots(); return err })
			return list, err
		},
		Create: func(rq *block.Req, s block.Snapshot) (made block.Snapshot, err error) {
			err = n.alter(rq, func(e *editor) error { made, err = e.createSnapshot(s); return err })
			return made, err
		},
		Apply: func(rq *block.Req, find string) error {
			return n.alter(rq, func(e *editor) error { return e.applySnapshot(find) })
		},
		Delete: func(rq *block.Req, find string) error {
			return n.alter(rq, func(e *editor) error { return e.deleteSnapshot(find) })
		},
	}
	a.Bitmaps = n.bitmapAbility()
	a.Amend = &block.AmendAbility{
		Options: amendOptions,
		Amend: func(rq *block.Req, vals block.Values, p block.Progress) error {
			return n.alter(rq, func(e *editor) error { return e.amend(vals, p) })
		},
	}
}

func (n *node) bitmapAbility() *block.BitmapAbility {
	named := func(f func(e *editor, name string) error) func(rq *block.Req, name string) error {
		return func(rq *block.Req, name string) error {
			return n.alter(rq, func(e *editor) error { return f(e, name) })
		}
	}
	return &block.BitmapAbility{
		List: n.listBitmaps,
		Add: func(rq *block.Req, b block.Bitmap) error {
			return n.alter(rq, func(e *editor) error { return e.addBitmap(b) })
		},
		Remove:  named((*editor).removeBitmap),
		Clear:   named((*editor).clearBitmap),
		Enable:  named(func(e *editor, name string) error { return e.enableBitmap(name, true) }),
		Disable: named(func(e *editor, name string) error { return e.enableBitmap(name, false) }),
		Merge: func(rq *block.Req, name string, each block.DirtyRuns) error {
			return n.alter(rq, func(e *editor) error { return e.mergeBitmap(name, each) })
		},
		Runs: n.bitmapRuns,
	}
}

// lookInto runs f on what the file has, all that is in memory being settled.
func (n *node) lookInto(rq *block.Req, f func(e *editor) error) error {
	if n.broken.Load() == nil {
		if err := n.settle(rq); err != nil {
			return err
		}
	}
	e, err := edit(rq, n.file)
	if err != nil {
		return err
	}
	return f(e)
}

// alter runs f, which changes the file, and then reads anew what it changed.
// Bitmaps are stored before and tracked again after.
func (n *node) alter(rq *block.Req, f func(e *editor) error) error {
	if err := n.writable(); err != nil {
		return err
	}
	if n.opts.snapshot != "" {
		return block.Errorf(syscall.EROFS, "a snapshot is not changed: open the image without the option snapshot")
	}
	if err := n.settle(rq); err != nil {
		return err
	}
	if err := n.closeBitmaps(rq); err != nil {
		return err
	}
	err := n.lookInto(rq, f)
	if again := n.resume(rq); again != nil {
		n.broken.Store(&damage{block.Errorf(syscall.EIO, "%s: its metadata could not be read again after a change: %v: close it, and check it", n.info.Filename, again)})
		err = errors.Join(err, again)
	}
	return err
}

// resume goes on with what the file has now.
func (n *node) resume(rq *block.Req) error {
	if err := n.reload(rq); err != nil {
		return err
	}
	return n.openBitmaps(rq)
}

// check is the ability. A repair needs a node that is open for writing.
func (n *node) check(rq *block.Req, o block.CheckOptions) (res block.CheckResult, err error) {
	if o.Fix == 0 {
		err = n.lookInto(rq, func(*editor) error { res, err = check(rq, n.file, o); return err })
		return res, err
	}
	err = n.alter(rq, func(*editor) error { res, err = check(rq, n.file, o); return err })
	return res, err
}

// listBitmaps has what is tracked as it is in memory, and the rest from the
// file.
func (n *node) listBitmaps(rq *block.Req) (list []block.Bitmap, err error) {
	err = n.lookInto(rq, func(e *editor) error { list, err = e.listBitmaps(); return err })
	for i := range list {
		if bits := n.tracking.find(list[i].Name); bits != nil {
			list[i].InUse, list[i].Dirty = false, bits.count()<<bits.granBits
		}
	}
	return list, err
}

// bitmapRuns is Runs, of a bitmap in memory where it is tracked.
func (n *node) bitmapRuns(rq *block.Req, name string, f func(off, n int64) error) error {
	if bits := n.tracking.find(name); bits != nil {
		return bits.runs(int64(n.size), f)
	}
	return n.lookInto(rq, func(e *editor) error { return e.bitmapRuns(name, f) })
}

// mendOnOpen repairs an image that was not closed by whoever wrote it last, as
// its dirty bit says: its refcounts may be wrong.
func (n *node) mendOnOpen(rq *block.Req) error {
	if n.incompat&(featDirty|featCorrupt) != featDirty {
		return nil
	}
	res, err := check(rq, n.file, block.CheckOptions{Fix: block.FixErrors | block.FixLeaks})
	if err != nil {
		return err
	}
	n.env.Log.Info("a qcow2 image was not closed and has been repaired", "file", n.info.Filename,
		"corruptions", res.CorruptionsFixed, "leaks", res.LeaksFixed)
	if res.Corruptions+res.CheckErrors > 0 {
		return block.Errorf(syscall.EIO, "%s: it was not closed, and repair has left %d corruptions and %d errors: check it", n.info.Filename, res.Corruptions, res.CheckErrors)
	}
	return n.reload(rq)
}

// patientNode is an image opened with check=on: it can be checked and repaired,
// whatever is wrong with it, and has no content.
type patientNode struct {
	info block.Info
	file *block.Child
}

func openForCheck(a *block.OpenArgs, file *block.Child) block.Node {
	p := &patientNode{file: file, info: block.Info{Driver: "qcow2", Filename: file.Info().Filename, ReadOnly: a.ReadOnly}}
	p.info.Abilities.Check = func(rq *block.Req, o block.CheckOptions) (block.CheckResult, error) {
		if o.Fix != 0 && a.ReadOnly {
			return block.CheckResult{}, syscall.EROFS
		}
		return check(rq, file, o)
	}
	p.info.SetLimits(block.ByteLimits())
	return p
}

// errPatient answers all requests for content.
var errPatient = block.Errorf(syscall.EIO, "the image is open for a check only")

func (p *patientNode) Info() *block.Info { return &p.info }

func (p *patientNode) Preadv(*block.Req, int64, block.Vec, block.Flags) error { return errPatient }

func (p *patientNode) Pwritev(*block.Req, int64, block.Vec, block.Flags) error { return errPatient }

func (p *patientNode) WriteZeroes(*block.Req, int64, int64, block.Flags) error { return errPatient }

func (p *patientNode) Discard(*block.Req, int64, int64) error { return errPatient }

func (p *patientNode) Flush(rq *block.Req) error {
	if p.info.ReadOnly {
		return nil
	}
	return p.file.Flush(rq)
}

func (p *patientNode) BlockStatus(*block.Req, int64, int64) (block.Extent, error) {
	return block.Extent{}, errPatient
}

func (p *patientNode) Truncate(*block.Req, int64, block.Prealloc) error { return errPatient }

func (p *patientNode) Close() error { return nil }
