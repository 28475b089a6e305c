package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"time"
)

// runCopy is one run of nbdcopy, with its own processor time left out: the
// whole disk to nowhere, which takes as long as it takes.
func runCopy(s *server, size int64) (load, error) {
	start := time.Now()
	out, err := exec.Command("nbdcopy", "--connections=4", s.uri(), "null:").CombinedOutput()
	if err != nil {
		return load{}, fmt.Errorf("nbdcopy: %w: %s", err, out)
	}
	return load{ops: size / mib, took: time.Since(start)}, nil
}

// runFio is one run of fio's nbd engine.
func runFio(s *server, size int64, d time.Duration) (load, error) {
	out, err := exec.Command("fio", "--output-format=json", "--name=row", "--ioengine=nbd",
		"--uri="+s.uri(), "--rw=randread", "--bs=4k", "--iodepth=32",
		fmt.Sprintf("--size=%d", size), "--time_based", fmt.Sprintf("--runtime=%dms", d.Milliseconds())).Output()
	if err != nil {
		return load{}, fmt.Errorf("fio: %w: %s", err, out)
	}
	return parseFio(out)
}

// parseFio reads what fio says of its one job, after lines of the engine's.
func parseFio(out []byte) (load, error) {
	var report struct {
		Jobs []struct {
			Error int
			Read  struct {
				TotalIOs int64 `json:"total_ios"`
				Runtime  int64 // in milliseconds
			}
		}
	}
	if at := bytes.IndexByte(out, '{'); at > 0 {
		out = out[at:]
	}
	if err := json.Unmarshal(out, &report); err != nil {
		return load{}, fmt.Errorf("fio's report: %w", err)
	}
	if len(report.Jobs) != 1 || report.Jobs[0].Error != 0 || report.Jobs[0].Read.Runtime == 0 {
		return load{}, fmt.Errorf("fio's report: want one job without an error, got %+v", report.Jobs)
	}
	r := report.Jobs[0].Read
	return load{ops: r.TotalIOs, took: time.Duration(r.Runtime) * time.Millisecond}, nil
}
