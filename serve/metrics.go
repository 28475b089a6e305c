package serve

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/platter-storage/platter/block"
)

// Metrics are made from the counters when somebody asks for them: nothing of
// this is on the way of a request.

// maxScrapes is how many may ask for metrics at once.
const maxScrapes = 8

// metrics answers in the form that Prometheus reads.
func (d *Daemon) metrics() http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(d, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes})
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("platter_"+name, help, labels, nil)
}

var (
	descInfo        = desc("build_info", "The program's version; always 1.", "version")
	descUptime      = desc("uptime_seconds", "Time since the daemon began.")
	descConnections = desc("connections", "Clients that are connected, virtual machines included.")
	descInFlight    = desc("requests_in_flight", "Requests that clients wait for.")
	descRequests    = desc("requests_total", "Requests that have ended.", "disk", "export", "op")
	descBytes       = desc("bytes_total", "Bytes of the requests that have ended.", "disk", "export", "op")
	descErrors      = desc("request_errors_total", "Requests that failed.", "disk", "export", "op")
	descDuration    = desc("request_duration_seconds", "Time from a request's arrival to its end.", "disk", "export", "op")
	descPaths       = desc("request_paths_total", "Ways that requests took; a request can count in several.", "disk", "export", "path")
	descNodeCalls   = desc("node_calls_total", "Calls to drivers from the edges' blocking methods.", "disk", "export")
	descSize        = desc("disk_size_bytes", "Size of the disk.", "disk")
	descReadOnly    = desc("disk_read_only", "1 where the disk cannot be written.", "disk")
	descAlign       = desc("disk_alignment_bytes", "What requests and buffers are aligned to: read, write, memory, optimal_memory.", "disk", "of")
	descThrottled   = desc("throttle_waits_total", "How often a request was told to wait by the disk's limits.", "disk")
	descBufferLimit = desc("buffer_limit_bytes", "The most memory for bounce and padding buffers.")
	descBufferUse   = desc("buffer_in_use_bytes", "Memory for bounce and padding buffers in use.")
	descBufferWaits = desc("buffer_waits_total", "Requests that waited for a bounce or padding buffer.")

	allDescs = []*prometheus.Desc{descInfo, descUptime, descConnections, descInFlight, descRequests, descBytes, descErrors, descDuration, descPaths, descNodeCalls,
		descSize, descReadOnly, descAlign, descThrottled, descBufferLimit, descBufferUse, descBufferWaits}
)

// Describe implements prometheus.Collector.
func (d *Daemon) Describe(ch chan<- *prometheus.Desc) {
	for _, x := range allDescs {
		ch <- x
	}
}

// Collect implements prometheus.Collector. It never waits for storage.
func (d *Daemon) Collect(ch chan<- prometheus.Metric) {
	v, s := d.seen.Load(), d.Stats()
	gauge := func(x *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(x, prometheus.GaugeValue, value, labels...)
	}
	count := func(x *prometheus.Desc, value uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(x, prometheus.CounterValue, float64(value), labels...)
	}
	gauge(descInfo, 1, buildVersion())
	gauge(descUptime, s.UptimeSeconds)
	gauge(descConnections, float64(s.Connections))
	gauge(descInFlight, float64(s.InFlight))
	gauge(descBufferLimit, float64(s.Buffers.Limit))
	gauge(descBufferUse, float64(s.Buffers.InUse))
	count(descBufferWaits, s.Buffers.Waits)
	for _, t := range s.Throttles {
		count(descThrottled, t.Waits, t.Disk)
	}
	for i := range v.disks {
		dk := &v.disks[i]
		gauge(descSize, float64(dk.info.Size()), dk.name)
		gauge(descReadOnly, number(dk.info.ReadOnly), dk.name)
		l := dk.info.Limits()
		for of, n := range map[string]uint32{"read": l.ReadAlign, "write": l.WriteAlign, "memory": l.MinMem, "optimal_memory": l.OptMem} {
			gauge(descAlign, float64(n), dk.name, of)
		}
	}
	for _, e := range s.Exports {
		if g := v.groups[e.Name]; g != nil {
			collectExport(ch, e.Disk, e.Name, g.Stats())
		}
	}
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func collectExport(ch chan<- prometheus.Metric, disk, export string, s *block.Stats) {
	count := func(x *prometheus.Desc, value uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(x, prometheus.CounterValue, float64(value), labels...)
	}
	for op := range block.NumOps {
		if s.Requests[op] == 0 {
			continue
		}
		count(descRequests, s.Requests[op], disk, export, op.String())
		count(descBytes, s.Bytes[op], disk, export, op.String())
		count(descErrors, s.Errors[op], disk, export, op.String())
		n, sum, buckets := buckets(&s.Hist[op])
		ch <- prometheus.MustNewConstHistogram(descDuration, n, sum, buckets, disk, export, op.String())
	}
	for i, n := range s.Paths {
		if n > 0 {
			count(descPaths, n, disk, export, block.PathName(i))
		}
	}
	count(descNodeCalls, s.NodeCalls, disk, export)
}

// perOctave is how many of our buckets go into one of the histogram's: of those
// with four to an octave scrapes would grow long.
const perOctave = 4

// buckets is a histogram in seconds, cumulative. The sum is an estimate: each
// request counts as its bucket's upper bound.
func buckets(hist *[block.HistBuckets]uint64) (n uint64, sum float64, all map[float64]uint64) {
	all = map[float64]uint64{}
	for i, k := range hist {
		n += k
		sum += float64(k) * float64(block.HistUpper(i)) / 1e9
		if i%perOctave == perOctave-1 {
			all[float64(block.HistUpper(i))/1e9] = n
		}
	}
	return n, sum, all
}
