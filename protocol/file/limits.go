package file

import (
	"errors"
	"fmt"
	"math/bits"
	"strings"
	"syscall"

	"github.com/platter-storage/platter/block"
)

// The alignment of a file is resolved here, as a decision over facts that a
// source gives: no system call is made in this file, so that the whole table
// is tested with made-up facts. The order of belief: known facts about the
// file system; statx; the block device's ioctls and sysfs; XFS; a trial read;
// 4096. What was believed is checked with one trial read, and where the two
// differ the stricter wins.

// source answers what there is to know about one open file.
type source interface {
	fileSystem() (fsAnswer, error)  // regular files only
	statx() (statxAnswer, error)    // STATX_DIOALIGN
	device() (deviceAnswer, error)  // ioctls of a block device; ENOTTY on others
	queue() (queueAnswer, error)    // sysfs, of the whole disk below the file
	xfs() (xfsAnswer, error)        // XFS_IOC_DIOINFO
	kernel() (major, minor int)     // 0, 0 where it is not Linux
	data() (off, n int64, e error)  // the first run with data in it; ENXIO: none
	trial(t trialRead) trialOutcome // one read
}

// fsAnswer is what statfs says.
type fsAnswer struct {
	magic     int64
	blockSize int64
}

// statxAnswer is what statx says about direct I/O, in bytes.
type statxAnswer struct {
	stated           bool // false: kernel or file system does not say
	mem, write, read uint32
}

// deviceAnswer is what a block device says of itself, in bytes.
type deviceAnswer struct{ logical, physical, ioMin, ioOpt uint32 }

// queueAnswer is /sys/dev/block/M:m/queue; sizes in bytes, zero where absent.
type queueAnswer struct {
	dir string
	// dma is dma_alignment+1, which kernels before 6.0 do not show: 0.
	logical, physical, ioOpt, dma       uint32
	maxSegments, maxSectorsKB, boundary uint32
	discardMax, zeroesMax               int64
}

// xfsAnswer is struct dioattr.
type xfsAnswer struct{ mem, minIO, maxIO uint32 }

// trialRead is a read of lens bytes at off, into elements of which each starts
// at an address that is lead bytes past a multiple of MaxAlign.
type trialRead struct {
	off  int64
	lead uint32
	lens []uint32
}

// trialOutcome is nil, EINVAL (misaligned), or an error that says nothing of
// alignment. cached: the page cache grew, so the read was not direct.
type trialOutcome struct {
	err    error
	cached bool
}

// safeAlign is what nearly every storage accepts.
const safeAlign = 4096

// fineSegments is the first kernel that takes segments of any multiple of the
// DMA alignment; before it each had to be whole logical blocks.
var fineSegments = [2]int{6, 18}

// query says what to resolve, and how.
type query struct {
	direct bool // opened with O_DIRECT
	device bool // a block device
	// forced alignments are the user's and not questioned; 0 is none.
	forced forced
	// What requests taught that met the limits and were refused all the
	// same: memory, or segments, must be whole blocks after all.
	wholeMem, wholeSegments bool
	// thorough runs the trial reads even where they are not needed, for
	// the record.
	thorough   bool
	generation uint64
}

// forced are alignments that the user gave.
type forced struct{ request, mem, segment uint32 }

// resolution is the outcome.
type resolution struct {
	limits  *block.Limits
	answers []Answer
	// disagreement says how the trial read differed from what was said.
	disagreement string
	// byCache: direct reads are served through the page cache here.
	byCache bool
	// slowZero: zeroing a range of this device means writing it.
	slowZero bool
	fs       fsFact
	statx    statxAnswer
	// onDevice: below is a block device of this machine.
	onDevice bool
}

// errNoDirect is wrapped where the file cannot be used with direct I/O.
var errNoDirect = errors.New("direct I/O is not possible")

// resolver holds what was answered so far.
type resolver struct {
	src source
	q   query
	out resolution

	fsBlock  int64
	statx    statxAnswer
	dev      deviceAnswer
	devOK    bool
	queue    queueAnswer
	queueOK  bool
	xfs      xfsAnswer
	xfsOK    bool
	runOff   int64 // where trial reads go
	runLen   int64 // 0: nowhere
	read     uint32
	write    uint32
	mem      uint32
	origin   block.Origin // of read and write
	memFrom  block.Origin
	verified bool
}

