package serve

import (
	"fmt"
	"io"
	"strings"

	"github.com/platter-storage/platter/serve/config"
)

// Fate is what becomes of what clients wrote to a disk, when it is closed.
type Fate struct {
	Name string `json:"name"`
	Path string `json:"path"`
	// Durable: everything written is on stable storage. Note says so, or what
	// else is true, in a sentence about the disk.
	Durable bool   `json:"durable"`
	Note    string `json:"note"`
}

// durable is the note of disks that keep their promise.
const durable = "everything written is on the disk"

// fateOf tells it from the disk's description: which driver is at the bottom,
// and whether flushes reach it.
func fateOf(cfg *config.Disk, readOnly bool) Fate {
	f := Fate{Name: cfg.Name, Path: cfg.Path.Value}
	desc, err := describe(cfg)
	if err != nil {
		return f // it was described before: there is nothing to fail
	}
	vals, err := desc.Values()
	if err != nil {
		return f
	}
	switch proto := bottom(vals); {
	case readOnly:
		f.Durable, f.Note = true, "nothing was written"
	case proto["driver"] == "mem":
		f.Note = "it was in memory and is gone"
	case strings.HasPrefix(proto["driver"], "null"):
		f.Note = "it keeps nothing"
	case ignoresFlushes(proto["cache"], proto["cache.no-flush"]):
		f.Note = "flushes were ignored (--cache unsafe): what was written is in the host's page cache, and on the disk when the kernel has written it back"
	default:
		f.Durable, f.Note = true, durable
	}
	return f
}

func ignoresFlushes(cache, noFlush string) bool {
	return noFlush == "on" || cache == "unsafe" && noFlush != "off"
}

// fates are those of all disks that are open.
func (d *Daemon) fates() []Fate {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make([]Fate, len(d.disks))
	for i, dk := range d.disks {
		all[i] = fateOf(&dk.cfg, dk.inst.Info().ReadOnly)
	}
	return all
}

// warnUnsafe says at the start which disks a crash of the host can damage.
func (d *Daemon) warnUnsafe(dk *disk) {
	if f := fateOf(&dk.cfg, dk.inst.Info().ReadOnly); strings.HasPrefix(f.Note, "flushes were ignored") {
		d.log.Warn("flushes are ignored: if this machine crashes or loses power the disk may be damaged beyond repair; --cache writeback is the safe mode that is nearly as fast", "disk", dk.cfg.Name, "cache", "unsafe")
	}
}

// stopped is the last event.
type stopped struct {
	Because string `json:"because"`
	Disks   []Fate `json:"disks"`
}

// WriteText implements texter: one line where one is true of all disks.
func (s *stopped) WriteText(w io.Writer) error {
	all := true
	for _, f := range s.Disks {
		all = all && f.Durable
	}
	if all {
		_, err := fmt.Fprintf(w, "stopped (%s): everything written is on the disks\n", s.Because)
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "stopped (%s)\n", s.Because)
	for _, f := range s.Disks {
		fmt.Fprintf(&b, "  %s: %s\n", f.Path, f.Note)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
