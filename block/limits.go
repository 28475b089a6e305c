package block

import (
	"fmt"
	"os"
)

// Origin says why a limit is believed.
type Origin uint8

// The sources of limits, strongest evidence last within a resolution.
const (
	OriginDefault    Origin = iota // nothing answered: the safe value
	OriginOption                   // the user said so
	OriginFileSystem               // a known fact about the file system
	OriginStatx                    // statx STATX_DIOALIGN
	OriginIoctl                    // a block device or file system ioctl
	OriginSysfs                    // /sys/dev/block/…/queue
	OriginTrial                    // a trial read
	OriginProtocol                 // the remote side announced it
	OriginMerged                   // merged from children
)

var originNames = [...]string{"default", "option", "file system", "statx", "ioctl", "sysfs", "trial", "protocol", "merged"}

// String is the origin's name in messages and metric labels.
func (o Origin) String() string { return originNames[o] }

// Limits are what a node can serve as it stands. They are published through
// one atomic pointer and never changed in place; a new set has a higher
// Generation. Alignments are powers of two in bytes, at least 1; a zero
// maximum means none.
type Limits struct {
	// ReadAlign and WriteAlign hold for offset and total length. A request
	// may always end at the node's size, aligned or not.
	ReadAlign, WriteAlign uint32
	// SegmentAlign holds for the length of each element.
	SegmentAlign uint32
	// MinMem holds for the address of each element: validity. Memory
	// aligned less is bounced.
	MinMem uint32
	// OptMem is the alignment of memory that we allocate ourselves, at
	// least MinMem, 4096 and the page size. It never causes a bounce.
	OptMem uint32
	// OptTransfer is the preferred length, MaxTransfer the largest.
	OptTransfer, MaxTransfer uint32
	// MaxSegments is the largest number of elements.
	MaxSegments uint16
	// ZeroAlign and DiscardAlign are the granularities at which write
	// zeroes and discard are served natively.
	ZeroAlign, DiscardAlign uint32
	// MaxZero and MaxDiscard are the largest native lengths.
	MaxZero, MaxDiscard int64
	// LogicalBlock and PhysicalBlock describe the storage to a guest: they
	// are advice, never enforced.
	LogicalBlock, PhysicalBlock uint32
	// Origins says of each limit where it comes from.
	Origins Origins
	// Generation counts the resolutions of this node's limits.
	Generation uint64
}

// Origins has the Origin of each field of Limits that is resolved apart.
type Origins struct {
	ReadAlign, WriteAlign, SegmentAlign, MinMem, OptMem Origin
	OptTransfer, MaxTransfer, MaxSegments               Origin
	ZeroAlign, DiscardAlign, MaxZero, MaxDiscard        Origin
	LogicalBlock, PhysicalBlock                         Origin
}

// MaxElements is the number of elements that any node may be asked to take:
// the kernel's UIO_MAXIOV.
const MaxElements = 1024

// MaxAlign bounds every alignment a node may publish, so that a block being
// read, modified and written always fits a bounce buffer twice.
const MaxAlign = 64 << 10

// pageSize is read once: OptMem is never below it.
var pageSize = uint32(os.Getpagesize())

// OptMemFor is the allocation alignment that goes with a validity alignment.
func OptMemFor(minMem uint32) uint32 { return max(minMem, 4096, pageSize) }

// ByteLimits are those of a node that takes any offset, length and memory.
func ByteLimits() *Limits {
	return &Limits{
		ReadAlign: 1, WriteAlign: 1, SegmentAlign: 1, MinMem: 1, OptMem: OptMemFor(1),
		MaxSegments: MaxElements, ZeroAlign: 1, DiscardAlign: 1, LogicalBlock: 512, PhysicalBlock: 4096,
		Generation: 1,
	}
}

