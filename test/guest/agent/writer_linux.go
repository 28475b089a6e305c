package main

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/test/guest/scenario"
)

// Bounds of a load.
const (
	maxDepth  = 256
	maxBlocks = 1 << 16
)

// reportEvery is how long news waits for more of it.
const reportEvery = 5 * time.Millisecond

// writer is a load that runs.
type writer struct {
	scenario.Writer
	disk disk
	gate gate
	stop chan struct{} // closed to end the load
	once sync.Once
	done chan struct{} // closed when all workers have ended

	writes, reads, flushes atomic.Int64

	mu       sync.Mutex // guards what follows; a worker owns its own blocks' versions while it is inside the gate
	err      error      // the first that happened
	versions []uint64   // acknowledged, of each block
	news     []scenario.Ack
}

// gate lets operations in until it is closed, and knows who is inside.
type gate struct {
	mu     sync.Mutex
	open   sync.Cond
	closed bool
	inside int
}

func (g *gate) enter() {
	g.mu.Lock()
	for g.closed {
		g.open.Wait()
	}
	g.inside++
	g.mu.Unlock()
}

func (g *gate) leave() {
	g.mu.Lock()
	g.inside--
	g.mu.Unlock()
}

func (g *gate) set(closed bool) (inside int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = closed
	g.open.Broadcast()
	return g.inside
}

func startWriter(c *call) (any, error) {
	var args scenario.Writer
	if err := c.into(&args); err != nil {
		return nil, err
	}
	if args.Depth < 1 || args.Depth > maxDepth || args.MaxRun < 1 || args.MaxRun > args.PerWorker ||
		args.PerWorker > maxBlocks/args.Depth || args.Block < scenario.Sector || args.Block%scenario.Sector != 0 || args.FlushEvery < 1 {
		return nil, errors.New("the load's figures are out of bounds")
	}
	d, err := awaitDisk(args.Device)
	if err != nil {
		return nil, err
	}
	w := &writer{Writer: args, disk: d, stop: make(chan struct{}), done: make(chan struct{}), versions: make([]uint64, args.Blocks())}
	w.gate.open.L = &w.gate.mu
	c.agent.writersMu.Lock()
	c.agent.writers[args.Name] = w
	c.agent.writersMu.Unlock()
	go w.run()
	if err := w.report(c); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.written(), w.err
}

// run runs the workers until the load is stopped or one of them fails.
func (w *writer) run() {
	var wg sync.WaitGroup
	for i := range w.Depth {
		wg.Go(func() {
			if err := w.work(i); err != nil {
				w.fail(fmt.Errorf("worker %d: %w", i, err))
			}
		})
	}
	wg.Wait()
	close(w.done)
}

func (w *writer) fail(err error) {
	w.mu.Lock()
	if w.err == nil {
		w.err = err
	}
	w.mu.Unlock()
	w.halt()
}

func (w *writer) halt() { w.once.Do(func() { close(w.stop) }) }