// resolve asks src and decides.
func resolve(src source, q query) (*resolution, error) {
	r := &resolver{src: src, q: q}
	r.ask()
	if !q.direct {
		r.out.limits = r.cachedLimits()
		return &r.out, r.check()
	}
	if err := r.alignment(); err != nil {
		return &r.out, err
	}
	r.out.limits = r.directLimits()
	return &r.out, r.check()
}

// check refuses what the waist could not serve.
func (r *resolver) check() error {
	if err := r.out.limits.Validate(); err != nil {
		return block.Errorf(syscall.EINVAL, "%v; if the storage is odd, state its alignment with the options request-align, mem-align and segment-align", err)
	}
	return nil
}

// alignment finds read, write and mem of a file opened for direct I/O.
func (r *resolver) alignment() error {
	switch {
	case r.out.fs.anyAlign:
		r.believe(1, 1, 1, block.OriginFileSystem)
		return nil
	case r.statx.stated && (r.statx.write == 0 || r.statx.mem == 0):
		return fmt.Errorf("%w: statx says that this file does not have it", errNoDirect)
	case r.statx.stated:
		r.believe(r.statx.read, r.statx.write, r.statx.mem, block.OriginStatx)
	case r.devOK:
		r.believe(r.dev.logical, r.dev.logical, r.deviceMem(), block.OriginIoctl)
	case r.xfsOK:
		r.believe(r.xfs.minIO, r.xfs.minIO, max(r.xfs.mem, 1), block.OriginIoctl)
	case r.out.fs.blockAlign:
		b := uint32(r.fsBlock)
		r.believe(b, b, b, block.OriginFileSystem)
	default:
		return r.byTrial()
	}
	return r.crossCheck()
}

func (r *resolver) believe(read, write, mem uint32, o block.Origin) {
	r.read, r.write, r.mem, r.origin, r.memFrom = read, write, mem, o, o
}

// deviceMem is the memory alignment of a block device that statx is silent
// about: kernels before 6.0 wanted whole logical blocks.
func (r *resolver) deviceMem() uint32 {
	major, _ := r.src.kernel()
	if major >= 6 && r.queueOK && r.queue.dma != 0 {
		return r.queue.dma
	}
	return r.dev.logical
}

// byTrial finds the alignment by reading.
func (r *resolver) byTrial() error {
	t := r.ladder()
	switch {
	case t.refused:
		return fmt.Errorf("%w: nothing states its alignment, and trial reads of 512 bytes to 64 KiB were all refused as misaligned", errNoDirect)
	case t.request == 0:
		r.believe(safeAlign, safeAlign, safeAlign, block.OriginDefault)
	default:
		r.believe(t.request, t.request, t.mem, block.OriginTrial)
		r.verified = true
	}
	return nil
}

// crossCheck reads with no more alignment than is stated. Where that is
// refused as misaligned, what trial reads find is added.
func (r *resolver) crossCheck() error {
	if !powersOfTwo(r.read, r.write, r.mem) {
		r.answer("cross-check", fmt.Sprintf("alignments of %d, %d and %d are not powers of two: not believed", r.read, r.write, r.mem), nil)
		return r.byTrial()
	}
	if r.runLen < int64(r.read) {
		r.answer("cross-check", "not made: there is no data yet that a read would fetch from storage", nil)
		return nil
	}
	n := r.acrossPages(r.read)
	o := r.src.trial(trialRead{r.runOff, r.mem, []uint32{n}})
	if o.err == nil && n > r.read {
		// The shortest request too, where the long one showed only that
		// the memory is right.
		o = r.src.trial(trialRead{r.runOff + int64(r.read), 0, []uint32{r.read}})
	}
	r.out.byCache = o.cached
	switch {
	case o.err == nil:
		r.verified = true
		r.answer("cross-check", fmt.Sprintf("reads of %d bytes and into memory aligned to %d succeeded%s", r.read, r.mem, cachedText(o.cached)), nil)
	case isMisaligned(o.err):
		return r.disagree()
	default:
		r.answer("cross-check", "a read failed, not for its alignment", o.err)
	}
	return nil
}

