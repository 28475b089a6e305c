package serve

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/platter-storage/platter/graph"
	"github.com/platter-storage/platter/serve/config"
)

// place is where a disk's bytes are: a file of this machine.
type place struct {
	disk *config.Disk
	path string // absolute
	info os.FileInfo
}

// same reports whether two disks have one file: by what is there, or by name
// where nothing is there yet.
func (p *place) same(o *place) bool {
	if p.info != nil && o.info != nil {
		return os.SameFile(p.info, o.info)
	}
	return p.path == o.path
}

// placeOf finds the file under a disk; nil where there is none, and where it is
// not locked, so that whoever says so may have it twice.
func placeOf(d *config.Disk, desc graph.Disk) *place {
	vals, err := desc.Values()
	if err != nil {
		return nil // reported when it is opened
	}
	proto := bottom(vals)
	file := proto["filename"]
	if file == "" || proto["locking"] == "off" {
		return nil
	}
	abs, err := filepath.Abs(file)
	if err != nil {
		return nil
	}
	info, _ := os.Stat(abs)
	return &place{d, abs, info}
}

// checkTwice refuses one file for two disks of which one may write: its lock
// would keep the other out, and the message would name this very process.
func checkTwice(places []*place) error {
	for i, p := range places {
		for _, o := range places[:i] {
			if p.same(o) && !(p.disk.ReadOnly && o.disk.ReadOnly) {
				return &config.Error{At: p.disk.At, Msg: fmt.Sprintf("%s is given twice, as the disks %s and %s: give it once; several names are several --export of one disk, and --read-only disks may share a file",
					p.path, o.disk.Name, p.disk.Name)}
			}
		}
	}
	return nil
}
