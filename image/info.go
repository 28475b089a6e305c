package image

import (
	"context"
	"encoding/json"
	"os"
	"time"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/sys"
)

// Info is what an image says of itself.
type Info struct {
	Filename              string         `json:"filename"`
	Format                string         `json:"format"`
	VirtualSize           int64          `json:"virtual-size"`
	ActualSize            *int64         `json:"actual-size,omitempty"`
	DirtyFlag             bool           `json:"dirty-flag"`
	ClusterSize           int64          `json:"cluster-size,omitempty"`
	Encrypted             bool           `json:"encrypted,omitempty"`
	BackingFilename       string         `json:"backing-filename,omitempty"`
	FullBackingFilename   string         `json:"full-backing-filename,omitempty"`
	BackingFilenameFormat string         `json:"backing-filename-format,omitempty"`
	Snapshots             []SnapshotInfo `json:"snapshots,omitempty"`
	FormatSpecific        *Specific      `json:"format-specific,omitempty"`
	Children              []ChildInfo    `json:"children"`
}

// ChildInfo is a node below.
type ChildInfo struct {
	Name string `json:"name"`
	Info Info   `json:"info"`
}

// Specific is what only one format has, in the format's order.
type Specific struct {
	Type string
	Data []block.Field
}

// MarshalJSON writes data as an object in that order.
func (s *Specific) MarshalJSON() ([]byte, error) {
	out := []byte(`{"type":`)
	t, err := json.Marshal(s.Type)
	if err != nil {
		return nil, err
	}
	out = append(append(out, t...), `,"data":`...)
	data, err := marshalFields(s.Data)
	return append(append(out, data...), '}'), err
}

func marshalFields(fields []block.Field) ([]byte, error) {
	out := []byte{'{'}
	for i, f := range fields {
		if i > 0 {
			out = append(out, ',')
		}
		k, err := json.Marshal(f.Name)
		if err != nil {
			return nil, err
		}
		v, err := json.Marshal(f.Value)
		if err != nil {
			return nil, err
		}
		out = append(append(append(out, k...), ':'), v...)
	}
	return append(out, '}'), nil
}

// SnapshotInfo is one internal snapshot. Sizes are in bytes.
type SnapshotInfo struct {
	ID          string `json:"id"`
	Name        string `json:"name"`
	VMStateSize int64  `json:"vm-state-size"`
	DateSec     int64  `json:"date-sec"`
	DateNsec    int64  `json:"date-nsec"`
	VMClockSec  int64  `json:"vm-clock-sec"`
	VMClockNsec int64  `json:"vm-clock-nsec"`
	ICount      *int64 `json:"icount,omitempty"`
}

func snapshotInfo(s block.Snapshot) SnapshotInfo {
	out := SnapshotInfo{ID: s.ID, Name: s.Name, VMStateSize: s.VMStateSize, DateSec: int64(s.DateSec), DateNsec: int64(s.DateNsec),
		VMClockSec: int64(s.VMClockNsec / 1e9), VMClockNsec: int64(s.VMClockNsec % 1e9)}
	if s.ICount >= 0 {
		out.ICount = &s.ICount
	}
	return out
}

// Describe says what an image is: the first of the result, and with chain those
// that back it.
func Describe(ctx context.Context, s Source, chain bool) ([]Info, error) {
	var all []Info
	seen := map[string]bool{}
	for {
		s.NoBacking = true
		var in Info
		err := with(ctx, s, true, func(im *Image) (err error) { in, err = im.Info(); return err })
		if err != nil {
			return all, err
		}
		all = append(all, in)
		next := in.FullBackingFilename
		if !chain || next == "" {
			return all, nil
		}
		if seen[next] || len(all) == block.MaxOptionDepth {
			return all, block.Errorf(eloop, "%s: the chain of backing files comes back to %s, or is longer than %d", all[0].Filename, next, block.MaxOptionDepth)
		}
		seen[next] = true
		s = Source{Name: next, Format: in.BackingFilenameFormat, Trust: s.Trust, Shared: s.Shared, Cache: s.Cache}
	}
}

