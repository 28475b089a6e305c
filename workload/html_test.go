package workload_test

import (
	"strings"
	"testing"

	"github.com/platter-storage/platter/workload"
)

// The page needs nothing from elsewhere, shows each run, and escapes what it
// did not make itself.
func TestHTML(t *testing.T) {
	run := func(ns int64) *workload.Result {
		return &workload.Result{Profile: "mail-server-8k", Threads: 1, Shape: workload.Pages, Ns: ns, Read: 1 << 20, Requests: 128, P50: 1000, P99: 2000, P999: 3000,
			Histogram: []workload.Point{{Ns: 1000, Share: 0.5}, {Ns: 3000, Share: 1}}}
	}
	row := func(label string, ns ...int64) workload.Row {
		x := workload.Row{Label: label}
		for _, n := range ns {
			x.Runs, x.CPUNs, x.Device = append(x.Runs, run(n)), append(x.CPUNs, 128_000), append(x.Device, -1)
		}
		return x
	}
	r := &workload.Report{Target: "<b>disk", Rows: []workload.Row{row("a", 1e6, 2e6, 4e6), row("<i>x", 4e6, 4e6, 4e6)}}
	r.Finish()
	if r.Ratio < 1.99 || r.Ratio > 2.01 {
		t.Errorf("ratio %g of medians of 2 and 4 ms", r.Ratio)
	}
	var b strings.Builder
	if err := r.WriteHTML(&b); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	if strings.Contains(text, "<b>disk") || strings.Contains(text, "<i>x") || strings.Contains(text, "http") || strings.Contains(text, "<script") {
		t.Error("the page has foreign markup, or refers elsewhere")
	}
	if n := strings.Count(text, "MB/s</title>"); n != 6 {
		t.Errorf("%d bars of 6 runs", n)
	}
	for _, want := range []string{"2.00×", "not counted", "1.0 µs", "prefers-color-scheme", "<polyline"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}
