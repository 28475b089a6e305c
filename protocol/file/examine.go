package file

import (
	"errors"
	"fmt"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/engine"
)

// Examination is what there is to know of a file before it is used as a disk:
// where it lies, what alignment direct I/O needs there and who says so, and
// which engines would work.
type Examination struct {
	Path string `json:"path"`
	// Kind is "regular file" or "block device".
	Kind string `json:"kind"`
	// FileSystem is its type, empty for a device.
	FileSystem string `json:"file_system,omitempty"`
	// Device is the block device that the file lies on, or is: "254:0 vda".
	Device string `json:"device,omitempty"`
	// Mount is how an NFS server is reached.
	Mount *Mount `json:"mount,omitempty"`
	Size  int64  `json:"size"`
	// Allocated is the space that the file takes, in bytes; -1 unknown.
	Allocated int64 `json:"allocated"`
	// Direct: direct I/O works. DirectReason says why, or why not.
	Direct       bool   `json:"direct"`
	DirectReason string `json:"direct_reason"`
	// NotWorthIt: it works, but cache=auto would not use it; DirectReason
	// says why.
	NotWorthIt bool `json:"not_worth_it,omitempty"`
	// ByPageCache: direct reads are served through the page cache.
	ByPageCache bool `json:"by_page_cache,omitempty"`
	// Answers are what each source said, in the order of asking.
	Answers []Answer `json:"answers"`
	// Disagreement says how storage refused what it states.
	Disagreement string `json:"disagreement,omitempty"`
	// Limits is what would be used: of direct I/O where that works.
	Limits []Limit `json:"limits"`
	// Engine is what would carry requests, and EngineReason why; Engines
	// what each engine's trial said.
	Engine       string        `json:"engine"`
	EngineReason string        `json:"engine_reason"`
	Engines      engine.Report `json:"engines"`
}

// Limit is one resolved limit.
type Limit struct {
	Name string `json:"name"`
	// Bytes, but for max_segments, which is a number of elements. 0: none.
	Value  int64  `json:"value"`
	Origin string `json:"origin"`
}

// placed is what the system knows of where a file lies.
type placed struct {
	device    string
	allocated int64
	mount     *Mount // nil: no NFS
}

// Examine asks every source about the file at path. It only reads, and takes
// no locks: the file may be in use. opts are options of the driver, of which
// aio, request-align, mem-align and segment-align matter.
func Examine(path string, opts block.Values) (*Examination, error) {
	vals := block.Values{"cache": "none", "locking": "off"}
	for k, v := range opts {
		vals[k] = v
	}
	vals["filename"] = path
	d, err := block.FindDriver("file")
	if err != nil {
		return nil, err
	}
	o, err := d.Check(vals)
	if err != nil {
		return nil, err
	}
	c, err := parseOptions(o, true)
	if err != nil {
		return nil, err
	}
	return examine(&c, openSystem)
}

func examine(c *config, open opener) (*Examination, error) {
	x := &Examination{Path: c.path, Kind: "regular file", Allocated: -1, Engines: engine.Probe()}
	sys, err := open(c, true)
	refused := err
	if errors.Is(err, errNoDirect) {
		sys, err = open(c, false)
	}
	if err != nil {
		return nil, err
	}
	defer sys.close()
	if x.Size, err = sys.size(); err != nil {
		return nil, err
	}
	if sys.isDevice() {
		x.Kind = "block device"
	}
	p := sys.place()
	x.Device, x.Allocated, x.Mount = p.device, p.allocated, p.mount
	return x, x.resolve(c, sys, refused)
}

// resolve fills in what the sources say. refused is why direct I/O could not
// even be opened, or nil.
func (x *Examination) resolve(c *config, sys system, refused error) error {
	q := query{direct: refused == nil, device: sys.isDevice(), forced: c.forced, thorough: true, generation: 1}
	res, err := resolve(sys, q)
	if q.direct && errors.Is(err, errNoDirect) {
		refused, q.direct = err, false
		answers := res.answers
		res, err = resolve(sys, q)
		res.answers = answers
	}
	if err != nil {
		return err
	}
	x.Direct, x.DirectReason = refused == nil, "works, with "+alignText(res.limits)
	if err := notWorthIt(res); refused == nil && err != nil {
		x.NotWorthIt = true
		x.DirectReason = fmt.Sprintf("accepted, but cache=auto does without: %v", err)
	}
	if refused != nil {
		x.DirectReason = refused.Error()
	}
	x.FileSystem, x.ByPageCache, x.Answers, x.Disagreement = res.fs.name, res.byCache, res.answers, res.disagreement
	x.Limits = limitList(res.limits)
	kind, reason, err := engine.Choose(c.aio, engine.FileFacts{Direct: x.Direct, NeverBlocks: res.fs.memory, NoWait: true})
	if err != nil {
		x.EngineReason = err.Error()
		return nil
	}
	x.Engine, x.EngineReason = kind.String(), reason
	return nil
}

// limitList is l as a list, for printing.
func limitList(l *block.Limits) []Limit {
	o := &l.Origins
	return []Limit{
		{"read_align", int64(l.ReadAlign), o.ReadAlign.String()},
		{"write_align", int64(l.WriteAlign), o.WriteAlign.String()},
		{"segment_align", int64(l.SegmentAlign), o.SegmentAlign.String()},
		{"min_mem", int64(l.MinMem), o.MinMem.String()},
		{"opt_mem", int64(l.OptMem), o.OptMem.String()},
		{"opt_transfer", int64(l.OptTransfer), o.OptTransfer.String()},
		{"max_transfer", int64(l.MaxTransfer), o.MaxTransfer.String()},
		{"max_segments", int64(l.MaxSegments), o.MaxSegments.String()},
		{"zero_align", int64(l.ZeroAlign), o.ZeroAlign.String()},
		{"discard_align", int64(l.DiscardAlign), o.DiscardAlign.String()},
		{"max_zero", l.MaxZero, o.MaxZero.String()},
		{"max_discard", l.MaxDiscard, o.MaxDiscard.String()},
		{"logical_block", int64(l.LogicalBlock), o.LogicalBlock.String()},
		{"physical_block", int64(l.PhysicalBlock), o.PhysicalBlock.String()},
	}
}
