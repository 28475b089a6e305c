package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/platter-storage/platter/bench/compare"
	"github.com/platter-storage/platter/bench/content"
	"github.com/platter-storage/platter/bench/process"
)

// plan is what to measure, and how.
type plan struct {
	rows    []row
	disks   []disk
	peers   []peer
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
	var servers []*server
	var places []*place
	defer func() {
		for _, s := range servers {
			err = errors.Join(err, s.End())
		}
		for _, at := range places {
			err = errors.Join(err, at.remove())
		}
	}()
	bring := func(pr peer, name string) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		at, err := makePlace(p.dir, p.shm, name, p.size)
		places = append(places, at)
		if err != nil {
			return err
		}
		s, err := serveDisk(pr, name, d, at)
		if s != nil {
			servers = append(servers, s)
			fmt.Fprintf(p.log, "disk %s: %s serves\n", d.name, name)
		}
		return err
	}
	var first *peer
	for i, pr := range p.peers {
		before := len(servers)
		if err := bring(pr, pr.name); err != nil {
			return err
		}
		if first == nil && len(servers) > before {
			first = &p.peers[i]
		}
	}
	if first == nil {
		return nil
	}
	if err := bring(*first, first.name+"-again"); err != nil {
		return err
	}
	for _, r := range p.rows {
		if r.content && !d.content {
			continue
		}
		out, err := p.runRow(ctx, d, r, servers)
		if err != nil {
			return err
		}
		show(out)
	}
	return nil
}

func (p *plan) runRow(ctx context.Context, d disk, r row, servers []*server) (compare.Outcome, error) {
	out := compare.Outcome{Disk: d.name, Row: r.name, About: r.about, Block: r.unit(), Cells: make([]compare.Cell, len(servers))}
	for i, s := range servers {
		out.Cells[i] = compare.Cell{Server: s.Name, Note: s.note, Unlike: s.unlike, Again: i == len(servers)-1}
		if r.tool != ownClient {
			continue
		}
		// Not counted: caches and heaps grow to what the row needs.
		if _, _, err := p.one(d, r, s, p.seconds/4); err != nil {
			return out, fmt.Errorf("%s %s on %s: %w", d.name, r.name, s.Name, err)
		}
	}
	for round := range p.rounds {
		fmt.Fprintf(p.log, "disk %s: %s, round %d of %d\n", d.name, r.name, round+1, p.rounds)
		for i, s := range servers {
			if ctx.Err() != nil {
				return out, ctx.Err()
			}
			l, cpu, err := p.one(d, r, s, p.seconds)
			if err != nil {
				return out, fmt.Errorf("%s %s on %s: %w", d.name, r.name, s.Name, err)
			}
			out.Cells[i].Add(l.ops, l.took, cpu, &l.lat)
		}
	}
	return out, nil
}

// one is one run of a row on a server, and the processor time it cost there.
func (p *plan) one(d disk, r row, s *server, seconds float64) (load, time.Duration, error) {
	var client func() (load, error)
	length := time.Duration(seconds * float64(time.Second))
	switch r.tool {
	case nbdcopy:
		client = func() (load, error) { return runCopy(s, p.size) }
	case fio:
		client = func() (load, error) { return runFio(s, p.size, length) }
	default:
		f, err := dialAll(s, r.load, p.contentOf(d))
		if err != nil {
			return load{}, 0, err
		}
		defer f.leave() // what matters is said by then
		client = func() (load, error) { return f.run(length, 0) }
	}
	if r.load.pinned {
		undo, err := process.Pin(s.Pid)
		if err != nil {
			return load{}, 0, err
		}
		defer undo() // a server that is gone is reported below
	}
	before, err := s.CPU()
	if err != nil {
		return load{}, 0, err
	}
	l, err := client()
	if err != nil {
		return load{}, 0, err
	}
	after, err := s.CPU()
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

// unit is the number of bytes that counts as one request.
func (r row) unit() int {
	switch r.tool {
	case nbdcopy:
		return mib
	case fio:
		return 4 * kib
	}
	return r.load.block
}
