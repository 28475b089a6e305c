package serve

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/platter-storage/platter/block"
)

// Stats is what a daemon has counted since it began.
type Stats struct {
	UptimeSeconds float64       `json:"uptime_seconds"`
	Connections   int           `json:"connections"`
	InFlight      int           `json:"in_flight"` // requests that clients wait for
	Exports       []ExportStats `json:"exports"`
	Buffers       BufferStats   `json:"buffers"`
	// Throttles are the limits of the disks that have some.
	Throttles []ThrottleStats `json:"throttles,omitempty"`
}

// BufferStats is the memory for bounce and padding buffers, in bytes.
type BufferStats struct {
	Limit int64  `json:"limit_bytes"`
	InUse int64  `json:"in_use_bytes"`
	Peak  int64  `json:"peak_bytes"`
	Waits uint64 `json:"waits"`
}

// ExportStats is what one export has counted.
type ExportStats struct {
	Name string `json:"name"`
	// Disk is the disk's name; empty where the export is gone.
	Disk       string             `json:"disk,omitempty"`
	Operations map[string]OpStats `json:"operations"`
	// Paths counts the ways that requests took; a request can count in
	// several.
	Paths map[string]uint64 `json:"paths"`
	// NodeCalls and NodeElements are the calls to drivers from the edges'
	// blocking methods, and the elements of memory in them.
	NodeCalls    uint64 `json:"node_calls"`
	NodeElements uint64 `json:"node_elements"`
}

// OpStats is what one operation has counted. Latencies are upper bounds of
// buckets a fifth to a quarter apart, in nanoseconds.
type OpStats struct {
	Requests uint64 `json:"requests"`
	Bytes    uint64 `json:"bytes"`
	Errors   uint64 `json:"errors"`
	P50      int64  `json:"p50_ns"`
	P99      int64  `json:"p99_ns"`
	P999     int64  `json:"p99_9_ns"`
	Max      int64  `json:"max_ns"`
}

func exportStats(name, disk string, s *block.Stats) ExportStats {
	e := ExportStats{Name: name, Disk: disk, Operations: map[string]OpStats{}, Paths: map[string]uint64{}, NodeCalls: s.NodeCalls, NodeElements: s.NodeSegments}
	for op := range block.NumOps {
		if s.Requests[op] == 0 {
			continue
		}
		e.Operations[op.String()] = OpStats{
			Requests: s.Requests[op], Bytes: s.Bytes[op], Errors: s.Errors[op],
			P50: s.Quantile(op, 0.5), P99: s.Quantile(op, 0.99), P999: s.Quantile(op, 0.999), Max: s.Quantile(op, 1),
		}
	}
	for i, n := range s.Paths {
		if n > 0 {
			e.Paths[block.PathName(i)] = n
		}
	}
	return e
}

// WriteText writes the snapshot for people.
func (s *Stats) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "statistics after %s, %d clients connected, %d requests in flight\n",
		time.Duration(s.UptimeSeconds*float64(time.Second)).Round(time.Second), s.Connections, s.InFlight)
	for i := range s.Exports {
		s.Exports[i].writeText(&b)
	}
	for _, t := range s.Throttles {
		fmt.Fprintf(&b, "throttle of disk %s: %s; %d waits\n", t.Disk, t.Limits, t.Waits)
	}
	fmt.Fprintf(&b, "buffers: %s of %s at most in use at once, %d waits\n", block.FormatSize(s.Buffers.Peak), block.FormatSize(s.Buffers.Limit), s.Buffers.Waits)
	_, err := io.WriteString(w, b.String())
	return err
}

func (e *ExportStats) writeText(w io.Writer) {
	gone := ""
	if e.Disk == "" {
		gone = " (no longer offered)"
	} else {
		gone = " of disk " + e.Disk
	}
	fmt.Fprintf(w, "export %q%s\n", e.Name, gone)
	if len(e.Operations) == 0 {
		fmt.Fprintln(w, "  no requests")
		return
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "operation\trequests\tamount\terrors\tp50\tp99\tp99.9\tmax\t")
	for op := range block.NumOps {
		if o, ok := e.Operations[op.String()]; ok {
			fmt.Fprintf(t, "%s\t%d\t%s\t%d\t%s\t%s\t%s\t%s\t\n", op, o.Requests, block.FormatSize(int64(o.Bytes)), o.Errors,
				latency(o.P50), latency(o.P99), latency(o.P999), latency(o.Max))
		}
	}
	t.Flush()
	fmt.Fprintf(w, "  ways:")
	sep := " "
	for i := range block.NumPaths {
		if n := e.Paths[block.PathName(i)]; n > 0 {
			fmt.Fprintf(w, "%s%s %d", sep, block.PathName(i), n)
			sep = ", "
		}
	}
	fmt.Fprintln(w)
}

// latency writes nanoseconds with three digits.
func latency(ns int64) string {
	switch {
	case ns < 1e3:
		return fmt.Sprintf("%d ns", ns)
	case ns < 1e6:
		return fmt.Sprintf("%.3g µs", float64(ns)/1e3)
	case ns < 1e9:
		return fmt.Sprintf("%.3g ms", float64(ns)/1e6)
	}
	return fmt.Sprintf("%.3g s", float64(ns)/1e9)
}
