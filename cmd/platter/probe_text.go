package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/protocol/file"
	"github.com/platter-storage/platter/serve/probe"
)

// writeText writes the finding for people.
func (f *finding) writeText(w io.Writer) error {
	var b strings.Builder
	writeExamination(&b, f.Examination)
	if f.Measurement != nil {
		writeMeasurement(&b, f.Measurement)
	}
	if f.NotMeasured != "" {
		fmt.Fprintf(&b, "\nnot measured: %s\n", f.NotMeasured)
	}
	b.WriteString("\nwhat to change if it is slow\n")
	for _, s := range f.Advice {
		fmt.Fprintf(&b, "  - %s\n", s)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func writeExamination(b *strings.Builder, x *file.Examination) {
	fmt.Fprintf(b, "%s: %s", x.Path, x.Kind)
	if x.FileSystem != "" {
		fmt.Fprintf(b, " on %s", x.FileSystem)
	}
	if x.Device != "" {
		fmt.Fprintf(b, ", device %s", x.Device)
	}
	fmt.Fprintf(b, ", %s (%d bytes)", block.FormatSize(x.Size), x.Size)
	if x.Allocated >= 0 {
		fmt.Fprintf(b, ", %s allocated", block.FormatSize(x.Allocated))
	}
	if x.Mount != nil {
		fmt.Fprintf(b, "\nmount: %s", x.Mount)
	}
	fmt.Fprintf(b, "\ndirect I/O: %s\n", x.DirectReason)
	if x.ByPageCache {
		b.WriteString("  but it is served through the page cache all the same\n")
	}
	if x.Disagreement != "" {
		fmt.Fprintf(b, "  the sources disagree: %s\n", x.Disagreement)
	}
	fmt.Fprintf(b, "engine: %s\n", x.EngineReason)

	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "\nengines\n")
	for _, e := range []struct {
		name, why string
		usable    bool
	}{
		{"io_uring", x.Engines.Uring.Why, x.Engines.Uring.Usable}, {"native", x.Engines.Native.Why, x.Engines.Native.Usable}, {"threads", x.Engines.Threads.Why, x.Engines.Threads.Usable},
	} {
		fmt.Fprintf(t, "  %s\t%s\t%s\n", e.name, map[bool]string{true: "works", false: "does not work"}[e.usable], e.why)
	}
	fmt.Fprint(t, "\nlimits\tvalue\tsays who\n")
	for _, l := range x.Limits {
		fmt.Fprintf(t, "  %s\t%s\t%s\n", l.Name, limitText(l), l.Origin)
	}
	fmt.Fprint(t, "\nsources\n")
	for _, a := range x.Answers {
		fmt.Fprintf(t, "  %s\t%s\n", a.Source, answerText(a))
	}
	t.Flush()
}

func limitText(l file.Limit) string {
	switch {
	case strings.HasSuffix(l.Name, "_block") && l.Value == 0, l.Name == "opt_transfer" && l.Value == 0:
		return "not stated"
	case l.Name == "max_segments":
		return fmt.Sprintf("%d elements", l.Value)
	case l.Value == 0:
		return "no limit"
	case l.Value == 1:
		return "1 byte"
	case l.Value%1024 == 0:
		return block.FormatSize(l.Value)
	}
	return fmt.Sprintf("%d bytes", l.Value)
}

func answerText(a file.Answer) string {
	switch {
	case a.Error == "":
		return a.Said
	case a.Said == "":
		return a.Error
	}
	return a.Said + ": " + a.Error
}

func writeMeasurement(b *strings.Builder, m *probe.Measurement) {
	fmt.Fprintf(b, "\nmeasured over %s of the disk", block.FormatSize(m.Area))
	if m.Holes {
		b.WriteString(", which holds no data: reads of holes never reach the device")
	}
	b.WriteString("\n")
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "  operation\trequest\t--aio\trequests/s\tvaries by ±\tMiB/s\tp50\tp99\tway inside Platter")
	for i := range m.Rows {
		r := &m.Rows[i]
		fmt.Fprintf(t, "  %s\t%s\t%s\t%.0f\t%.0f %%\t%.0f\t%s\t%s\t%s\n", r.Op, r.Shape, r.Engine, r.Rate, r.Spread*50, r.MiBPerSecond(), duration(r.P50), duration(r.P99), strings.Join(r.Ways, ", "))
	}
	t.Flush()
}

// duration writes nanoseconds with about three digits.
func duration(ns int64) string {
	d := time.Duration(ns)
	for _, unit := range []time.Duration{time.Second, time.Millisecond, time.Microsecond} {
		if d >= unit {
			return d.Round(unit / 100).String() // "1.23ms"
		}
	}
	return d.String()
}
