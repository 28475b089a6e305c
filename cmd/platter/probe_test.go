package main

import (
	"strings"
	"testing"

	"github.com/platter-storage/platter/protocol/file"
	"github.com/platter-storage/platter/serve/probe"
)

// fine is a finding that nothing can be said against.
func fine() *finding {
	x := &file.Examination{
		Kind: "regular file", Size: 1 << 30, Allocated: 1 << 30, Direct: true, Engine: "io_uring",
		Limits: []file.Limit{{Name: "write_align", Value: 512, Origin: "statx"}, {Name: "min_mem", Value: 512, Origin: "statx"}, {Name: "physical_block", Value: 4096, Origin: "file system"}},
	}
	x.Engines.Uring.Usable = true
	return &finding{Examination: x, Measurement: &probe.Measurement{Rows: []probe.Row{
		measured("read", 4<<10, 1, 0, 1, "auto", 1000), measured("read", 4<<10, 1, 512, 1, "auto", 1000),
		measured("read", 64<<10, 1, 0, 1, "auto", 500), measured("read", 64<<10, 16, 0, 1, "auto", 500),
		measured("read", 256<<10, 1, 0, 1, "auto", 200), measured("read", 256<<10, 64, 0, 1, "auto", 200),
		measured("read", 4<<10, 1, 0, 16, "io_uring", 9000), measured("read", 4<<10, 1, 0, 16, "threads", 9500),
	}}}
}

func measured(op string, bytes, elements, misplaced, depth int, aio string, rate float64) probe.Row {
	return probe.Row{Op: op, Bytes: bytes, Elements: elements, Misplaced: misplaced, Depth: depth, Engine: aio, Rate: rate, Spread: 0.1, P50: 1, P99: 1}
}

func TestAdvice(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(f *finding)
		want   string
	}{
		{"nothing", func(*finding) {}, "nothing that a setting could change was found"},
		{"unmeasured", func(f *finding) { f.Measurement = nil }, "nothing that a setting could change was found"},
		{"no direct I/O", func(f *finding) { f.Examination.Direct = false }, "direct I/O does not work here"},
		{"page cache", func(f *finding) { f.Examination.ByPageCache = true }, "served through the page cache"},
		{"disagreement", func(f *finding) { f.Examination.Disagreement = "x" }, "the storage refuses what it states"},
		{"sparse", func(f *finding) { f.Examination.Allocated = 1 << 20 }, "only 1 MiB of 1 GiB are allocated"},
		{"large blocks", func(f *finding) { f.Examination.Limits[0].Value = 4096 }, "logical_block_size=4096"},
		{"memory", func(f *finding) { f.Examination.Limits[1].Value = 4096 }, "memory must be aligned to 4096 bytes here"},
		{"device blocks", func(f *finding) { f.Examination.Limits[2].Origin = "sysfs" }, "physical_block_size=4096"},
		{"no io_uring", func(f *finding) {
			f.Examination.Engines.Uring.Usable, f.Examination.Engines.Uring.Why = false, "seccomp forbids it"
		}, "io_uring does not work here: seccomp forbids it"},
		{"misaligned memory", func(f *finding) { f.Measurement.Rows[1].Rate = 500 }, "reads with memory that is off by 512 bytes are 2.0 times slower"},
		{"scattered", func(f *finding) { f.Measurement.Rows[5].Rate = 50 }, "reads of 256 KiB are 4.0 times slower in 64 scattered pieces"},
		{"holes", func(f *finding) { f.Measurement.Holes = true; f.Measurement.Rows[5].Rate = 50 }, "the disk holds no data"},
		{"engine", func(f *finding) { f.Measurement.Rows[7].Rate = 18000 }, "--aio threads is 2.0 times as fast as io_uring here"},
		{"noise", func(f *finding) { f.Measurement.Rows[7].Rate, f.Measurement.Rows[7].Spread = 18000, 1.5 }, "nothing that a setting could change was found"},
	} {
		f := fine()
		c.change(f)
		if got := advice(f); len(got) != 1 || !strings.Contains(got[0], c.want) {
			t.Errorf("%s: %q, want one sentence with %q", c.name, got, c.want)
		}
	}
}

func TestFindingAsText(t *testing.T) {
	f := fine()
	f.Examination.Path, f.Examination.DirectReason = "d.img", "works"
	f.Examination.Answers = []file.Answer{{Source: "statx", Said: "512"}, {Source: "trial", Said: "1024", Error: "EINVAL"}, {Source: "ioctl", Error: "ENOTTY"}}
	f.Measurement.Holes = true
	f.Advice = advice(f)
	var b strings.Builder
	if err := f.writeText(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"d.img: regular file, 1 GiB (1073741824 bytes), 1 GiB allocated\n", "\ndirect I/O: works\n", "\n  write_align     512 bytes  statx\n",
		"\n  trial  1024: EINVAL\n", "\n  ioctl  ENOTTY\n", "which holds no data", "\nwhat to change if it is slow\n  - the disk holds no data",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the text lacks %q:\n%s", want, b.String())
		}
	}
}

func TestDuration(t *testing.T) {
	for ns, want := range map[int64]string{12: "12ns", 1234: "1.23µs", 1234567: "1.23ms", 1234567890: "1.23s"} {
		if got := duration(ns); got != want {
			t.Errorf("%d ns is %s, want %s", ns, got, want)
		}
	}
}
