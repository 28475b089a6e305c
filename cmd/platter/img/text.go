package img

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"
	"time"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/image"
)

// printJSON writes v, indented by four.
func printJSON(w io.Writer, v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "    ")
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(b.Bytes())
	return err
}

// shortSize is a size with three digits, as in listings: 64 KiB, 1.5 MiB, 0 B.
func shortSize(n int64) string {
	f, unit := float64(n), 0
	for f >= 1000 && unit < 6 { // a unit for less than four digits
		f, unit = f/1024, unit+1
	}
	return fmt.Sprintf("%.3g %s", f, [...]string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}[unit])
}

// printInfo writes what people and scripts read.
func printInfo(w io.Writer, in image.Info, level string, child bool) {
	line := func(format string, a ...any) { fmt.Fprintf(w, level+format+"\n", a...) }
	if child {
		line("filename: %s", in.Filename)
		line("protocol type: %s", in.Format)
		line("file length: %s (%d bytes)", shortSize(in.VirtualSize), in.VirtualSize)
	} else {
		line("image: %s", in.Filename)
		line("file format: %s", in.Format)
		line("virtual size: %s (%d bytes)", shortSize(in.VirtualSize), in.VirtualSize)
	}
	if in.ActualSize != nil {
		line("disk size: %s", shortSize(*in.ActualSize))
	} else {
		line("disk size: unavailable")
	}
	if in.Encrypted {
		line("encrypted: yes")
	}
	if in.ClusterSize > 0 && !child {
		line("cluster_size: %d", in.ClusterSize)
	}
	if in.DirtyFlag {
		line("cleanly shut down: no")
	}
	if in.BackingFilename != "" {
		actual := ""
		if in.FullBackingFilename != in.BackingFilename {
			actual = fmt.Sprintf(" (actual path: %s)", in.FullBackingFilename)
		}
		line("backing file: %s%s", in.BackingFilename, actual)
		if in.BackingFilenameFormat != "" {
			line("backing file format: %s", in.BackingFilenameFormat)
		}
	}
	if len(in.Snapshots) > 0 {
		fmt.Fprintln(w, "Snapshot list:")
		printSnapshots(w, in.Snapshots)
	}
	if in.FormatSpecific != nil && len(in.FormatSpecific.Data) > 0 {
		line("Format specific information:")
		printFields(w, in.FormatSpecific.Data, level+"    ")
	}
	for _, c := range in.Children {
		line("Child node '/%s':", c.Name)
		printInfo(w, c.Info, level+"    ", true)
	}
}

func printFields(w io.Writer, fields []block.Field, level string) {
	for _, f := range fields {
		name := strings.ReplaceAll(f.Name, "-", " ")
		v := reflect.ValueOf(f.Value)
		if v.Kind() != reflect.Slice {
			fmt.Fprintf(w, "%s%s: %v\n", level, name, f.Value)
			continue
		}
		fmt.Fprintf(w, "%s%s:\n", level, name)
		text, err := json.Marshal(f.Value)
		var list []map[string]any
		if err == nil && json.Unmarshal(text, &list) == nil {
			printList(w, list, level+"    ")
		}
	}
}

// printList writes the entries of a list as they have names and values.
func printList(w io.Writer, list []map[string]any, level string) {
	for i, entry := range list {
		fmt.Fprintf(w, "%s[%d]:\n", level, i)
		for _, k := range []string{"flags", "name", "granularity"} {
			x, has := entry[k]
			if !has {
				continue
			}
			flags, is := x.([]any)
			if !is {
				fmt.Fprintf(w, "%s    %s: %v\n", level, k, x)
				continue
			}
			fmt.Fprintf(w, "%s    %s:\n", level, k)
			for n, f := range flags {
				fmt.Fprintf(w, "%s        [%d]: %v\n", level, n, f)
			}
		}
	}
}

// printSnapshots writes the table of snapshots.
func printSnapshots(w io.Writer, list []image.SnapshotInfo) {
	fmt.Fprintf(w, "%-7s %-16s %8s %19s %15s %10s\n", "ID", "TAG", "VM_SIZE", "DATE", "VM_CLOCK", "ICOUNT")
	for _, s := range list {
		clock := fmt.Sprintf("%04d:%02d:%02d.%03d", s.VMClockSec/3600, s.VMClockSec/60%60, s.VMClockSec%60, s.VMClockNsec/1e6)
		icount := "--"
		if s.ICount != nil {
			icount = fmt.Sprint(*s.ICount)
		}
		fmt.Fprintf(w, "%-7s %-16s %8s %19s %15s %10s\n", s.ID, s.Name, shortSize(s.VMStateSize),
			time.Unix(s.DateSec, 0).Format("2006-01-02 15:04:05"), clock, icount)
	}
}
