// Command directwrite measures what the address of a buffer costs in direct
// I/O: many sequential 4096-byte writes to a file opened with O_DIRECT, from a
// buffer that starts at a page and from one 512 bytes past it. It runs the two
// in turns, several rounds, with bare system calls and through this library,
// and prints times, their ratio and its spread, and the write requests that
// the device completed meanwhile. Whoever else uses the device is counted too:
// run it on a quiet machine.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/bench/sample"
)

// shifts are the places of the buffer within a page that are compared; the
// first is the one that ratios are to.
var shifts = []int{0, 512}

type options struct {
	dir    string
	writes int
	block  int
	rounds int
	ways   string
}

func main() {
	var o options
	flag.StringVar(&o.dir, "dir", "", "folder on the file system to measure (default: the system's temporary folder)")
	flag.IntVar(&o.writes, "writes", 100_000, "writes of one run")
	flag.IntVar(&o.block, "block", 4096, "bytes of one write")
	flag.IntVar(&o.rounds, "rounds", 5, "rounds, of which the median is shown")
	flag.StringVar(&o.ways, "ways", "", "ways to write, separated by commas (default: all): "+wayNames())
	flag.Parse()
	if err := o.run(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench/directwrite:", err)
		os.Exit(1)
	}
}

// column is what came of one way with the buffer at one shift.
type column struct {
	seconds, requests sample.Rounds
}

func (o *options) run(w io.Writer) (err error) {
	chosen, err := chooseWays(o.ways)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(o.dir, "platter-directwrite-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	dev, err := deviceOf(dir)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%d writes of %d bytes, in order; %d rounds in turns; device %s\n\n", o.writes, o.block, o.rounds, dev.name)
	fmt.Fprintf(w, "%-24s %8s %10s   %-22s %16s %16s\n", "way", "at +0", "at +512", "time ratio (low–high)", "requests at +0", "at +512")
	for _, way := range chosen {
		columns, ratios, err := o.measure(dir, dev, way)
		if err != nil {
			return fmt.Errorf("%s: %w", way.name, err)
		}
		low, high := ratios.Spread()
		fmt.Fprintf(w, "%-24s %6.2f s %8.2f s   %.3f (%.3f–%.3f)  %16.0f %16.0f\n", way.name,
			columns[0].seconds.Median(), columns[1].seconds.Median(), ratios.Median(), low, high,
			columns[0].requests.Median(), columns[1].requests.Median())
	}
	return nil
}

// measure runs one way at all shifts in turns. The ratios are those of one
// round each, so that a slow moment of the machine weighs on both sides.
func (o *options) measure(dir string, dev device, way way) ([]column, sample.Rounds, error) {
	columns := make([]column, len(shifts))
	var ratios sample.Rounds
	for round := range o.rounds {
		for i := range shifts {
			// Every other round goes the other way round.
			at := i
			if round%2 == 1 {
				at = len(shifts) - 1 - i
			}
			took, requests, err := o.once(dir, dev, way, shifts[at])
			if err != nil {
				return nil, nil, err
			}
			columns[at].seconds = append(columns[at].seconds, took.Seconds())
			columns[at].requests = append(columns[at].requests, float64(requests))
		}
		ratios = append(ratios, columns[1].seconds[round]/columns[0].seconds[round])
	}
	return columns, ratios, nil
}

// once is one run on a fresh file; its making and removal are not counted.
func (o *options) once(dir string, dev device, way way, shift int) (took time.Duration, requests int64, err error) {
	name := filepath.Join(dir, "file")
	if err := way.prepare(name, int64(o.writes)*int64(o.block)); err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, os.Remove(name)) }()
	buffer, err := bufferAt(shift, o.block)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, unix.Munmap(buffer.whole)) }()
	write, finish, err := way.open(name)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, finish()) }()

	before, err := dev.writes()
	if err != nil {
		return 0, 0, err
	}
	start := time.Now()
	for i := range o.writes {
		if err := write(buffer.part, int64(i)*int64(o.block)); err != nil {
			return 0, 0, fmt.Errorf("write %d of %d: %w", i+1, o.writes, err)
		}
	}
	took = time.Since(start)
	after, err := dev.writes()
	return took, after - before, err
}

type buffer struct{ whole, part []byte }

// bufferAt is n bytes that start shift bytes into a page.
func bufferAt(shift, n int) (buffer, error) {
	whole, err := unix.Mmap(-1, 0, shift+n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return buffer{}, fmt.Errorf("memory for a buffer: %w", err)
	}
	part := whole[shift : shift+n]
	for i := range part {
		part[i] = byte(i*7 + 1) // not zeroes: every page is really there
	}
	return buffer{whole, part}, nil
}

func chooseWays(list string) ([]way, error) {
	if list == "" {
		return ways, nil
	}
	var out []way
	for name := range strings.SplitSeq(list, ",") {
		found := false
		for _, w := range ways {
			if w.name == name {
				out, found = append(out, w), true
			}
		}
		if !found {
			return nil, fmt.Errorf("no way %q: there are %s", name, wayNames())
		}
	}
	return out, nil
}

func wayNames() string {
	var names []string
	for _, w := range ways {
		names = append(names, w.name)
	}
	return strings.Join(names, ",")
}
