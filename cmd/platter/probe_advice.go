package main

import (
	"fmt"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/protocol/file"
	"github.com/platter-storage/platter/serve/probe"
)

// matters is by how much two measured rates must differ to be worth a word, on
// top of what they differ from round to round.
const matters = 1.15

// advice says in sentences what could be changed, from what was found.
func advice(f *finding) []string {
	var all []string
	add := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	x := f.Examination
	adviseDirect(x, add)
	adviseAlignment(x, add)
	adviseEngine(x, add)
	switch m := f.Measurement; {
	case m != nil && m.Holes:
		add("the disk holds no data, so reads measure the file system alone: write to it first, or use --write-test")
		adviseShapes(m, block.OpWrite, add)
	case m != nil:
		adviseShapes(m, block.OpRead, add)
		adviseShapes(m, block.OpWrite, add)
		adviseEngines(m, x.Engine, add)
	}
	if len(all) == 0 {
		add("nothing that a setting could change was found: direct I/O, alignment and engine are as good as they get here; what remains is the device itself")
	}
	return all
}

func adviseDirect(x *file.Examination, add func(string, ...any)) {
	switch {
	case x.NotWorthIt && !x.ByPageCache:
		return // said above, and nothing to change
	case !x.Direct:
		add("direct I/O does not work here, so --cache auto takes writeback: every byte is copied and kept in the page cache; move the disk to storage that has direct I/O if that hurts")
	case x.ByPageCache:
		add("direct I/O is accepted but served through the page cache: on btrfs, nodatacow (chattr +C on the empty file) makes it direct")
	}
	if x.Disagreement != "" {
		add("the storage refuses what it states; the larger alignment is used: report it to whoever maintains the file system or driver")
	}
	if x.Kind == "regular file" && x.Allocated >= 0 && x.Allocated < x.Size/2 {
		add("only %s of %s are allocated: the first write to each place allocates it, which costs; preallocate (--create with --preallocation falloc) if steady speed matters",
			block.FormatSize(x.Allocated), block.FormatSize(x.Size))
	}
}

// limit is a limit by name, empty where it is not there.
func limit(x *file.Examination, name string) file.Limit {
	for _, l := range x.Limits {
		if l.Name == name {
			return l
		}
	}
	return file.Limit{}
}

func adviseAlignment(x *file.Examination, add func(string, ...any)) {
	write := limit(x, "write_align").Value
	if n := write; x.Direct && n > 512 {
		add("writes that are not multiples of %d bytes are read, modified and written: give the guest a disk with logical blocks of %d (QEMU: logical_block_size=%d)", n, n, n)
	}
	if phys := limit(x, "physical_block"); phys.Value > max(512, write) && phys.Origin != block.OriginFileSystem.String() {
		add("the device's own blocks are %d bytes: it modifies them itself for smaller writes; partitions and guest file systems should be aligned to them (QEMU: physical_block_size=%d)", phys.Value, phys.Value)
	}
	if n := limit(x, "min_mem").Value; x.Direct && n > 512 {
		add("memory must be aligned to %d bytes here: requests with less are copied", n)
	}
}

func adviseEngine(x *file.Examination, add func(string, ...any)) {
	if !x.Engines.Uring.Usable {
		add("io_uring does not work here: %s", x.Engines.Uring.Why)
	}
}

// row finds a measured shape.
func row(m *probe.Measurement, op string, bytes, elements, misplaced int) *probe.Row {
	for i := range m.Rows {
		r := &m.Rows[i]
		if r.Op == op && r.Bytes == bytes && r.Elements == elements && r.Misplaced == misplaced && r.Depth == 1 {
			return r
		}
	}
	return nil
}

// slower is by what factor b is slower than a, 0 where that is within what they
// differ from round to round.
func slower(a, b *probe.Row) float64 {
	if a == nil || b == nil || b.Rate == 0 {
		return 0
	}
	if f := a.Rate / b.Rate; f >= matters+max(a.Spread, b.Spread) {
		return f
	}
	return 0
}

func adviseShapes(m *probe.Measurement, of block.Op, add func(string, ...any)) {
	op := of.String()
	if f := slower(row(m, op, 4<<10, 1, 0), row(m, op, 4<<10, 1, 512)); f > 0 {
		add("%ss with memory that is off by 512 bytes are %.1f times slower: have applications align their buffers to 4096", op, f)
	}
	for _, s := range []struct{ kib, pieces int }{{64, 16}, {256, 64}} {
		if f := slower(row(m, op, s.kib<<10, 1, 0), row(m, op, s.kib<<10, s.pieces, 0)); f > 0 {
			add("%ss of %d KiB are %.1f times slower in %d scattered pieces than in one: fewer, larger pieces help (in the guest: huge pages, larger readahead)", op, s.kib, f, s.pieces)
		}
	}
}

// adviseEngines says whether another engine than the chosen one is faster.
func adviseEngines(m *probe.Measurement, chosen string, add func(string, ...any)) {
	var mine, best *probe.Row
	for i := range m.Rows {
		r := &m.Rows[i]
		if r.Depth == 1 {
			continue
		}
		if r.Engine == chosen {
			mine = r
		}
		if best == nil || r.Rate > best.Rate {
			best = r
		}
	}
	if f := slower(best, mine); f > 0 {
		add("with many requests at once --aio %s is %.1f times as fast as %s here", best.Engine, f, mine.Engine)
	}
}
