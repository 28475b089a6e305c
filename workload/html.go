package workload

import (
	"fmt"
	"html/template"
	"io"
	"math"
	"strings"
	"time"
)

// WriteHTML writes the report as one page that needs nothing else.
func (r *Report) WriteHTML(w io.Writer) error {
	return page.Execute(w, r)
}

var page = template.Must(template.New("bench").Funcs(template.FuncMap{
	"ns": nsText, "rates": rateChart, "latency": latencyChart, "first": func(r *Report) *Result { return r.Rows[0].Runs[0] },
	"percent": func(x float64) string { return fmt.Sprintf("%.0f %%", x*100) },
	"each": func(x float64) string {
		if x < 0 {
			return "not counted"
		}
		return fmt.Sprintf("%.2f", x)
	},
	"us": func(x float64) string { return fmt.Sprintf("%.1f µs", x/1000) },
}).Parse(pageText))

const pageText = `<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<title>platter bench: {{(first .).Profile}}</title><style>
:root{--bg:#fff;--fg:#1c2430;--soft:#667085;--line:#e4e7ec;--card:#f8f9fb;--a:#2563eb;--b:#d97706}
@media(prefers-color-scheme:dark){:root{--bg:#11151b;--fg:#e6e9ee;--soft:#98a2b3;--line:#2a313c;--card:#181e27;--a:#60a5fa;--b:#fbbf24}}
body{background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif;max-width:960px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem;margin:0}h2{font-size:1.05rem;margin:2rem 0 .5rem}p{color:var(--soft);margin:.3rem 0}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}th,td{padding:.4rem .6rem;text-align:right;border-bottom:1px solid var(--line)}
th:first-child,td:first-child{text-align:left}th{color:var(--soft);font-weight:500}
.big{font-size:2.2rem;font-weight:650;color:var(--fg)}.wide{overflow-x:auto}
svg{width:100%;height:auto;background:var(--card);border:1px solid var(--line);border-radius:8px}
svg text{fill:var(--soft);font:12px system-ui,sans-serif}.grid{stroke:var(--line)}.a{fill:var(--a)}.b{fill:var(--b)}.la{stroke:var(--a)}.lb{stroke:var(--b)}.la,.lb{fill:none;stroke-width:2.5}
</style><h1>{{(first .).Profile}}</h1>
{{with first .}}<p>{{$.Target}} · {{.Threads}} thread{{if gt .Threads 1}}s{{end}} · memory: {{.Shape}} · scale {{.Scale}} · seed {{.Seed}}</p>{{end}}
{{if .Ratio}}<p class="big">{{printf "%.2f" .Ratio}}×</p><p>{{(index .Rows 0).Label}} against {{(index .Rows 1).Label}}, medians of {{len (index .Rows 0).Runs}} alternated runs</p>{{end}}
<h2>Throughput of each run</h2>{{rates .}}
<h2>Latency: share of requests that took no longer</h2>{{latency .}}
<h2>Figures</h2><div class="wide"><table><tr><th>configuration<th>MB/s<th>spread<th>p50<th>p99<th>p99.9<th>CPU a request<th>device requests<th>linearised</tr>
{{range .Rows}}{{$m := .MedianRun}}<tr><td>{{.Label}}<td>{{printf "%.1f" .Median}}<td>{{percent .Spread}}<td>{{ns $m.P50}}<td>{{ns $m.P99}}<td>{{ns $m.P999}}<td>{{us (.PerRequest .CPUNs)}}<td>{{each (.PerRequest .Device)}}<td>{{$m.Linearised}} of {{$m.Requests}}</tr>{{end}}</table></div>
<p>MB/s are 10⁶ bytes a second, of bytes that were counted twice. Latencies are of the median run; spread is from the slowest to the fastest.</p></html>
`

func nsText(ns int64) string {
	d := time.Duration(ns)
	for _, unit := range []time.Duration{time.Second, time.Millisecond, time.Microsecond} {
		if d >= unit {
			return d.Round(unit / 100).String()
		}
	}
	return d.String()
}

// The charts' size, and the plot's place in it.
const (
	chartW, chartH       = 900.0, 280.0
	left, right, top, bt = 60.0, 880.0, 30.0, 240.0
)

