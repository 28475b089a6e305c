package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/protocol/file"
	"github.com/platter-storage/platter/serve/probe"
)

// finding is all that probe has to say of a disk.
type finding struct {
	Examination *file.Examination  `json:"examination"`
	Measurement *probe.Measurement `json:"measurement,omitempty"`
	Advice      []string           `json:"advice"`
}

func newProbe() *cobra.Command {
	var json, noMeasure, writeTest bool
	var cellTime time.Duration
	cmd := &cobra.Command{
		Use:   "probe PATH",
		Short: "say what storage can do, who says so, and how fast it is",
		Long: `Probe asks every source about a file or block device: the file system, statx,
ioctls, sysfs, and trial reads. It shows the limits that follow, each with its
origin, which engine would carry requests and why, and whether direct I/O works.

Then it measures reads: with memory aligned and off by 512 bytes, in one piece
and in scattered pieces, and with each engine. It takes no locks and writes
nothing, so the disk may be in use; with --write-test it measures writes too, to
a temporary file of 64 MiB beside PATH.`,
		Example: "  platter probe disk.img\n  platter probe --write-test disk.img\n  platter probe --json --no-measure /dev/sdb",
		Args:    args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, paths []string) error {
			f, err := examine(paths[0], writeTest)
			if err != nil {
				return err
			}
			if !noMeasure {
				o := probe.Options{Path: paths[0], Engines: usableEngines(f.Examination), Write: writeTest, CellTime: cellTime, Progress: progress()}
				f.Measurement, err = probe.Run(cmd.Context(), o)
				clearProgress()
				if err != nil {
					return fmt.Errorf("measuring %s: %w (--no-measure leaves it away)", paths[0], err)
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
	cmd.Flags().BoolVar(&writeTest, "write-test", false, "measure writes too, to a temporary file beside PATH")
	cmd.Flags().DurationVar(&cellTime, "time", 250*time.Millisecond, "how long each line is measured")
	return cmd
}

// examine asks about the file, and refuses a write test that has no safe place.
func examine(path string, writeTest bool) (*finding, error) {
	x, err := file.Examine(path, nil)
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
