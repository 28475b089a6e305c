package sim

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/realenv"
)

// Proof says what to prove of which format.
type Proof struct {
	Driver string
	// Create and Open are the format's options. Storage is the size in bytes
	// of the file, 0 where the format sets it.
	Create, Open block.Values
	Storage      int64
	// DataFile: content lies in a second disk, the option data-file.
	DataFile bool
	// Sectors is the size of the disk, Backing that of what lies below it,
	// 0 for nothing.
	Sectors, Backing int64
	// Steps is the length of the list of operations, Longest that of a
	// request in sectors.
	Steps   int
	Longest int64
	// Weights are how often each kind of operation is drawn; 0 is never.
	Weights Weights
	Amends  []block.Values
	Seed    uint64
	// PerMoment is how many states at each time are looked at. Of Deep
	// states one is written to, closed and checked again, and its snapshots
	// are read.
	PerMoment, Deep int
	// Repair: a state that the check calls corrupt may need a repair, which
	// opening does not do by itself.
	Repair bool
	// Between, if not nil, is put between the format and its file.
	Between func(n *block.Child) block.Node
	// Flushed, if not nil, is called after each flush of the format and counts
	// as part of it.
	Flushed func() error
}

// Weights are relative.
type Weights struct {
	Write, FUA, Zero, Discard, Flush, Reopen, Burst, Resize int
	Snapshot, Bitmap, Amend, Compressed                     int
}

// Result is what a proof has seen: so many states, of which so many had leaks,
// were mended by opening them for writing, or were looked at deeply.
type Result struct {
	Steps, Events, States, Leaking, Mended, Deep int
	Leaks                                        int64
}

// Add sums.
func (r *Result) Add(o Result) {
	r.Steps, r.Events, r.States, r.Leaking, r.Deep = r.Steps+o.Steps, r.Events+o.Events, r.States+o.States, r.Leaking+o.Leaking, r.Deep+o.Deep
	r.Leaks, r.Mended = r.Leaks+o.Leaks, r.Mended+o.Mended
}

// run is a proof at work.
type run struct {
	Proof
	env     *block.Env
	queue   *block.Queue
	log     *Log
	disks   []*Disk
	backing *Disk
	rng     *rand.Rand
	x       expectation
	mu      sync.Mutex // guards x while steps run side by side
	next    content
	n       *opened
	result  Result
	names   int
}

// opened is a node and all that was opened for it.
type opened struct {
	c     *block.Child
	in    *block.Instance
	queue *block.Queue
	below []*block.Instance
	edges []*block.Child
}

// Run runs the operations and looks at the states. The error says which seed,
// state and sector is wrong.
func (p Proof) Run() (Result, error) {
	r := &run{Proof: p, log: &Log{}, rng: rand.New(rand.NewPCG(p.Seed, 3))}
	r.env = realenv.New(slog.New(slog.NewTextHandler(io.Discard, nil)), 0)
	r.queue = block.NewQueue(r.env, block.NewQueueGroup())
	err := r.all()
	if e := r.env.CloseBuffers(); err == nil {
		err = e
	}
	if err != nil {
		err = fmt.Errorf("seed %d: %w", p.Seed, err)
	}
	return r.result, err
}

func (r *run) all() error {
	if err := r.create(); err != nil {
		return fmt.Errorf("create: %w", err)
	}
	if err := r.open(); err != nil {
		return fmt.Errorf("open: %w", err)
	}
	for i := range r.Steps {
		if err := r.step(); err != nil {
			return fmt.Errorf("operation %d, %s: %w", i, r.x.steps[len(r.x.steps)-1].what, err)
		}
	}
	if err := errors.Join(r.current(), r.n.close()); err != nil {
		return fmt.Errorf("after all operations: %w", err)
	}
	r.x.settle()
	r.result.Steps, r.result.Events = len(r.x.steps), r.log.Events()
	n, err := r.log.States(r.Seed, r.PerMoment, r.look)
	r.result.States = n
	return err
}

// create makes the image on disks that record nothing, and begins the record.
func (r *run) create() error {
	file, data := newDisk(make([]byte, r.Storage)), newDisk(make([]byte, r.Sectors*Sector))
	d, err := block.FindDriver(r.Driver)
	if err != nil {
		return err
	}
	if d.Create != nil {
		if err := r.createOn(d, r.Proof.Create, file, r.Sectors*Sector); err != nil {
			return err
		}
	}
	r.disks = []*Disk{r.log.NewDisk(file.Content())}
	if r.DataFile {
		r.disks = append(r.disks, r.log.NewDisk(data.Content()))
	}
	if r.Backing > 0 {
		b := make([]byte, r.Backing*Sector)
		backed.fill(b, 0)
		r.backing = newDisk(b)
		r.backing.info.ReadOnly = true
	}
	t := r.log.Tick()
	r.x.steps = []*step{{what: "create", begin: 0, end: t, fua: true}}
	r.x.steps[0].durableAt = 1
	for at := range r.Sectors {
		c := change{}
		if at < r.Backing {
			c.is, c.or = backed, backed
		}
		r.x.sectors = append(r.x.sectors, []change{c})
	}
	r.x.sizes = []sized{{0, r.Sectors}}
	return nil
}

func (r *run) open() (err error) {
	nodes := make([]block.Node, len(r.disks))
	for i, d := range r.disks {
		nodes[i] = d
	}
	r.n, err = r.openOn(nodes, r.Proof.Open, false, r.Between)
	return err
}

// current compares the disk, as it is while nothing was cut.
func (r *run) current() error {
	b, err := r.n.read()
	if err != nil {
		return err
	}
	for at := range int64(len(b)) / Sector {
		got, whole := contentOf(b[at*Sector:(at+1)*Sector], at)
		if c := r.x.sectors[at][len(r.x.sectors[at])-1]; !whole || got != c.is {
			return r.x.wrong(r.log.now, at, got, whole)
		}
	}
	return nil
}

// look opens a state and holds it against the expectation.
func (r *run) look(s *State) error {
	fail := func(err error) error { return fmt.Errorf("%w\n%s", err, s) }
	// A deep look writes, on copies of its own.
	deep := r.Deep > 0 && r.rng.IntN(r.Deep) == 0
	nodes := make([]block.Node, len(s.Content))
	for i, b := range s.Content {
		nodes[i] = newDisk(b)
	}
	sick := r.check(nodes[0])
	n, err := r.openOn(nodes, r.Proof.Open, true, nil)
	if err != nil {
		return fail(fmt.Errorf("the image does not open: %w", err))
	}
	err = r.compare(s.At, n)
	if e := n.close(); err == nil {
		err = e
	}
	if corrupt := (*errCorrupt)(nil); err == nil && errors.As(sick, &corrupt) {
		r.result.Mended++
		if e := r.mend(nodes); e != nil {
			err = fmt.Errorf("%w; and when it was opened for writing: %w", sick, e)
		}
	} else if err == nil {
		err = sick
	}
	if err == nil && deep {
		err = r.deep(s, nodes)
	}
	if err != nil {
		return fail(err)
	}
	return nil
}

// compare holds the content against what may be there after a cut at t.
func (r *run) compare(t uint64, n *opened) error {
	b, err := n.read()
	if err != nil {
		return fmt.Errorf("reading: %w", err)
	}
	if err := r.x.size(t, int64(len(b))/Sector); err != nil {
		return err
	}
	for at := range int64(len(b)) / Sector {
		if err := r.x.sector(t, at, b[at*Sector:(at+1)*Sector]); err != nil {
			return err
		}
	}
	return nil
}