// Validate says what is wrong with l, if anything: a driver's mistake.
func (l *Limits) Validate() error {
	for _, a := range []struct {
		name string
		v    uint32
	}{
		{"read alignment", l.ReadAlign}, {"write alignment", l.WriteAlign}, {"segment alignment", l.SegmentAlign},
		{"minimum memory alignment", l.MinMem}, {"optimum memory alignment", l.OptMem},
		{"zero alignment", l.ZeroAlign}, {"discard alignment", l.DiscardAlign},
	} {
		if a.v == 0 || a.v&(a.v-1) != 0 {
			return fmt.Errorf("%s %d is not a power of two", a.name, a.v)
		}
	}
	switch {
	case l.ReadAlign > MaxAlign || l.WriteAlign > MaxAlign || l.OptMem > MaxAlign || l.SegmentAlign > MaxAlign:
		return fmt.Errorf("an alignment is above %d", MaxAlign)
	case l.OptMem < OptMemFor(l.MinMem):
		return fmt.Errorf("optimum memory alignment %d is below the minimum %d, 4096 or the page size", l.OptMem, l.MinMem)
	case l.MaxSegments == 0 || l.MaxSegments > MaxElements:
		return fmt.Errorf("maximum of %d segments is not in 1..%d", l.MaxSegments, MaxElements)
	case l.SegmentAlign > min(l.ReadAlign, l.WriteAlign):
		return fmt.Errorf("segment alignment %d is above that of requests (reads %d, writes %d): no single element could meet it", l.SegmentAlign, l.ReadAlign, l.WriteAlign)
	case l.MaxTransfer != 0 && int64(l.MaxTransfer) < l.blockLen():
		return fmt.Errorf("maximum transfer %d is below the alignment %d", l.MaxTransfer, l.blockLen())
	case l.MaxZero != 0 && l.MaxZero < int64(max(l.ZeroAlign, l.WriteAlign)):
		return fmt.Errorf("maximum of write zeroes %d is below the alignment", l.MaxZero)
	case l.MaxDiscard != 0 && l.MaxDiscard < int64(l.DiscardAlign):
		return fmt.Errorf("maximum of discard %d is below its alignment %d", l.MaxDiscard, l.DiscardAlign)
	}
	return nil
}

// Merge gives the limits of a node that passes requests on to both a and b
// unchanged: the larger of alignments, the smaller of maxima, though no maximum
// is below the alignment: then the edge below splits.
func Merge(a, b *Limits) *Limits {
	m := *a
	m.ReadAlign = max(a.ReadAlign, b.ReadAlign)
	m.WriteAlign = max(a.WriteAlign, b.WriteAlign)
	m.SegmentAlign = max(a.SegmentAlign, b.SegmentAlign)
	m.MinMem = max(a.MinMem, b.MinMem)
	m.OptMem = max(a.OptMem, b.OptMem)
	m.OptTransfer = max(a.OptTransfer, b.OptTransfer)
	m.MaxTransfer = atLeast(minNonZero(a.MaxTransfer, b.MaxTransfer), uint32(m.blockLen()))
	m.MaxSegments = min(a.MaxSegments, b.MaxSegments)
	m.ZeroAlign = max(a.ZeroAlign, b.ZeroAlign)
	m.DiscardAlign = max(a.DiscardAlign, b.DiscardAlign)
	m.MaxZero = atLeast(minNonZero(a.MaxZero, b.MaxZero), int64(max(m.ZeroAlign, m.WriteAlign)))
	m.MaxDiscard = atLeast(minNonZero(a.MaxDiscard, b.MaxDiscard), int64(m.DiscardAlign))
	m.LogicalBlock = max(a.LogicalBlock, b.LogicalBlock)
	m.PhysicalBlock = max(a.PhysicalBlock, b.PhysicalBlock)
	m.Generation = a.Generation + b.Generation
	return &m
}

// atLeast is the maximum v raised to least; 0 stays: no maximum.
func atLeast[T uint32 | int64](v, least T) T {
	if v == 0 {
		return 0
	}
	return max(v, least)
}

func minNonZero[T uint32 | int64](a, b T) T {
	switch {
	case a == 0:
		return b
	case b == 0:
		return a
	}
	return min(a, b)
}