// disagree settles that storage refuses what it said it takes.
func (r *resolver) disagree() error {
	read, write, mem, from := r.read, r.write, r.mem, r.origin
	if err := r.byTrial(); err != nil {
		return err
	}
	r.read, r.write, r.mem = max(r.read, read), max(r.write, write), max(r.mem, mem)
	r.out.disagreement = fmt.Sprintf("%v says %d for reads, %d for writes and %d for memory, but a read aligned so was refused: using %d, %d and %d",
		from, read, write, mem, r.read, r.write, r.mem)
	r.answer("cross-check", r.out.disagreement, syscall.EINVAL)
	return nil
}

// found is what trial reads showed: request 0 means that nothing can be told;
// refused, that every size was.
type found struct {
	request, mem uint32
	refused      bool
}

// ladder makes trial reads of growing alignment, first of length and offset,
// then of memory. A length of 1 that succeeds tells nothing: holes, empty
// files and some file systems take anything.
func (r *resolver) ladder() found {
	if r.runLen < 1 {
		r.answer("trial", "not made: there is no data yet that a read would fetch from storage", nil)
		return found{}
	}
	tried := 0
	for _, a := range []uint32{1, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536} {
		if int64(a) > r.runLen {
			break
		}
		err := r.tryRequest(a)
		if err == nil && a == 1 {
			r.answer("trial", "cannot tell: a read of a single byte succeeded", nil)
			return found{}
		}
		if err == nil {
			return r.ladderMem(a)
		}
		if !isMisaligned(err) {
			r.answer("trial", fmt.Sprintf("a read of %d bytes failed, not for its alignment", a), err)
			return found{}
		}
		tried++
	}
	if r.runLen < safeAlign {
		r.answer("trial", fmt.Sprintf("cannot tell: too little data, %d reads were refused", tried), syscall.EINVAL)
		return found{}
	}
	r.answer("trial", fmt.Sprintf("all %d reads were refused as misaligned", tried), syscall.EINVAL)
	return found{refused: true}
}

// tryRequest reads a bytes at the run's start, and at a bytes past it.
func (r *resolver) tryRequest(a uint32) error {
	o := r.src.trial(trialRead{r.runOff, 0, []uint32{a}})
	if o.err == nil && a > 1 && 2*int64(a) <= r.runLen {
		o = r.src.trial(trialRead{r.runOff + int64(a), 0, []uint32{a}})
	}
	r.out.byCache = r.out.byCache || o.err == nil && o.cached
	return o.err
}

// acrossPages is a length for trials of memory, at least a: kernels do not look
// at the address of a read that lies within one page (seen on 6.18).
func (r *resolver) acrossPages(a uint32) uint32 {
	if r.runLen < safeAlign {
		return a
	}
	return max(a, safeAlign)
}

// ladderMem looks for the memory alignment that goes with requests of a.
func (r *resolver) ladderMem(a uint32) found {
	for m := uint32(1); m <= a; m *= 2 {
		if m == 2 {
			continue // no device has it
		}
		o := r.src.trial(trialRead{r.runOff, m, []uint32{r.acrossPages(a)}})
		switch {
		case o.err == nil && m == 1:
			r.answer("trial", fmt.Sprintf("requests of %d; memory cannot be told, an odd address succeeded: using %d", a, a), nil)
			return found{request: a, mem: a}
		case o.err == nil:
			r.answer("trial", fmt.Sprintf("requests of %d, memory of %d", a, m), nil)
			return found{request: a, mem: m}
		case !isMisaligned(o.err):
			r.answer("trial", fmt.Sprintf("requests of %d; a read into memory aligned to %d failed, not for its alignment", a, m), o.err)
			return found{request: a, mem: a}
		}
	}
	r.answer("trial", fmt.Sprintf("requests of %d; memory aligned to %d is refused, to more is not", a, a), nil)
	return found{request: a, mem: max(a, safeAlign)}
}

