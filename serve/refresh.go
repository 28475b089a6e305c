package serve

import (
	"fmt"
	"slices"

	"github.com/platter-storage/platter/block"
)

// refresh asks the storage of every disk for its size and limits, which others
// may have changed, and says in sentences what is new. Clients who are connected
// keep the size that they were told: NBD has no word for another one.
func (d *Daemon) refresh() (changes []string) {
	for _, dk := range d.disks {
		info := dk.inst.Info()
		was := info.Size()
		for _, in := range slices.Backward(d.graph.Below(dk.inst.Name())) {
			f := in.Info().Abilities.Refresh
			if f == nil {
				continue
			}
			if err := f(); err != nil {
				d.log.Error("the storage cannot be asked for its size: what is known of it stays in force", "disk", dk.cfg.Name, "node", in.Name(), "error", err)
				changes = append(changes, fmt.Sprintf("disk %s: its storage cannot be asked for its size: %v", dk.cfg.Name, err))
			}
		}
		if is := info.Size(); is != was {
			d.log.Info("the size of a disk has changed: new clients are told", "disk", dk.cfg.Name, "was", was, "is", is)
			changes = append(changes, fmt.Sprintf("disk %s has %s (%d bytes) now, it had %d", dk.cfg.Name, block.FormatSize(is), is, was))
		}
	}
	return changes
}
