package main

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"time"
)

// runFio is one run of fio straight on a file: what there is to be had.
func runFio(d disk, r row, file string, size int64, length time.Duration) (l load, cpu time.Duration, err error) {
	cmd := exec.Command("fio", fioArgs(d, r, file, size, length)...)
	out, err := cmd.Output()
	if err != nil {
		return l, 0, fmt.Errorf("fio: %w: %s", err, out)
	}
	l, err = parseFio(out)
	// Its start is in there, and so are the kernel's workers, of which fio's own
	// figures do not know.
	return l, cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), err
}

func fioArgs(d disk, r row, file string, size int64, length time.Duration) []string {
	kind := "read"
	if r.load.write {
		kind = "write"
	}
	depth, jobs := r.load.depth, r.load.queues
	if r.load.random {
		kind = "rand" + kind
	}
	if r.load.streams {
		depth, jobs = 1, r.load.depth
	}
	direct := 0
	if d.name == "direct" {
		direct = 1
	}
	args := []string{"--output-format=json", "--name=row", "--ioengine=io_uring", "--thread", "--group_reporting", "--norandommap", "--random_generator=lfsr",
		"--filename=" + file, "--rw=" + kind, fmt.Sprintf("--bs=%d", r.load.block), fmt.Sprintf("--iodepth=%d", depth), fmt.Sprintf("--numjobs=%d", jobs),
		fmt.Sprintf("--direct=%d", direct), fmt.Sprintf("--size=%d", size), "--time_based", fmt.Sprintf("--runtime=%dms", length.Milliseconds())}
	if r.load.streams {
		args = append(args, fmt.Sprintf("--offset_increment=%d", size/int64(jobs)), fmt.Sprintf("--size=%d", size/int64(jobs)))
	}
	return args
}

// parseFio reads what fio says of its one group.
func parseFio(out []byte) (l load, err error) {
	type side struct {
		TotalIOs int64 `json:"total_ios"`
		Runtime  int64 // in milliseconds
	}
	var report struct {
		Jobs []struct {
			Error       int
			Read, Write side
		}
	}
	if err := json.Unmarshal(out, &report); err != nil {
		return l, fmt.Errorf("fio's report: %w", err)
	}
	if len(report.Jobs) != 1 || report.Jobs[0].Error != 0 {
		return l, fmt.Errorf("fio's report: want one group without an error, got %+v", report.Jobs)
	}
	j := report.Jobs[0]
	if l.ops = j.Read.TotalIOs + j.Write.TotalIOs; l.ops == 0 {
		return l, fmt.Errorf("fio's report: no request")
	}
	l.took = time.Duration(max(j.Read.Runtime, j.Write.Runtime)) * time.Millisecond
	return l, nil
}