// segment is the alignment of each element's length: that of its memory where
// a trial read shows that this kernel and storage take it so.
func (r *resolver) segment() (uint32, block.Origin) {
	whole := min(r.read, r.write) // the logical block: writes may need more for the file system's sake
	switch {
	case r.mem >= whole:
		return whole, r.origin
	case r.out.fs.anyAlign:
		return 1, block.OriginFileSystem
	case r.q.wholeSegments:
		r.answer("segments", "a request with parts of blocks was refused: whole blocks", nil)
		return whole, block.OriginTrial
	}
	major, minor := r.src.kernel()
	if major < fineSegments[0] || major == fineSegments[0] && minor < fineSegments[1] {
		r.answer("segments", fmt.Sprintf("whole blocks of %d: kernels before %d.%d take no less", whole, fineSegments[0], fineSegments[1]), nil)
		return whole, r.origin
	}
	if !r.verified || r.runLen < int64(r.read) {
		r.answer("segments", fmt.Sprintf("whole blocks of %d: there is no data to try parts on", whole), nil)
		return whole, r.origin
	}
	o := r.src.trial(trialRead{r.runOff, r.mem, []uint32{r.mem, r.read - r.mem}})
	if o.err != nil {
		r.answer("segments", fmt.Sprintf("whole blocks of %d: a read in parts of %d and %d was refused", whole, r.mem, r.read-r.mem), o.err)
		return whole, block.OriginTrial
	}
	r.answer("segments", fmt.Sprintf("multiples of %d: a read in parts of %d and %d succeeded", r.mem, r.mem, r.read-r.mem), nil)
	return r.mem, block.OriginTrial
}

// directLimits puts together the limits of a file opened for direct I/O.
func (r *resolver) directLimits() *block.Limits {
	if r.q.wholeMem {
		r.mem = max(r.mem, min(r.read, r.write))
		r.memFrom = block.OriginTrial
	}
	if r.q.thorough && r.origin != block.OriginTrial && !r.out.fs.anyAlign {
		r.ladder()
	}
	seg, segFrom := r.segment()
	l := r.cachedLimits()
	l.ReadAlign, l.WriteAlign, l.SegmentAlign, l.MinMem = r.read, r.write, seg, r.mem
	o := &l.Origins
	o.ReadAlign, o.WriteAlign, o.SegmentAlign, o.MinMem = r.origin, r.origin, segFrom, r.memFrom
	r.force(l)
	l.OptMem = block.OptMemFor(l.MinMem)
	l.ZeroAlign = max(l.ZeroAlign, l.WriteAlign)
	l.DiscardAlign = max(l.DiscardAlign, l.WriteAlign)
	l.LogicalBlock = max(l.LogicalBlock, l.WriteAlign)
	l.PhysicalBlock = max(l.PhysicalBlock, l.LogicalBlock)
	o.LogicalBlock = o.WriteAlign
	if r.queueOK && r.queue.maxSegments != 0 {
		// Beyond it the kernel would cut the request itself, and in the
		// middle of a block where elements do not start on pages.
		l.MaxSegments = uint16(min(r.queue.maxSegments, block.MaxElements))
		o.MaxSegments = block.OriginSysfs
	}
	return l
}

// force applies what the user said.
func (r *resolver) force(l *block.Limits) {
	f := r.q.forced
	o := &l.Origins
	if f.request != 0 {
		l.ReadAlign, l.WriteAlign = f.request, f.request
		o.ReadAlign, o.WriteAlign = block.OriginOption, block.OriginOption
		if f.segment == 0 {
			l.SegmentAlign = min(l.SegmentAlign, f.request)
		}
	}
	if f.mem != 0 {
		l.MinMem, o.MinMem = f.mem, block.OriginOption
	}
	if f.segment != 0 {
		l.SegmentAlign, o.SegmentAlign = f.segment, block.OriginOption
	}
}

// maxStep bounds one native write zeroes or discard on a device, so that a
// large one can be drained; slowStep, where the device has to be written.
const (
	maxStep  = 1 << 30
	slowStep = 16 << 20
)

