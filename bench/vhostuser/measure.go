package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"time"

	"github.com/platter-storage/platter/bench/compare"
	"github.com/platter-storage/platter/bench/content"
	"github.com/platter-storage/platter/bench/process"
)

// target is what one row is run on: a server, or fio on a file.
type target struct {
	*process.Process        // nil: fio
	name             string // its column in the table
	note             string
	unlike           bool
	file             string
}

// plan is what to measure, and how.
type plan struct {
	rows    []row
	disks   []disk
	peers   []peer
	fio     bool
	rounds  int
	seconds float64
	verify  bool
	size    int64
	dir     string // on the file system under test
	shm     string // on tmpfs
	log     io.Writer
}

// run measures every row on every disk; show gets each as it is complete.
func (p *plan) run(ctx context.Context, show func(compare.Outcome)) error {
	for _, d := range p.disks {
		if err := p.runDisk(ctx, d, show); err != nil {
			return err
		}
	}
	return nil
}

// runDisk starts all servers of a disk, the first of them twice, and runs the
// rows on them, a round at a time, in turns.
func (p *plan) runDisk(ctx context.Context, d disk, show func(compare.Outcome)) (err error) {
	var chosen []row
	for _, r := range p.rows {
		if r.isOn(d) {
			chosen = append(chosen, r)
		}
	}
	if len(chosen) == 0 {
		return nil
	}
	var targets []*target
	defer func() {
		for _, t := range targets {
			if t.Process != nil {
				err = errors.Join(err, t.End())
			}
		}
	}()
	for _, s := range p.wanted(d) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		at, err := makePlace(p.dir, p.shm, s.name, p.size)
		defer at.remove() // what is left is in the folder that goes with the program
		if err != nil {
			return err
		}
		t, err := p.bring(s.peer, s.name, d, at)
		if t != nil {
			targets = append(targets, t)
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(p.log, "disk %s: %s is ready\n", d.name, s.name)
	}
	for _, r := range chosen {
		out, err := p.runRow(ctx, d, r, targets)
		if err != nil {
			return err
		}
		show(out)
	}
	return nil
}

// column is a peer, nil for fio, under a name.
type column struct {
	peer *peer
	name string
}

// wanted are the columns for a disk: the first peer comes last once more.
func (p *plan) wanted(d disk) (all []column) {
	for i := range p.peers {
		if p.peers[i].serves(d) {
			all = append(all, column{&p.peers[i], p.peers[i].name})
		}
	}
	if p.fio && d.content {
		all = append(all, column{nil, "fio"})
	}
	if len(all) > 0 && all[0].peer != nil {
		all = append(all, column{all[0].peer, all[0].name + "-again"})
	}
	return all
}

// bring starts a server with its disk and checks that it serves it.
func (p *plan) bring(pr *peer, name string, d disk, at *place) (*target, error) {
	file, err := at.file(d)
	if err != nil {
		return nil, err
	}
	t := &target{name: name, file: file, unlike: true, note: "io_uring on the file itself; CPU is fio's own, its start included"}
	if pr == nil {
		return t, nil
	}
	t.note, t.unlike = pr.note, pr.unlike
	if t.Process, err = process.Start(name, process.Command{Args: pr.args(d, at.socket(), file, at.size), Socket: at.socket()}); err != nil {
		return nil, err
	}
	if err := verify(t.Process, d); err != nil {
		return t, fmt.Errorf("%s, disk %s: %w", name, d.name, err)
	}
	return t, nil
}

// verify checks contents through the server: reads everywhere, and writes that
// are read back.
func verify(s *process.Process, d disk) error {
	some := workload{random: true, block: 4 * kib, depth: 16, queues: 2}
	if !d.content {
		return once(s, some, content.Zeroes, 256)
	}
	if err := once(s, some, content.Filled, 512); err != nil {
		return err
	}
	for _, c := range []content.Content{content.Pattern(1), content.Filled} {
		for _, write := range []bool{true, false} {
			if err := once(s, workload{write: write, block: 64 * kib, depth: 8, queues: 1}, c, 32); err != nil {
				return err
			}
		}
	}
	return nil
}

// once runs a workload of total requests a queue.
func once(s *process.Process, w workload, c content.Content, total int64) error {
	cl, err := connect(s.Socket, w)
	if err != nil {
		return err
	}
	_, err = cl.run(10*time.Minute, total, c)
	return errors.Join(err, cl.leave())
}

func (p *plan) runRow(ctx context.Context, d disk, r row, targets []*target) (compare.Outcome, error) {
	if r.asks {
		targets = slices.DeleteFunc(slices.Clone(targets), func(t *target) bool { return t.Process == nil })
	}
	// Loops that never wait must not keep the runtime from the rest.
	runtime.GOMAXPROCS(max(runtime.NumCPU(), r.load.queues+2))
	out := compare.Outcome{Disk: d.name, Row: r.name, About: r.about, Block: r.load.block, Cells: make([]compare.Cell, len(targets))}
	for i, t := range targets {
		out.Cells[i] = compare.Cell{Server: t.name, Note: t.note, Unlike: t.unlike, Again: t.Process != nil && i == len(targets)-1 && i > 0}
		// Not counted: caches and heaps grow to what the row needs.
		if t.Process != nil {
			if _, _, err := p.one(d, r, t, p.seconds/4); err != nil {
				return out, fmt.Errorf("%s %s on %s: %w", d.name, r.name, t.name, err)
			}
		}
	}
	for round := range p.rounds {
		fmt.Fprintf(p.log, "disk %s: %s, round %d of %d\n", d.name, r.name, round+1, p.rounds)
		for i, t := range targets {
			if ctx.Err() != nil {
				return out, ctx.Err()
			}
			l, cpu, err := p.one(d, r, t, p.seconds)
			if err != nil {
				return out, fmt.Errorf("%s %s on %s: %w", d.name, r.name, t.name, err)
			}
			out.Cells[i].Add(l.ops, l.took, cpu, &l.lat)
		}
	}
	return out, nil
}

// one is one run of a row on a target, and the processor time it cost there.
func (p *plan) one(d disk, r row, t *target, seconds float64) (load, time.Duration, error) {
	length := time.Duration(seconds * float64(time.Second))
	if t.Process == nil {
		return runFio(d, r, t.file, p.size, length)
	}
	c, err := connect(t.Socket, r.load)
	if err != nil {
		return load{}, 0, err
	}
	l, cpu, err := p.drive(c, d, r, t, length)
	return l, cpu, errors.Join(err, c.leave())
}

func (p *plan) drive(c *client, d disk, r row, t *target, length time.Duration) (l load, cpu time.Duration, err error) {
	if r.load.pinned {
		undo, err := process.Pin(t.Pid)
		if err != nil {
			return l, 0, err
		}
		defer undo() // a server that is gone is reported below
	}
	before, err := t.CPU()
	if err != nil {
		return l, 0, err
	}
	if r.asks {
		l, err = c.runAsking(length, p.contentOf(d))
	} else {
		l, err = c.run(length, 0, p.contentOf(d))
	}
	if err != nil {
		return l, 0, err
	}
	after, err := t.CPU()
	return l, after - before, err
}

func (p *plan) contentOf(d disk) content.Content {
	switch {
	case !p.verify:
		return nil
	case d.content:
		return content.Filled
	}
	return content.Zeroes
}
