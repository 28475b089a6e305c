package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/graph"
	"github.com/platter-storage/platter/internal/realenv"
	"github.com/platter-storage/platter/workload"
)

// bench is what the command line asks for.
type bench struct {
	target, profile, shape, vs, html string
	threads, rounds                  int
	scale                            float64
	seed                             uint64
	json, yes                        bool
	set                              []string

	disk   string // what is opened: the target, or a file in it
	config workload.Config
	out    io.Writer
}

// maxRounds bounds the runs of each configuration.
const maxRounds = 1000

func newBench() *cobra.Command {
	b := &bench{}
	cmd := &cobra.Command{
		Use:   "bench TARGET --profile NAME",
		Short: "run a well-known workload on a disk and say how fast it is",
		Long: `Bench makes the requests of a file workload (large files, random blocks, a mail
server) on TARGET: a directory, in which a file is made and removed, or what serve
takes: a file, a block device, a URI. With --vs it runs two configurations in
alternation and compares them.

Profiles: ` + strings.Join(workload.Names(), ", ") + `.

A workload that writes destroys what a file or device holds, and wants --yes. It
refuses a device that is mounted, or that another program has claimed.`,
		Example: "  platter bench /srv --profile mail-server-8k --scale 0.05 --html mail.html\n  platter bench /mnt/nfs --profile large-file-create-256k --vs linearise=never\n  platter bench disk.img --profile random-read-8k --threads 8",
		Args:    args(1, 1, "platter bench TARGET --profile NAME"),
		RunE: func(cmd *cobra.Command, a []string) error {
			b.target, b.out = a[0], cmd.OutOrStdout()
			return b.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringVar(&b.profile, "profile", "", "the workload")
	f.IntVar(&b.threads, "threads", 0, "how many make requests (default 8, or the profile's)")
	f.Float64Var(&b.scale, "scale", 0.02, "share of the workload's bytes and file sizes; 1 moves gigabytes")
	f.StringVar(&b.shape, "shape", string(workload.Pages), "how requests lie in memory: contig, pages, halfpage, mixed")
	f.IntVar(&b.rounds, "rounds", 0, "runs of each configuration (default 1, with --vs 5)")
	f.Uint64Var(&b.seed, "seed", 1, "of all chance: the same makes the same requests")
	f.StringArrayVar(&b.set, "set", nil, "option=value of the driver at the bottom, such as cache=none")
	f.StringVar(&b.vs, "vs", "", "compare with option=value, such as linearise=never")
	f.BoolVar(&b.json, "json", false, "write JSON")
	f.StringVar(&b.html, "html", "", "also write a page with plots to this file")
	f.BoolVar(&b.yes, "yes", false, "overwrite what the target holds")
	return cmd
}

func (b *bench) run(ctx context.Context) error {
	if err := b.check(); err != nil {
		return err
	}
	remove, err := b.prepare(ctx)
	if err != nil {
		return err
	}
	report, err := b.measure(ctx)
	clearProgress()
	if err = errors.Join(err, remove()); err != nil {
		return err
	}
	if b.html != "" {
		if err := b.writeHTML(report); err != nil {
			return err
		}
	}
	if b.json {
		return writeJSON(b.out, report)
	}
	return writeBench(b.out, report)
}

// check fills in the configuration.
func (b *bench) check() error {
	p, err := workload.Find(b.profile)
	if err != nil {
		return usagef("--profile: %w", err)
	}
	if b.threads == 0 {
		b.threads = max(p.Threads, 1)
		if p.Threads == 0 {
			b.threads = 8
		}
	}
	if b.rounds == 0 {
		b.rounds = 1
		if b.vs != "" {
			b.rounds = 5
		}
	}
	for _, kv := range append([]string{}, append(b.set, b.vs)...) {
		if k, _, ok := strings.Cut(kv, "="); kv != "" && (!ok || k == "") {
			return usagef("%q is no option=value, such as linearise=never", kv)
		}
	}
	if b.rounds < 1 || b.rounds > maxRounds {
		return usagef("--rounds %d: 1 to %d", b.rounds, maxRounds)
	}
	b.config = workload.Config{Profile: p, Threads: b.threads, Scale: b.scale, Shape: workload.Shape(b.shape), Seed: b.seed, Progress: throttled(b.profile)}
	return nil
}

// prepare makes a file where the target is a directory, and refuses to destroy
// data that nobody has given up.
func (b *bench) prepare(ctx context.Context) (remove func() error, err error) {
	b.disk, remove = b.target, func() error { return nil }
	st, err := os.Stat(b.target)
	switch {
	case err == nil && st.IsDir():
		return b.makeFile(ctx)
	case err == nil && b.config.Profile.Changes() && !b.yes:
		return nil, usagef("%s: %s writes over what it holds: --yes if that may be lost, or a directory, in which a file is made", b.target, b.profile)
	}
	return remove, nil
}

// makeFile makes a file of the size that the workload needs, full of data.
func (b *bench) makeFile(ctx context.Context) (func() error, error) {
	f, err := os.CreateTemp(b.target, ".platter-bench-*")
	if err != nil {
		return nil, err
	}
	remove := func() error { return os.Remove(f.Name()) }
	b.disk = f.Name()
	err = errors.Join(f.Truncate(b.config.Need()), f.Close())
	if err == nil && b.config.Profile.Fills() {
		err = b.with(ctx, "", true, func(child *block.Child) error {
			return workload.Fill(ctx, child, child.Size(), throttled("filling"))
		})
	}
	if err != nil {
		return nil, errors.Join(err, remove())
	}
	return remove, nil
}

// with opens the disk, extra being one more option, for f.
func (b *bench) with(ctx context.Context, extra string, write bool, f func(child *block.Child) error) (err error) {
	env := realenv.New(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})), 0)
	g := graph.New(env)
	defer func() { err = errors.Join(err, g.Close(), env.CloseBuffers()) }()
	d := graph.Disk{Name: b.disk, Protocol: block.Values{}}
	if _, err := os.Stat(b.disk); err == nil {
		d.Format = "raw"
		d.Protocol["cache"] = "auto"
	}
	for _, kv := range append(append([]string{}, b.set...), extra) {
		if k, v, ok := strings.Cut(kv, "="); ok {
			d.Protocol[k] = v
		}
	}
	in, err := g.Open(ctx, d, "", !write)
	if err != nil {
		return fmt.Errorf("open %s: %w", b.target, err)
	}
	perm := block.PermRead
	if write {
		perm |= block.PermWrite
	}
	child, err := in.NewChild("bench", block.RoleRoot, perm, block.PermAll)
	if err != nil {
		return err
	}
	defer child.Close()
	return f(child)
}

