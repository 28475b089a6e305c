package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// device is the block device below a file system.
type device struct {
	name string
	stat string // its file of counters
}

// deviceOf finds the device that dir's file system is on.
func deviceOf(dir string) (device, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return device{}, fmt.Errorf("%s: %w", dir, err)
	}
	link := fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	target, err := os.Readlink(link)
	if err != nil {
		return device{}, fmt.Errorf("the file system of %s is on no block device of its own (give another with -dir): %w", dir, err)
	}
	return device{name: filepath.Base(target), stat: filepath.Join(link, "stat")}, nil
}

// writes is how many write requests the device has completed.
func (d device) writes() (int64, error) {
	text, err := os.ReadFile(d.stat)
	if err != nil {
		return 0, err
	}
	n, err := parseWrites(string(text))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", d.stat, err)
	}
	return n, nil
}

// parseWrites reads the fifth counter (Documentation/block/stat.rst): write
// requests completed, after merging.
func parseWrites(text string) (int64, error) {
	fields := strings.Fields(text)
	if len(fields) < 11 {
		return 0, fmt.Errorf("%d counters, want at least 11", len(fields))
	}
	return strconv.ParseInt(fields[4], 10, 64)
}
