// Package probe measures how a disk answers to requests of different shapes:
// what a misaligned buffer costs here, what scattered memory costs, and which
// engine is fastest. It reads; it writes only to a file of its own.
package probe

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/graph"
	"github.com/platter-storage/platter/internal/realenv"
)

// Options say what to measure.
type Options struct {
	Path string
	// Engines are values of the option aio to compare; those that the
	// driver does not take for this file are left out.
	Engines []string
	// Write measures writes too, to a temporary file beside Path.
	Write bool
	// CellTime is how long each cell is measured, in all its rounds.
	CellTime time.Duration
	// Progress, where set, hears what is measured next: the done-th part of
	// total, for reads and writes apart.
	Progress func(done, total int, what string)
}

// Sizes of a write test's file and of the area that is read.
const (
	writeFileSize = 64 << 20
	maxArea       = 8 << 30
)

// Measurement is the result.
type Measurement struct {
	// Area is how many bytes the measured offsets spread over; Holes says
	// that they read as holes, which never reach the device.
	Area  int64 `json:"area_bytes"`
	Holes bool  `json:"holes"`
	Rows  []Row `json:"rows"`
}

// Row is one shape of request, measured.
type Row struct {
	Op     string `json:"op"`
	Shape  string `json:"shape"`
	Engine string `json:"engine"` // what aio was set to
	Bytes  int    `json:"bytes"`  // of a request
	// Elements of memory in a request, and how many bytes the first byte's
	// address is off a multiple of 4096.
	Elements  int `json:"elements"`
	Misplaced int `json:"misplaced"`
	Depth     int `json:"depth"` // requests at once
	// Requests per second, the median over the rounds; Spread is the range
	// over the rounds, as a part of the median.
	Rate   float64 `json:"requests_per_second"`
	Spread float64 `json:"spread"`
	P50    int64   `json:"p50_ns"`
	P99    int64   `json:"p99_ns"`
	// Ways are those that most of the requests took inside Platter.
	Ways []string `json:"ways"`
}

// MiBPerSecond is the row's throughput.
func (r *Row) MiBPerSecond() float64 { return r.Rate * float64(r.Bytes) / (1 << 20) }

// Run measures. The disk may be in use meanwhile, by others too.
func Run(ctx context.Context, o Options) (m *Measurement, err error) {
	env := realenv.New(slog.New(slog.DiscardHandler), 0)
	g := graph.New(env)
	defer func() {
		if e := g.Close(); err == nil {
			err = e
		}
	}()
	r := &runner{ctx: ctx, env: env, graph: g, o: o}
	m = &Measurement{}
	if err := r.reads(m); err != nil {
		return nil, err
	}
	if o.Write {
		if err := r.writes(m); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// runner measures on nodes of one graph.
type runner struct {
	ctx   context.Context
	env   *block.Env
	graph *graph.Graph
	o     Options
}

// open opens path as serve would, but takes no lock.
func (r *runner) open(path, aio string, readOnly bool) (*block.Child, func(), error) {
	// As options, because a path may look like something else.
	in, err := r.graph.Add(r.ctx, block.Values{"driver": "raw", "file.driver": "file", "file.filename": path, "file.cache": "auto", "file.locking": "off", "file.aio": aio}, readOnly)
	if err != nil {
		return nil, nil, err
	}
	perm := block.PermRead
	if !readOnly {
		perm |= block.PermWrite
	}
	c, err := in.NewChild("probe", block.RoleRoot, perm, block.PermAll)
	if err != nil {
		return nil, nil, err
	}
	return c, func() {
		c.Close()
		r.graph.Remove(in.Name()) // an error of closing what was only read tells nothing here
	}, nil
}

// reads measures reads of the disk itself: all shapes as serve would open it,
// and many requests at once with each engine.
func (r *runner) reads(m *Measurement) error {
	c, done, err := r.open(r.o.Path, "auto", true)
	if err != nil {
		return err
	}
	defer done()
	a, err := findArea(r.env, c)
	if err != nil {
		return err
	}
	m.Area, m.Holes = a.size(), a.holes
	cells := a.cells(c, block.OpRead)
	for _, aio := range r.o.Engines {
		c, done, err := r.open(r.o.Path, aio, true)
		if err != nil {
			continue // the driver does not take this engine for this file
		}
		defer done()
		cells = append(cells, newCell(c, a, block.OpRead, aio, manyAtOnce))
	}
	rows, err := r.measure(cells)
	m.Rows = append(m.Rows, rows...)
	return err
}

// writes measures writes to a file of the probe's own.
func (r *runner) writes(m *Measurement) error {
	f, err := os.CreateTemp(filepath.Dir(r.o.Path), ".platter-probe-*")
	if err != nil {
		return fmt.Errorf("--write-test needs a file beside %s: %w", r.o.Path, err)
	}
	defer os.Remove(f.Name())
	if err := fill(f); err != nil {
		return fmt.Errorf("--write-test: %w", err)
	}
	c, done, err := r.open(f.Name(), "auto", false)
	if err != nil {
		return err
	}
	defer done()
	a := &area{runs: []run{{0, writeFileSize}}}
	rows, err := r.measure(a.cells(c, block.OpWrite))
	m.Rows = append(m.Rows, rows...)
	return err
}

// fill writes the whole file, so that what is measured is not its allocation.
func fill(f *os.File) error {
	defer f.Close()
	b := make([]byte, 1<<20)
	for i := range b {
		b[i] = byte(i*7 + 1)
	}
	for n := 0; n < writeFileSize; n += len(b) {
		if _, err := f.Write(b); err != nil {
			return err
		}
	}
	return f.Sync()
}