// measure runs the configurations in alternation.
func (b *bench) measure(ctx context.Context) (*workload.Report, error) {
	r := &workload.Report{Target: b.target, Rows: []workload.Row{{Label: strings.Join(b.set, ",")}}}
	if r.Rows[0].Label == "" {
		r.Rows[0].Label = "default options"
	}
	if b.vs != "" {
		r.Rows = append(r.Rows, workload.Row{Label: b.vs})
	}
	for range b.rounds {
		for i := range r.Rows {
			extra := ""
			if i == 1 {
				extra = b.vs
			}
			err := b.with(ctx, extra, b.config.Profile.Changes(), func(child *block.Child) error { return b.once(ctx, child, &r.Rows[i]) })
			if err != nil {
				return nil, err
			}
		}
	}
	r.Finish()
	return r, nil
}

func (b *bench) once(ctx context.Context, child *block.Child, row *workload.Row) error {
	cpu, device := cpuTime(), deviceRequests(b.disk)
	res, err := workload.Run(ctx, child, b.config)
	if err != nil {
		return err
	}
	row.Runs = append(row.Runs, res)
	row.CPUNs = append(row.CPUNs, cpuTime()-cpu)
	count := int64(-1)
	if device >= 0 {
		count = deviceRequests(b.disk) - device
	}
	row.Device = append(row.Device, count)
	return nil
}

// cpuTime is what this process has used, in nanoseconds.
func cpuTime() int64 {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

// deviceRequests are the reads and writes that the block device below path has
// completed, by everybody; -1 where there is none.
func deviceRequests(path string) int64 {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return -1
	}
	dev := st.Dev
	if st.Mode&unix.S_IFMT == unix.S_IFBLK {
		dev = st.Rdev
	}
	text, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/stat", unix.Major(dev), unix.Minor(dev)))
	if err != nil {
		return -1
	}
	var f [5]int64 // Documentation/block/stat: reads, merged, sectors, ticks, writes
	if _, err := fmt.Sscan(string(text), &f[0], &f[1], &f[2], &f[3], &f[4]); err != nil {
		return -1
	}
	return f[0] + f[4]
}

// throttled shows people at a terminal how far it is, a hundred times at most.
func throttled(what string) func(done, total int64) {
	if !onTerminal(os.Stderr) {
		return nil
	}
	return func(done, total int64) {
		if step := max(total/100, 1); done/step != (done-4096)/step {
			fmt.Fprintf(os.Stderr, "\r\x1b[K%3d %%  %s", done*100/max(total, 1), what)
		}
	}
}

func (b *bench) writeHTML(r *workload.Report) error {
	f, err := os.Create(b.html)
	if err != nil {
		return err
	}
	return errors.Join(r.WriteHTML(f), f.Close())
}

// writeBench is the report for people.
func writeBench(w io.Writer, r *workload.Report) error {
	x := r.Rows[0].Runs[0]
	fmt.Fprintf(w, "%s on %s: %d threads, memory %s, scale %g, seed %d\n", x.Profile, r.Target, x.Threads, x.Shape, x.Scale, x.Seed)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "configuration\tMB/s\tspread\tread\twritten\tp50\tp99\tp99.9\tCPU/request\tdevice requests\tlinearised\t")
	for i := range r.Rows {
		row := &r.Rows[i]
		m, device := row.MedianRun(), "not counted"
		if n := row.PerRequest(row.Device); n >= 0 {
			device = fmt.Sprintf("%.2f each", n)
		}
		fmt.Fprintf(t, "%s\t%.1f\t%.0f %%\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d of %d\t\n", row.Label, row.Median(), row.Spread()*100, block.FormatSize(m.Read), block.FormatSize(m.Written),
			duration(m.P50), duration(m.P99), duration(m.P999), duration(int64(row.PerRequest(row.CPUNs))), device, m.Linearised, m.Requests)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if r.Ratio != 0 {
		fmt.Fprintf(w, "ratio %.3f: %s against %s, medians of %d alternated runs\n", r.Ratio, r.Rows[0].Label, r.Rows[1].Label, len(r.Rows[0].Runs))
	}
	return nil
}