// Info describes the opened image.
func (im *Image) Info() (Info, error) {
	in := Info{Filename: im.Source.String(), Format: im.Format(), VirtualSize: im.Size(), ClusterSize: im.Cluster(), Children: []ChildInfo{}}
	in.ActualSize = sys.Allocated(in.Filename)
	err := im.exclusive(block.PermRead, func(rq *block.Req, a *block.Abilities) error {
		if a.Describe != nil {
			d, err := a.Describe(rq)
			if err != nil {
				return err
			}
			in.FormatSpecific = &Specific{Type: in.Format, Data: d.Fields}
			in.BackingFilename, in.BackingFilenameFormat, in.DirtyFlag, in.Encrypted = d.Backing, d.BackingFormat, d.Dirty, d.Encrypted
			in.FullBackingFilename = beside(in.Filename, d.Backing)
		}
		if a.Snapshots == nil {
			return nil
		}
		list, err := a.Snapshots.List(rq)
		for _, s := range list {
			in.Snapshots = append(in.Snapshots, snapshotInfo(s))
		}
		return err
	})
	if fi, serr := os.Stat(in.Filename); serr == nil && fi.Mode().IsRegular() {
		file := Info{Filename: in.Filename, Format: "file", VirtualSize: fi.Size(), ActualSize: in.ActualSize, Children: []ChildInfo{},
			FormatSpecific: &Specific{Type: "file"}}
		in.Children = append(in.Children, ChildInfo{"file", file})
	}
	return in, err
}

// Snapshots lists the image's internal snapshots.
func (im *Image) Snapshots() (list []SnapshotInfo, err error) {
	err = im.snapshots(block.PermRead, func(rq *block.Req, a *block.SnapshotAbility) error {
		all, err := a.List(rq)
		for _, s := range all {
			list = append(list, snapshotInfo(s))
		}
		return err
	})
	return list, err
}

// CreateSnapshot makes one of the disk as it is, dated now.
func (im *Image) CreateSnapshot(name string, now time.Time) error {
	return im.snapshots(block.PermWrite, func(rq *block.Req, a *block.SnapshotAbility) error {
		_, err := a.Create(rq, block.Snapshot{Name: name, DateSec: uint32(now.Unix()), DateNsec: uint32(now.Nanosecond()), DiskSize: im.Size()})
		return err
	})
}

// ApplySnapshot makes the disk what the snapshot is, DeleteSnapshot drops one.
func (im *Image) ApplySnapshot(find string) error {
	return im.snapshots(block.PermWrite, func(rq *block.Req, a *block.SnapshotAbility) error { return a.Apply(rq, find) })
}

// DeleteSnapshot drops a snapshot.
func (im *Image) DeleteSnapshot(find string) error {
	return im.snapshots(block.PermWrite, func(rq *block.Req, a *block.SnapshotAbility) error { return a.Delete(rq, find) })
}

func (im *Image) snapshots(perm block.Perm, f func(rq *block.Req, a *block.SnapshotAbility) error) error {
	return im.exclusive(perm, func(rq *block.Req, a *block.Abilities) error {
		if a.Snapshots == nil {
			return im.lacks("snapshots")
		}
		return f(rq, a.Snapshots)
	})
}

// Bitmaps calls f with what the image offers for dirty bitmaps.
func (im *Image) Bitmaps(f func(rq *block.Req, a *block.BitmapAbility) error) error {
	return im.exclusive(block.PermWrite, func(rq *block.Req, a *block.Abilities) error {
		if a.Bitmaps == nil {
			return im.lacks("dirty bitmaps")
		}
		return f(rq, a.Bitmaps)
	})
}

// Amend changes the format of the image in place.
func (im *Image) Amend(vals block.Values, p block.Progress) error {
	return im.exclusive(block.PermWrite, func(rq *block.Req, a *block.Abilities) error {
		if a.Amend == nil {
			return im.lacks("anything that can be amended")
		}
		return a.Amend.Amend(rq, vals, p)
	})
}

func (im *Image) lacks(what string) error {
	return block.Errorf(enotsup, "%s: the format %s has no %s", im.Source, im.Format(), what)
}
