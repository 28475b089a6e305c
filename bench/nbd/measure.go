package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/platter-storage/platter/bench/sample"
)

// cell is what came of one row on one server, a value for each round.
type cell struct {
	Server string        `json:"server"`
	Note   string        `json:"note,omitempty"`
	Rate   sample.Rounds `json:"rate"`   // requests a second
	CPU    sample.Rounds `json:"cpu_us"` // of the server, in microseconds a request
	P50    sample.Rounds `json:"p50_us,omitempty"`
	P99    sample.Rounds `json:"p99_us,omitempty"`
	// Again: the second instance of the first server, which shows the noise.
	Again bool `json:"again,omitempty"`
	// Unlike: it does not do what the disk's name says (see Note), and is
	// not compared with.
	Unlike bool `json:"unlike,omitempty"`
}

// outcome is one line of the table for all servers.
type outcome struct {
	Disk  string `json:"disk"`
	Row   string `json:"row"`
	About string `json:"about"`
	Block int    `json:"block"` // bytes a request
	Cells []cell `json:"cells"`
}

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
func (p *plan) run(ctx context.Context, show func(outcome)) error {
	for _, d := range p.disks {
		if err := p.runDisk(ctx, d, show); err != nil {
			return err
		}
	}
	return nil
}

// runDisk starts all servers of a disk, the first of them twice, and runs the
// rows on them, a round at a time, in turns.
func (p *plan) runDisk(ctx context.Context, d disk, show func(outcome)) (err error) {
	var servers []*server
	var places []*place
	defer func() {
		for _, s := range servers {
			err = errors.Join(err, s.end())
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

func (p *plan) runRow(ctx context.Context, d disk, r row, servers []*server) (outcome, error) {
	out := outcome{Disk: d.name, Row: r.name, About: r.about, Block: r.unit(), Cells: make([]cell, len(servers))}
	for i, s := range servers {
		out.Cells[i] = cell{Server: s.name, Note: s.note, Unlike: s.unlike, Again: i == len(servers)-1}
		if r.tool != ownClient {
			continue
		}
		// Not counted: caches and heaps grow to what the row needs.
		if _, _, err := p.one(d, r, s, p.seconds/4); err != nil {
			return out, fmt.Errorf("%s %s on %s: %w", d.name, r.name, s.name, err)
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
				return out, fmt.Errorf("%s %s on %s: %w", d.name, r.name, s.name, err)
			}
			out.Cells[i].add(l, cpu)
		}
	}
	return out, nil
}

func (c *cell) add(l load, cpu time.Duration) {
	c.Rate = append(c.Rate, float64(l.ops)/l.took.Seconds())
	c.CPU = append(c.CPU, float64(cpu.Microseconds())/float64(max(l.ops, 1)))
	if p50 := l.lat.Percentile(50); p50 > 0 {
		c.P50 = append(c.P50, float64(p50.Nanoseconds())/1000)
		c.P99 = append(c.P99, float64(l.lat.Percentile(99).Nanoseconds())/1000)
	}
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
		undo, err := pin(s.pid)
		if err != nil {
			return load{}, 0, err
		}
		defer undo() // a server that is gone is reported below
	}
	before, err := s.cpu()
	if err != nil {
		return load{}, 0, err
	}
	l, err := client()
	if err != nil {
		return load{}, 0, err
	}
	after, err := s.cpu()
	return l, after - before, err
}

func (p *plan) contentOf(d disk) content {
	switch {
	case !p.verify:
		return nil
	case d.content:
		return filled
	}
	return zeroes
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
