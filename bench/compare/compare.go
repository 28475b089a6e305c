// Package compare has the table that benchmarks print: what each server made of
// each row, side by side, and how ours stands against the best of the others.
package compare

import (
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/platter-storage/platter/bench/sample"
)

// Cell is what came of one row on one server, a value for each round.
type Cell struct {
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

// Add adds a round: ops requests that took so long and cost the server cpu. lat
// may be nil.
func (c *Cell) Add(ops int64, took, cpu time.Duration, lat *sample.Latency) {
	c.Rate = append(c.Rate, float64(ops)/took.Seconds())
	c.CPU = append(c.CPU, float64(cpu.Microseconds())/float64(max(ops, 1)))
	if lat == nil {
		return
	}
	if p50 := lat.Percentile(50); p50 > 0 {
		c.P50 = append(c.P50, float64(p50.Nanoseconds())/1000)
		c.P99 = append(c.P99, float64(lat.Percentile(99).Nanoseconds())/1000)
	}
}

// Outcome is one line of the table for all servers.
type Outcome struct {
	Disk  string `json:"disk"`
	Row   string `json:"row"`
	About string `json:"about"`
	Block int    `json:"block"` // bytes a request
	Cells []Cell `json:"cells"`
}

// Head is the line above the rows.
const Head = "row        server              rate (low–high)               CPU/request     p50     p99   against the best peer"

// PrintNotes says what each server does for a disk, where that needs saying, and
// begins a part of the table.
func PrintNotes(w io.Writer, cells []Cell) {
	for _, c := range cells {
		if c.Note != "" && !c.Again {
			fmt.Fprintf(w, "  %-12s %s\n", c.Server, c.Note)
		}
	}
	fmt.Fprintln(w, Head)
}

// small is the length in bytes below which requests are counted, and not bytes.
const small = 64 << 10

// Print writes one row, a line each server. Ours, which is the first server if
// it is platter, says how it stands against the best of the others; the second
// instance of it says how far two equal things lie apart.
func (o Outcome) Print(w io.Writer) {
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
func (o Outcome) verdicts() []string {
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
func (o Outcome) best(ours string) (fastest, leanest int) {
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
func (o Outcome) rate(perSecond float64) string {
	if o.Block < small {
		return o.number(perSecond) + "k/s"
	}
	return o.number(perSecond) + " MiB/s"
}

func (o Outcome) number(perSecond float64) string {
	if o.Block < small {
		return fmt.Sprintf("%.1f", perSecond/1000)
	}
	return fmt.Sprintf("%.0f", perSecond*float64(o.Block)/(1<<20))
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

// Choose picks the items whose names are in list, which commas separate, in the
// order of all. "" picks all of them.
func Choose[T any](what string, all []T, name func(T) string, list string) ([]T, error) {
	if list == "" {
		return all, nil
	}
	want := strings.Split(list, ",")
	var out []T
	known := make(map[string]bool)
	for _, item := range all {
		known[name(item)] = true
		for _, w := range want {
			if w == name(item) {
				out = append(out, item)
				break
			}
		}
	}
	for _, w := range want {
		if !known[w] {
			names := ""
			for _, item := range all {
				names += " " + name(item)
			}
			return nil, fmt.Errorf("no %s %q: there are%s", what, w, names)
		}
	}
	return out, nil
}
