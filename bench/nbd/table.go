package main

import (
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/platter-storage/platter/bench/sample"
)

const tableHead = "row        server              rate (low–high)               CPU/request     p50     p99   against the best peer"

// printDisk begins a disk's part of the table: what each server does for it,
// where that needs saying.
func printDisk(w io.Writer, d disk, cells []cell) {
	fmt.Fprintf(w, "\ndisk %s: %s\n", d.name, d.about)
	for _, c := range cells {
		if c.Note != "" && !c.Again {
			fmt.Fprintf(w, "  %-12s %s\n", c.Server, c.Note)
		}
	}
	fmt.Fprintln(w, tableHead)
}

// print writes one row, a line each server. Ours, which is the first server if
// it is platter, says how it stands against the best of the others; the second
// instance of it says how far two equal things lie apart.
func (o outcome) print(w io.Writer) {
	verdicts := o.verdicts()
	for i, c := range o.Cells {
		name := ""
		if i == 0 {
			name = o.Row
		}
		low, high := c.Rate.Spread()
		fmt.Fprintf(w, "%-10s %-19s %9s (%s–%s)%s %12s %7s %7s   %s\n", name, c.Server,
			o.rate(c.Rate.Median()), o.number(low), o.number(high), pad(o.number(low), o.number(high)),
			fmt.Sprintf("%.1f µs", c.CPU.Median()), microseconds(c.P50), microseconds(c.P99), verdicts[i])
	}
}

// verdicts says something of each cell.
func (o outcome) verdicts() []string {
	out := make([]string, len(o.Cells))
	ours := o.Cells[0]
	again := o.Cells[len(o.Cells)-1]
	for i, c := range o.Cells {
		if c.Unlike {
			out[i] = "not compared"
		}
	}
	gap := math.Abs(again.Rate.Median()/ours.Rate.Median() - 1)
	gapCPU := math.Abs(again.CPU.Median()/ours.CPU.Median() - 1)
	out[len(out)-1] = fmt.Sprintf("(A/A: rate %.0f %%, CPU %.0f %% apart)", 100*gap, 100*gapCPU)
	best, leanest := o.best(ours.Server)
	if best < 0 {
		return out
	}
	out[best] = "fastest peer"
	if leanest == best {
		out[best] += ", least CPU"
	} else {
		out[leanest] = "least CPU"
	}
	if ours.Server != "platter" {
		return out
	}
	rate := ours.Rate.Median() / o.Cells[best].Rate.Median()
	cpu := ours.CPU.Median() / o.Cells[leanest].CPU.Median()
	out[0] = fmt.Sprintf("rate %.2fx %s, CPU %.2fx %s", rate, word(rate < 1, 1-rate, gap), cpu, word(cpu > 1, cpu-1, gapCPU))
	return out
}

// word calls a result by its name; within the distance of the A/A pair it is
// neither ahead nor behind.
func word(behind bool, by, gap float64) string {
	switch {
	case math.Abs(by) <= gap:
		return "even"
	case behind:
		return "BEHIND"
	}
	return "ahead"
}

// best finds the other server with the highest rate, and the one with the
// least processor time a request; -1 if there is no other.
func (o outcome) best(ours string) (fastest, leanest int) {
	fastest, leanest = -1, -1
	for i, c := range o.Cells {
		if (ours == "platter" && i == 0) || c.Again || c.Unlike {
			continue
		}
		if fastest < 0 || c.Rate.Median() > o.Cells[fastest].Rate.Median() {
			fastest = i
		}
		if leanest < 0 || c.CPU.Median() < o.Cells[leanest].CPU.Median() {
			leanest = i
		}
	}
	return fastest, leanest
}

// rate is a rate in the row's unit: thousands of requests a second for small
// ones, otherwise MiB a second.
func (o outcome) rate(perSecond float64) string {
	if o.Block < 64*kib {
		return o.number(perSecond) + "k/s"
	}
	return o.number(perSecond) + " MiB/s"
}

func (o outcome) number(perSecond float64) string {
	if o.Block < 64*kib {
		return fmt.Sprintf("%.1f", perSecond/1000)
	}
	return fmt.Sprintf("%.0f", perSecond*float64(o.Block)/mib)
}

func pad(low, high string) string {
	return strings.Repeat(" ", max(0, 14-len(low)-len(high)))
}

func microseconds(r sample.Rounds) string {
	if len(r) == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f µs", r.Median())
}