// report tells the host what was acknowledged, in the order in which it was,
// until the load has ended.
func (w *writer) report(c *call) error {
	for ended := false; !ended; {
		select {
		case <-w.done:
			ended = true
		case <-time.After(reportEvery):
		}
		w.mu.Lock()
		news := w.news
		w.news = nil
		w.mu.Unlock()
		if len(news) > 0 {
			if err := c.event(news); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *writer) written() scenario.Written {
	return scenario.Written{
		Writes: int(w.writes.Load()), Reads: int(w.reads.Load()), Flushes: int(w.flushes.Load()), Versions: w.versions,
	}
}

// worker is one of a load's, with the blocks from first on.
type worker struct {
	*writer
	id, first int
	version   uint64
	f         *direct
	rng       *rand.Rand
	want      []byte
}

func (w *writer) work(i int) error {
	f, err := openDirect(w.disk.path(), unix.O_RDWR, w.Block*w.MaxRun)
	if err != nil {
		return err
	}
	defer f.close()
	k := &worker{writer: w, id: i, first: i * w.PerWorker, version: w.Base, f: f,
		rng: rand.New(rand.NewPCG(w.Seed, uint64(i))), want: make([]byte, w.Block)}
	for n := 1; ; n++ {
		select {
		case <-w.stop:
			return nil
		default:
		}
		w.gate.enter()
		switch {
		case n%w.FlushEvery == 0:
			err = k.flush()
		case k.rng.IntN(4) == 0:
			err = k.readBack(k.first + k.rng.IntN(w.PerWorker))
		default:
			err = k.write()
		}
		w.gate.leave()
		if err != nil {
			return err
		}
	}
}

// write gives a run of the worker's blocks new versions.
func (k *worker) write() error {
	run := 1 + k.rng.IntN(k.MaxRun)
	block := k.first + k.rng.IntN(k.PerWorker-run+1)
	p := k.f.buf[:run*k.Block]
	for i := range run {
		scenario.Stamp(p[i*k.Block:(i+1)*k.Block], k.Seed, uint64(block+i), k.version+1+uint64(i))
	}
	if err := k.f.writeAt(p, k.Offset+int64(block)*int64(k.Block)); err != nil {
		return err
	}
	k.writes.Add(1)
	k.mu.Lock()
	for i := range run {
		k.versions[block+i] = k.version + 1 + uint64(i)
	}
	if k.Report {
		k.tell([3]uint64{uint64(block), uint64(run), k.version + 1})
	}
	k.mu.Unlock()
	k.version += uint64(run)
	return nil
}

// tell adds to the worker's latest news; the lock is held.
func (k *worker) tell(write [3]uint64) {
	if n := len(k.news); n > 0 && k.news[n-1].Worker == k.id && !k.news[n-1].Flushed {
		k.news[n-1].Writes = append(k.news[n-1].Writes, write)
		return
	}
	k.news = append(k.news, scenario.Ack{Worker: k.id, Writes: [][3]uint64{write}})
}

func (k *worker) flush() error {
	if err := unix.Fdatasync(k.f.fd); err != nil {
		return fmt.Errorf("flush: %w", err)
	}
	k.flushes.Add(1)
	if k.Report {
		k.mu.Lock()
		k.news = append(k.news, scenario.Ack{Worker: k.id, Flushed: true})
		k.mu.Unlock()
	}
	return nil
}

// readBack checks that a block holds the version last acknowledged.
func (k *worker) readBack(block int) error {
	k.mu.Lock()
	version := k.versions[block]
	k.mu.Unlock()
	if version == 0 {
		return nil // never written: what it holds is not the load's
	}
	if err := k.f.readAt(k.f.buf[:k.Block], k.Offset+int64(block)*int64(k.Block)); err != nil {
		return err
	}
	k.reads.Add(1)
	return same(k.f.buf[:k.Block], k.want, k.Seed, block, version)
}

// same compares a block's content with what it has by a version.
func same(got, scratch []byte, seed uint64, block int, version uint64) error {
	scenario.Stamp(scratch, seed, uint64(block), version)
	for at := 0; at < len(got); at += scenario.Sector {
		if !bytes.Equal(got[at:at+scenario.Sector], scratch[at:at+scenario.Sector]) {
			return fmt.Errorf("block %d, byte %d: want version %d, found what says %d", block, at, version, scenario.Stamped(got[at:]))
		}
	}
	return nil
}

func (a *agent) writer(c *call) (*writer, error) {
	var args scenario.WriterName
	if err := c.into(&args); err != nil {
		return nil, err
	}
	a.writersMu.Lock()
	defer a.writersMu.Unlock()
	if w := a.writers[args.Name]; w != nil {
		return w, nil
	}
	return nil, fmt.Errorf("no load is called %q", args.Name)
}

// checkWriter holds the load, waits until nothing is in flight, and checks
// each block. Then the load goes on.
func checkWriter(c *call) (any, error) {
	w, err := c.agent.writer(c)
	if err != nil {
		return nil, err
	}
	defer w.gate.set(false)
	inside := w.gate.set(true)
	for began := time.Now(); inside > 0; inside = w.gate.set(true) {
		if time.Since(began) > patience {
			return nil, fmt.Errorf("%d operations do not end in %v; %s/inflight: %s", inside, patience, w.disk, w.disk.text("inflight"))
		}
		time.Sleep(time.Millisecond)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return nil, w.err
	}
	out := w.written()
	out.Checked, err = checkBlocks(w.disk, w.Writer, func(block int, got, scratch []byte) error {
		if w.versions[block] == 0 {
			return nil
		}
		return same(got, scratch, w.Seed, block, w.versions[block])
	})
	return out, err
}

// checkBlocks reads the blocks of a load and checks each.
func checkBlocks(d disk, w scenario.Writer, check func(block int, got, scratch []byte) error) (int, error) {
	f, err := openDirect(d.path(), unix.O_RDONLY, w.Block*w.PerWorker)
	if err != nil {
		return 0, err
	}
	defer f.close()
	scratch := make([]byte, w.Block)
	checked := 0
	for first := 0; first < w.Blocks(); first += w.PerWorker {
		if err := f.readAt(f.buf, w.Offset+int64(first)*int64(w.Block)); err != nil {
			return checked, err
		}
		for i := range w.PerWorker {
			if err := check(first+i, f.buf[i*w.Block:(i+1)*w.Block], scratch); err != nil {
				return checked, err
			}
			checked++
		}
	}
	return checked, nil
}

func stopWriter(c *call) (any, error) {
	w, err := c.agent.writer(c)
	if err != nil {
		return nil, err
	}
	w.halt()
	return nil, nil
}

// verify checks the blocks of a load whose guest has died.
func verify(c *call) (any, error) {
	var args scenario.VerifyWork
	if err := c.into(&args); err != nil {
		return nil, err
	}
	if len(args.Least) != args.Writer.Blocks() {
		return nil, fmt.Errorf("%d versions for %d blocks", len(args.Least), args.Writer.Blocks())
	}
	d, err := awaitDisk(args.Writer.Device)
	if err != nil {
		return nil, err
	}
	out := scenario.Written{Versions: make([]uint64, len(args.Least))}
	out.Checked, err = checkBlocks(d, args.Writer, func(block int, got, scratch []byte) error {
		version := scenario.Stamped(got)
		out.Versions[block] = version
		if version < args.Least[block] {
			return fmt.Errorf("block %d: version %d was acknowledged, found what says %d", block, args.Least[block], version)
		}
		if version == 0 {
			return nil
		}
		return same(got, scratch, args.Writer.Seed, block, version)
	})
	return out, err
}