// cachedLimits are those of a file used through the page cache: any alignment.
// The rest of the facts hold for direct I/O too.
func (r *resolver) cachedLimits() *block.Limits {
	l := block.ByteLimits()
	l.Generation = r.q.generation
	o := &l.Origins
	if r.q.device {
		r.deviceLimits(l)
	} else {
		l.ZeroAlign, l.DiscardAlign = uint32(r.fsBlock), uint32(r.fsBlock)
		o.ZeroAlign, o.DiscardAlign = block.OriginFileSystem, block.OriginFileSystem
		l.PhysicalBlock = uint32(r.fsBlock)
		o.PhysicalBlock = block.OriginFileSystem
	}
	if r.queueOK {
		r.transferLimits(l)
	}
	return l
}

func (r *resolver) deviceLimits(l *block.Limits) {
	o := &l.Origins
	if r.devOK {
		l.LogicalBlock, l.PhysicalBlock = r.dev.logical, r.dev.physical
		o.LogicalBlock, o.PhysicalBlock = block.OriginIoctl, block.OriginIoctl
	}
	// The kernel refuses to zero or discard parts of logical blocks.
	l.ZeroAlign, l.DiscardAlign = l.LogicalBlock, l.LogicalBlock
	o.ZeroAlign, o.DiscardAlign = o.LogicalBlock, o.LogicalBlock
	l.MaxZero, l.MaxDiscard = maxStep, maxStep
	if !r.queueOK || r.queue.zeroesMax == 0 {
		r.out.slowZero = true
		l.MaxZero = slowStep
	}
	o.MaxZero, o.MaxDiscard = block.OriginSysfs, block.OriginSysfs
}

// transferLimits takes from sysfs what helps throughput. MaxTransfer stays
// open: the kernel cuts at max_sectors_kb itself, and sends the pieces side by
// side, where the edge would send them one after the other.
func (r *resolver) transferLimits(l *block.Limits) {
	o := &l.Origins
	switch {
	case r.devOK && r.dev.ioOpt != 0:
		l.OptTransfer, o.OptTransfer = r.dev.ioOpt, block.OriginIoctl
	case r.queue.ioOpt != 0:
		l.OptTransfer, o.OptTransfer = r.queue.ioOpt, block.OriginSysfs
	case r.queue.maxSectorsKB != 0:
		l.OptTransfer, o.OptTransfer = r.queue.maxSectorsKB<<10, block.OriginSysfs
	}
	if !r.q.device && r.queue.physical > l.PhysicalBlock {
		l.PhysicalBlock, o.PhysicalBlock = r.queue.physical, block.OriginSysfs
	}
}

// isMisaligned reports whether an error speaks of alignment: EINVAL. EIO is a
// dying disk, not a misaligned request.
func isMisaligned(err error) bool { return errors.Is(err, syscall.EINVAL) }

func powersOfTwo(vs ...uint32) bool {
	for _, v := range vs {
		if bits.OnesCount32(v) != 1 || v > block.MaxAlign {
			return false
		}
	}
	return true
}

func cachedText(cached bool) string {
	if cached {
		return ", but through the page cache"
	}
	return ""
}

// sameLimits compares all but the generation and the origins.
func sameLimits(a, b *block.Limits) bool {
	x, y := *a, *b
	x.Generation, y.Generation = 0, 0
	x.Origins, y.Origins = block.Origins{}, block.Origins{}
	return x == y
}

// alignText says the alignment and why it is believed, for people.
func alignText(l *block.Limits) string {
	if l.WriteAlign == 1 && l.Origins.WriteAlign == block.OriginDefault {
		return "any, through the page cache"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "requests of %d", l.ReadAlign)
	if l.WriteAlign != l.ReadAlign {
		fmt.Fprintf(&b, " (writes %d)", l.WriteAlign)
	}
	fmt.Fprintf(&b, " by %v, memory of %d by %v, segments of %d by %v", l.Origins.WriteAlign, l.MinMem, l.Origins.MinMem, l.SegmentAlign, l.Origins.SegmentAlign)
	return b.String()
}
