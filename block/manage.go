package block

// What formats can do beside reading and writing: check, snapshots, bitmaps,
// amend. They are abilities of a node (Info.Abilities), called through
// Child.Exclusive, which keeps all requests away meanwhile.

// Exclusive runs f while no request is in flight at the node and none begins,
// for the abilities that need a format's metadata to stand still: Check,
// Snapshots, Bitmaps, Amend. Who drains the node's users above, where there are
// any, does it before. perm is what f needs: PermRead to look, PermWrite to
// change. Within f nothing goes through an edge to this node.
func (c *Child) Exclusive(rq *Req, perm Perm, f func(a *Abilities) error) error {
	if err := c.checkRange(perm, 0, 0); err != nil {
		return err
	}
	c.in.Drain(rq)
	defer c.in.Undrain()
	return f(&c.info.Abilities)
}

// Progress is told how much of a long operation is done, in units of its own;
// total may grow. nil where nobody wants to know. It must not wait.
type Progress func(done, total int64)

// Fix says what a check may repair.
type Fix uint8

// What a check may repair: storage that is lost, and all that is wrong.
const (
	FixLeaks Fix = 1 << iota
	FixErrors
)

// CheckOptions are those of a check. The zero value only looks.
type CheckOptions struct {
	Fix Fix
	// Report is given each finding in one line: what, where, and what was
	// done about it. At most MaxFindings are told, the counts go on.
	Report   func(line string)
	Progress Progress
}

// MaxFindings is how many findings a check tells in words.
const MaxFindings = 10000

// CheckResult is what a check found, and after repairs what is left. Counts
// are of host clusters or table entries, sizes of bytes.
type CheckResult struct {
	// CheckErrors could not be looked at: the other counts are not whole.
	CheckErrors int64
	// Corruptions are entries that are wrong and endanger data; Leaks
	// clusters that nothing uses and that are not free.
	Corruptions, Leaks           int64
	CorruptionsFixed, LeaksFixed int64
	// ImageEndOffset is where the last cluster in use ends.
	ImageEndOffset                                                           int64
	TotalClusters, AllocatedClusters, FragmentedClusters, CompressedClusters int64
}

// Snapshot is one internal snapshot.
type Snapshot struct {
	ID, Name string
	// VMStateSize is in bytes, 0 where the snapshot is of the disk only.
	VMStateSize int64
	DateSec     uint32
	DateNsec    uint32
	VMClockNsec uint64
	// ICount is the guest's instruction count, or -1.
	ICount int64
	// DiskSize is the disk's size in bytes in the snapshot.
	DiskSize int64
}

// SnapshotAbility is a format's internal snapshots. find is an ID, or else a
// name; of two snapshots with one name the first is meant.
type SnapshotAbility struct {
	// List is in the order of the image.
	List func(rq *Req) ([]Snapshot, error)
	// Create makes one of the disk as it is, named s.Name, with the times
	// of s. The ID is chosen where s.ID is empty.
	Create func(rq *Req, s Snapshot) (Snapshot, error)
	// Apply makes the disk what the snapshot is.
	Apply func(rq *Req, find string) error
	// Delete drops the snapshot.
	Delete func(rq *Req, find string) error
}

// Bitmap is one persistent dirty bitmap.
type Bitmap struct {
	Name string
	// Granularity is how many bytes of disk one bit stands for.
	Granularity int64
	// Enabled bitmaps mark what is written; InUse ones were not stored by
	// whoever used them last, so that they may only be removed.
	Enabled, InUse bool
	// Dirty is how many bytes are marked, in whole granules.
	Dirty int64
}

// BitmapAbility is a format's persistent dirty bitmaps.
type BitmapAbility struct {
	List func(rq *Req) ([]Bitmap, error)
	// Add makes an empty one; Granularity 0 means the default, 65536.
	Add                            func(rq *Req, b Bitmap) error
	Remove, Clear, Enable, Disable func(rq *Req, name string) error
	// Merge marks in name what each gives.
	Merge func(rq *Req, name string, each DirtyRuns) error
	// Runs calls f with each run that is marked, in ascending order.
	Runs func(rq *Req, name string, f func(off, n int64) error) error
}

// DirtyRuns calls f for each dirty run of some bitmap.
type DirtyRuns func(f func(off, n int64) error) error

// AmendAbility changes an image's format in place.
type AmendAbility struct {
	// Options are those that can be changed; what is not given stays.
	Options []Option
	Amend   func(rq *Req, vals Values, p Progress) error
}

// Field is one fact by name: a bool, a whole number, a string, or []Field for a
// list of facts within.
type Field struct {
	Name  string
	Value any
}

// Description is what a format says of an image that only formats have.
type Description struct {
	// Backing is the name of the backing file as it stands in the image.
	Backing, BackingFormat string
	// Dirty images were not closed by whoever wrote them last.
	Dirty, Encrypted bool
	// Fields are what this format alone has, under the reference's names.
	Fields []Field
}
