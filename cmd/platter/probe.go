package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/graph"
	"github.com/platter-storage/platter/protocol/file"
	"github.com/platter-storage/platter/serve/probe"
)

// finding is all that probe has to say of a disk.
type finding struct {
	Examination *file.Examination  `json:"examination"`
	Measurement *probe.Measurement `json:"measurement,omitempty"`
	// NotMeasured is why there is no measurement.
	NotMeasured string   `json:"not_measured,omitempty"`
	Advice      []string `json:"advice"`
}

func newProbe() *cobra.Command {
	var json, noMeasure, writeTest bool
	var cellTime time.Duration
	cmd := &cobra.Command{
		Use:   "probe DISK",
		Short: "say what storage can do, who says so, and how fast it is",
		Long: `Probe asks every source about a file or block device: the file system, statx,
ioctls, sysfs, and trial reads. It shows the limits that follow, each with its
origin, which engine would carry requests and why, and whether direct I/O works.

Then it measures reads: with memory aligned and off by 512 bytes, in one piece
and in scattered pieces, and with each engine. It takes no locks and writes
nothing, so the disk may be in use; with --write-test it measures writes too, to
a temporary file of 64 MiB beside the disk.

DISK is what serve takes, if a file or block device is at its bottom: a path, a
URI (file:///srv/disk.img) or an option string, whose options count.`,
		Example: "  platter probe disk.img\n  platter probe --write-test disk.img\n  platter probe --json --no-measure /dev/sdb\n  platter probe driver=raw,file.filename=disk.img,file.aio=threads",
		Args:    args(1, 1, "platter probe DISK"),
		RunE: func(cmd *cobra.Command, disks []string) error {
			path, opts, err := fileBelow(disks[0])
			if err != nil {
				return err
			}
			f, err := examine(path, opts, writeTest)
			if err != nil {
				return err
			}
			if !noMeasure {
				o := probe.Options{Path: path, Engines: usableEngines(f.Examination), Write: writeTest, CellTime: cellTime, Progress: progress()}
				f.Measurement, err = probe.Run(cmd.Context(), o)
				clearProgress()
				if errors.Is(err, probe.ErrTooSmall) {
					f.NotMeasured, err = err.Error(), nil
				}
				if err != nil {
					return fmt.Errorf("measuring %s: %w (--no-measure leaves it away)", path, err)
				}
			}
			f.Advice = advice(f)
			if json {
				return writeJSON(cmd.OutOrStdout(), f)
			}
			return f.writeText(cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVar(&json, "json", false, "write JSON")
	cmd.Flags().BoolVar(&noMeasure, "no-measure", false, "ask, but measure nothing")
	cmd.Flags().BoolVar(&writeTest, "write-test", false, "measure writes too, to a temporary file beside the disk")
	cmd.Flags().DurationVar(&cellTime, "time", 250*time.Millisecond, "how long each line is measured")
	return cmd
}

// fileBelow finds the file at the bottom of a disk that is written as for
// serve, and those of its options that matter to an examination.
func fileBelow(disk string) (path string, opts block.Values, err error) {
	vals, err := graph.Disk{Name: disk}.Values()
	if err != nil {
		return "", nil, &usageError{err}
	}
	for sub := vals.Sub("file"); sub != nil; sub = vals.Sub("file") {
		vals = sub
	}
	if vals["filename"] == "" {
		return "", nil, usagef("%s: probe looks at files and block devices, and this is neither: there is no storage behind driver %s to ask", disk, vals["driver"])
	}
	opts = block.Values{}
	for _, name := range []string{"aio", "request-align", "mem-align", "segment-align"} {
		if x, ok := vals[name]; ok {
			opts[name] = x
		}
	}
	return vals["filename"], opts, nil
}

// examine asks about the file, and refuses a write test that has no safe place.
func examine(path string, opts block.Values, writeTest bool) (*finding, error) {
	x, err := file.Examine(path, opts)
	if err != nil {
		return nil, err
	}
	if writeTest && x.Kind != "regular file" {
		return nil, usagef("%s: --write-test writes to a file beside the disk, which says nothing about a device: probe a file on it", path)
	}
	return &finding{Examination: x}, nil
}

// usableEngines are the engines worth comparing on this file.
func usableEngines(x *file.Examination) []string {
	var names []string
	if x.Engines.Uring.Usable {
		names = append(names, "io_uring")
	}
	if x.Engines.Native.Usable && x.Direct {
		names = append(names, "native")
	}
	return append(names, "threads")
}

// progress shows people at a terminal what is measured.
func progress() func(done, total int, what string) {
	if !onTerminal(os.Stderr) {
		return nil
	}
	return func(done, total int, what string) {
		fmt.Fprintf(os.Stderr, "\r\x1b[K%3d %%  %s", done*100/max(total, 1), what)
	}
}

func clearProgress() {
	if onTerminal(os.Stderr) {
		fmt.Fprint(os.Stderr, "\r\x1b[K")
	}
}

func onTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
