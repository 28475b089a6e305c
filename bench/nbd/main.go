// Command nbd measures NBD servers against each other: platter, built from
// this tree, and its peers qemu-nbd, nbdkit and nbd-server. It starts each of
// them itself, on sockets in a temporary folder, and drives all with one light
// client, in turns, several rounds. It prints the median of the rounds and
// their spread, the server's processor time for each request, which is the
// steadier figure, and how the first server compares with a second instance of
// itself, which is the noise.
//
// Run it from the repository on a quiet machine:
//
//	go run ./bench/nbd -disks null,direct -rows r4k-d1,r4k-d32 -rounds 5
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/platter-storage/platter/bench/compare"
	"github.com/platter-storage/platter/bench/process"
)

func main() {
	var o options
	o.register(flag.CommandLine)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := o.run(ctx, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "bench/nbd:", err)
		os.Exit(1)
	}
}

type options struct {
	rows, disks, peers string
	other, qemu        string
	rounds             int
	seconds            float64
	size               int64
	dir, shm           string
	json, verify, list bool
}

func (o *options) register(fs *flag.FlagSet) {
	fs.StringVar(&o.rows, "rows", "", "rows to measure, separated by commas (default: all but fio)")
	fs.StringVar(&o.disks, "disks", "", "disks to serve, separated by commas (default: all)")
	fs.StringVar(&o.peers, "peers", "", "servers to compare, separated by commas (default: all)")
	fs.StringVar(&o.other, "other", "", "another build of platter to show beside this one")
	fs.StringVar(&o.qemu, "qemu-nbd", "", "another qemu-nbd to compare with")
	fs.IntVar(&o.rounds, "rounds", 5, "rounds, of which the median is shown")
	fs.Float64Var(&o.seconds, "seconds", 2, "length of one run")
	fs.Int64Var(&o.size, "size", 1<<10, "size of the disks, in MiB")
	fs.StringVar(&o.dir, "dir", "", "folder on the file system to measure (default: the system's temporary folder)")
	fs.StringVar(&o.shm, "shm", "/dev/shm", "folder on tmpfs")
	fs.BoolVar(&o.json, "json", false, "print a line of JSON a row, with every round, instead of the table")
	fs.BoolVar(&o.verify, "v", false, "check every byte that is read in every run (slower; contents are always checked once)")
	fs.BoolVar(&o.list, "list", false, "list rows, disks and servers, and stop")
}

func (o *options) run(ctx context.Context, stdout, stderr io.Writer) (err error) {
	if o.list {
		o.printList(stdout)
		return nil
	}
	dir, err := os.MkdirTemp(o.dir, "platter-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	shm, err := os.MkdirTemp(o.shm, "platter-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(shm)) }()

	p, err := o.plan(dir)
	if err != nil {
		return err
	}
	p.dir, p.shm, p.log = dir, shm, stderr
	if o.json {
		enc := json.NewEncoder(stdout)
		return p.run(ctx, func(out compare.Outcome) { err = errors.Join(err, enc.Encode(out)) })
	}
	printHead(stdout, p)
	shown := ""
	return p.run(ctx, func(out compare.Outcome) {
		if out.Disk != shown {
			shown = out.Disk
			for _, d := range disks {
				if d.name == shown {
					fmt.Fprintf(stdout, "\ndisk %s: %s\n", d.name, d.about)
				}
			}
			compare.PrintNotes(stdout, out.Cells)
		}
		out.Print(stdout)
	})
}

func (o *options) plan(dir string) (*plan, error) {
	p := &plan{rounds: o.rounds, seconds: o.seconds, verify: o.verify, size: o.size * mib}
	var err error
	if p.rows, err = compare.Choose("row", rows, func(r row) string { return r.name }, o.rows); err != nil {
		return nil, err
	}
	if o.rows == "" {
		p.rows = p.rows[:len(p.rows)-1]
	}
	if p.disks, err = compare.Choose("disk", disks, func(d disk) string { return d.name }, o.disks); err != nil {
		return nil, err
	}
	if p.peers, err = compare.Choose("peer", peers(filepath.Join(dir, "bin", "platter"), o.other, o.qemu), func(p peer) string { return p.name }, o.peers); err != nil {
		return nil, err
	}
	for _, pr := range p.peers {
		if pr.name == "platter" {
			if err := process.BuildPlatter(pr.binary); err != nil {
				return nil, err
			}
		} else if _, err := exec.LookPath(pr.binary); err != nil {
			return nil, fmt.Errorf("%s: %w: run scripts/deps.sh, or leave it out with -peers", pr.name, err)
		}
	}
	return p, nil
}

func (o *options) printList(w io.Writer) {
	for _, r := range rows {
		fmt.Fprintf(w, "row   %-12s %s\n", r.name, r.about)
	}
	for _, d := range disks {
		fmt.Fprintf(w, "disk  %-12s %s\n", d.name, d.about)
	}
	for _, p := range peers("", "", "") {
		fmt.Fprintf(w, "peer  %s\n", p.name)
	}
}

// printHead says what is measured, where, and with what around.
func printHead(w io.Writer, p *plan) {
	fmt.Fprintf(w, "NBD over unix sockets, %d-MiB disks; %d rounds of %.1f s in turns; median and spread\n", p.size/mib, p.rounds, p.seconds)
	fmt.Fprintf(w, "%d processors, %s, kernel %s, load before: %s\n", runtime.NumCPU(), runtime.GOARCH,
		process.FirstLine("/proc/sys/kernel/osrelease"), process.FirstLine("/proc/loadavg"))
	for _, pr := range p.peers {
		fmt.Fprintf(w, "  %-12s %s\n", pr.name, process.TellVersion(pr.binary, pr.version))
	}
}
