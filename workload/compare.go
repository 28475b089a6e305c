package workload

import "slices"

// Row is one configuration with its runs.
type Row struct {
	Label string    `json:"label"`
	Runs  []*Result `json:"runs"`
	// CPUNs is what the process spent on each run, in nanoseconds of user and
	// system time.
	CPUNs []int64 `json:"cpu_ns"`
	// Device is how many requests each run made of the block device or the
	// NFS server; -1 where nobody counts them.
	Device []int64 `json:"device_requests"`
}

// Report is all that was measured of one target.
type Report struct {
	Target string `json:"target"`
	Rows   []Row  `json:"rows"`
	// Ratio is how much faster the first row is than the second, by medians;
	// 0 where there is one row.
	Ratio float64 `json:"ratio,omitempty"`
}

// Median is the median rate in MB/s.
func (r *Row) Median() float64 { return r.rates()[len(r.Runs)/2] }

// Spread is the distance of the fastest and the slowest run, as a share of the
// median.
func (r *Row) Spread() float64 {
	rates := r.rates()
	return (rates[len(rates)-1] - rates[0]) / rates[len(rates)/2]
}

// MedianRun is the run at the median.
func (r *Row) MedianRun() *Result {
	runs := slices.Clone(r.Runs)
	slices.SortFunc(runs, func(a, b *Result) int { return int(a.Ns - b.Ns) })
	return runs[len(runs)/2]
}

// PerRequest is the mean of counts over the requests of all runs, -1 where
// there are none.
func (r *Row) PerRequest(counts []int64) float64 {
	var sum, requests int64
	for i, n := range counts {
		if n < 0 {
			return -1
		}
		sum += n
		requests += r.Runs[i].Requests
	}
	return float64(sum) / float64(max(requests, 1))
}

func (r *Row) rates() []float64 {
	var rates []float64
	for _, x := range r.Runs {
		rates = append(rates, x.MBps())
	}
	slices.Sort(rates)
	return rates
}

// Finish fills in what follows from the rows.
func (r *Report) Finish() {
	if len(r.Rows) == 2 {
		r.Ratio = r.Rows[0].Median() / r.Rows[1].Median()
	}
}
