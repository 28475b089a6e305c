// Package workload makes the requests of well-known file workloads on any disk:
// what platter bench runs. Files are ranges of the disk. All chance comes from a
// seed, so that two runs make the same requests.
package workload

import (
	"fmt"
	"strings"
)

// Profile is a workload. Sizes are in bytes.
type Profile struct {
	Name, Doc string
	// Block is the length of one request, but for a file's last.
	Block int
	// Files are as large as Size, or as mail is where Size is 0.
	Size int64
	// Ops are chosen by weight.
	Ops []Op
	// Total is how much is moved at scale 1, by all threads.
	Total int64
	// Threads is their number where none is given.
	Threads int
}

// Op is one thing that a thread does to a file.
type Op struct {
	Kind   Kind
	Weight int
	// Blocks is how many random blocks it touches.
	Blocks int
}

// Kind is what is done.
type Kind uint8

// The kinds.
const (
	ReadAll     Kind = iota // the whole file, in order
	ReadRandom              // blocks anywhere in it, at multiples of 4096
	WriteRandom             // likewise
	Create                  // the whole file, in order
	CreateFlush             // and a flush
	Delete                  // its range is discarded
)

// Changes reports whether the kind needs a disk that may be written.
func (k Kind) Changes() bool { return k >= WriteRandom }

// Changes reports whether any of the profile's operations writes.
func (p *Profile) Changes() bool {
	for _, o := range p.Ops {
		if o.Kind.Changes() {
			return true
		}
	}
	return false
}

// Fills reports whether its files must hold data before it begins.
func (p *Profile) Fills() bool {
	for _, o := range p.Ops {
		if o.Kind <= ReadRandom {
			return true
		}
	}
	return false
}

const (
	kib, mib, gib = 1 << 10, 1 << 20, 1 << 30
	randomBlocks  = 640 // 5 MiB of 8 KiB blocks
)

// Profiles are all there are, in the order in which they are told.
var Profiles = []Profile{
	{Name: "large-file-create-256k", Doc: "files of 1 GiB written in order by 256 KiB", Block: 256 * kib, Size: gib, Ops: []Op{{Kind: Create, Weight: 1}}, Total: 8 * gib},
	{Name: "large-file-create-8k", Doc: "files of 1 GiB written in order by 8 KiB", Block: 8 * kib, Size: gib, Ops: []Op{{Kind: Create, Weight: 1}}, Total: 2 * gib},
	{Name: "sequential-read-256k", Doc: "files of 100 MiB read in order by 256 KiB", Block: 256 * kib, Size: 100 * mib, Ops: []Op{{Kind: ReadAll, Weight: 1}}, Total: 8 * gib},
	{Name: "sequential-read-8k", Doc: "files of 100 MiB read in order by 8 KiB", Block: 8 * kib, Size: 100 * mib, Ops: []Op{{Kind: ReadAll, Weight: 1}}, Total: 2 * gib},
	{Name: "random-read-8k", Doc: "640 random blocks of 8 KiB of a file of 100 MiB", Block: 8 * kib, Size: 100 * mib, Ops: []Op{{ReadRandom, 1, randomBlocks}}, Total: 2 * gib},
	{Name: "random-write-8k", Doc: "640 random blocks of 8 KiB of a file of 100 MiB", Block: 8 * kib, Size: 100 * mib, Ops: []Op{{WriteRandom, 1, randomBlocks}}, Total: 2 * gib},
	{Name: "mail-server-8k", Doc: "mail by 8 KiB: read, create and flush, delete, as 4 to 2 to 1", Block: 8 * kib, Ops: []Op{{Kind: ReadAll, Weight: 4}, {Kind: CreateFlush, Weight: 2}, {Kind: Delete, Weight: 1}}, Total: 2 * gib},
	{Name: "direct-write-4k", Doc: "100 000 writes of 4 KiB in order", Block: 4 * kib, Size: 100_000 * 4 * kib, Ops: []Op{{Kind: Create, Weight: 1}}, Total: 100_000 * 4 * kib, Threads: 1},
	{Name: "readers-8k", Doc: "4 readers of 8 KiB in order", Block: 8 * kib, Size: gib, Ops: []Op{{Kind: ReadAll, Weight: 1}}, Total: 4 * gib, Threads: 4},
}

// mailSizes are sizes of mail in KiB, by weight of 100 in all.
var mailSizes = []struct{ kib, weight int }{{1, 10}, {2, 15}, {4, 16}, {8, 16}, {16, 15}, {32, 10}, {64, 8}, {128, 4}, {256, 3}, {512, 2}, {1024, 1}}

// Find is the profile called name.
func Find(name string) (*Profile, error) {
	for i := range Profiles {
		if Profiles[i].Name == name {
			return &Profiles[i], nil
		}
	}
	return nil, fmt.Errorf("there is no profile %q: %s", name, strings.Join(Names(), ", "))
}

// Names are those of all profiles.
func Names() []string {
	var names []string
	for _, p := range Profiles {
		names = append(names, p.Name)
	}
	return names
}

// Shape is how a request lies in memory.
type Shape string

// The shapes.
const (
	Contig   Shape = "contig"   // one piece
	Pages    Shape = "pages"    // pages that do not touch: a guest's usual buffer
	HalfPage Shape = "halfpage" // such pieces 512 bytes past the beginning of a page
	Mixed    Shape = "mixed"    // any of them
)

// Shapes are all there are.
var Shapes = []Shape{Contig, Pages, HalfPage, Mixed}