var rowClass = []string{"a", "b"}

func chart(body string, r *Report) template.HTML {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="0 0 %g %g" role="img">`, chartW, chartH)
	for i, row := range r.Rows {
		x := left + float64(i)*330
		fmt.Fprintf(&b, `<rect x="%g" y="9" width="11" height="11" rx="2" class="%s"/><text x="%g" y="19">%s</text>`, x, rowClass[i%2], x+17, template.HTMLEscapeString(row.Label))
	}
	return template.HTML(b.String() + body + "</svg>")
}

// gridLine is a horizontal line with its label.
func gridLine(share float64, label string) string {
	y := bt - share*(bt-top)
	return fmt.Sprintf(`<line x1="%g" x2="%g" y1="%.1f" y2="%.1f" class="grid"/><text x="%g" y="%.1f" text-anchor="end">%s</text>`, left, right, y, y, left-8, y+4, label)
}

// rateChart has a bar for each run, in the order in which they were made.
func rateChart(r *Report) template.HTML {
	most, n := 0.0, 0
	for i := range r.Rows {
		rates := r.Rows[i].rates()
		most = max(most, rates[len(rates)-1])
		n += len(rates)
	}
	step := niceStep(most)
	most = math.Ceil(most/step) * step
	var b strings.Builder
	for v := 0.0; v <= most; v += step {
		b.WriteString(gridLine(v/most, fmt.Sprintf("%g", v)))
	}
	slot := (right - left) / float64(n)
	for i := range r.Rows {
		for k, run := range r.Rows[i].Runs {
			h := run.MBps() / most * (bt - top)
			x := left + slot*(float64(k*len(r.Rows)+i)+0.15)
			fmt.Fprintf(&b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" rx="3" class="%s"><title>%.1f MB/s</title></rect>`, x, bt-h, min(slot*0.7, 90), h, rowClass[i%2], run.MBps())
		}
	}
	fmt.Fprintf(&b, `<text x="%g" y="%g" text-anchor="end">runs in the order in which they were made; MB/s</text>`, right, bt+26)
	return chart(b.String(), r)
}

// niceStep gives about five lines up to most, at round values.
func niceStep(most float64) float64 {
	unit := math.Pow(10, math.Floor(math.Log10(max(most, 1e-6)/5)))
	for _, k := range []float64{1, 2, 5, 10} {
		if k*unit >= most/5 {
			return k * unit
		}
	}
	return 10 * unit
}

// latencyChart has the distribution of each row's median run, over a logarithm.
func latencyChart(r *Report) template.HTML {
	low, high := int64(math.MaxInt64), int64(1)
	for i := range r.Rows {
		h := r.Rows[i].MedianRun().Histogram
		if len(h) > 0 {
			low, high = min(low, h[0].Ns), max(high, h[len(h)-1].Ns)
		}
	}
	from, to := math.Floor(math.Log10(float64(low))), math.Ceil(math.Log10(float64(high)))
	at := func(ns int64) float64 { return left + (math.Log10(float64(ns))-from)/max(to-from, 1)*(right-left) }
	var b strings.Builder
	for _, s := range []float64{0, 0.25, 0.5, 0.75, 0.99} {
		b.WriteString(gridLine(s, fmt.Sprintf("%.0f %%", s*100)))
	}
	for e := from; e <= to; e++ {
		ns := int64(math.Pow(10, e))
		fmt.Fprintf(&b, `<line x1="%.1f" x2="%.1f" y1="%g" y2="%g" class="grid"/><text x="%.1f" y="%g" text-anchor="middle">%s</text>`, at(ns), at(ns), top, bt, at(ns), bt+20, nsText(ns))
	}
	for i := range r.Rows {
		fmt.Fprintf(&b, `<polyline class="l%s" points="`, rowClass[i%2])
		for _, p := range r.Rows[i].MedianRun().Histogram {
			fmt.Fprintf(&b, "%.1f,%.1f ", at(p.Ns), bt-p.Share*(bt-top))
		}
		b.WriteString(`"/>`)
	}
	return chart(b.String(), r)
}
