package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/test/guest/scenario"
)

// deviceName keeps what the host says from naming anything but a disk.
var deviceName = regexp.MustCompile(`^[a-z]+[0-9]*$`)

// disk is a disk's folder in /sys/block, once the disk is there. Its file in
// /dev comes before its attributes do.
type disk string

func awaitDisk(name string) (disk, error) {
	if !deviceName.MatchString(name) {
		return "", fmt.Errorf("%q is not a disk's name", name)
	}
	for began := time.Now(); time.Since(began) < patience; time.Sleep(10 * time.Millisecond) {
		d := disk("/sys/block/" + name)
		if _, err := os.Stat(d.path()); err == nil && d.text("queue/logical_block_size") != "" && d.text("mq/0/nr_tags") != "" {
			return d, nil
		}
	}
	return "", fmt.Errorf("no disk %s after %v: its server does not answer its driver", name, patience)
}

func (d disk) path() string { return "/dev/" + filepath.Base(string(d)) }

// text is an attribute; "" where the disk has none of that name.
func (d disk) text(name string) string {
	text, err := os.ReadFile(filepath.Join(string(d), name))
	if err != nil {
		return ""
	}
	return strings.Trim(string(text), "\x00\n ")
}

// number is an attribute that has to be there.
func (d disk) number(name string, into *int64) error {
	n, err := strconv.ParseInt(d.text(name), 10, 64)
	if err != nil {
		return fmt.Errorf("%s/%s: %w", d, name, err)
	}
	*into = n
	return nil
}

func (d disk) size() (int64, error) {
	var sectors int64
	err := d.number("size", &sectors)
	return sectors * scenario.Sector, err
}

func identify(c *call) (any, error) {
	var args scenario.Device
	if err := c.into(&args); err != nil {
		return nil, err
	}
	d, err := awaitDisk(args.Device)
	if err != nil {
		return nil, err
	}
	var logical, physical, minimum, optimal, readOnly, segments int64
	out := scenario.Identify{Serial: d.text("serial"), WriteCache: d.text("queue/write_cache"), Features: d.text("device/features")}
	for name, into := range map[string]*int64{
		"queue/logical_block_size": &logical, "queue/physical_block_size": &physical,
		"queue/minimum_io_size": &minimum, "queue/optimal_io_size": &optimal,
		"ro": &readOnly, "queue/max_segments": &segments,
		"queue/discard_max_bytes": &out.DiscardMax, "queue/discard_granularity": &out.DiscardGranularity,
		"queue/write_zeroes_max_bytes": &out.ZeroesMax,
	} {
		if err := d.number(name, into); err != nil {
			return nil, err
		}
	}
	out.Logical, out.Physical, out.MinimumIO, out.OptimalIO = int(logical), int(physical), int(minimum), int(optimal)
	out.ReadOnly, out.SegmentsMax = readOnly != 0, int(segments)
	queues, err := os.ReadDir(filepath.Join(string(d), "mq"))
	if err != nil {
		return nil, err
	}
	out.Queues = len(queues)
	out.Size, err = d.size()
	return out, err
}

// setCache tells the device, by its configuration space, what the guest wants.
func setCache(c *call) (any, error) {
	var args scenario.Cache
	if err := c.into(&args); err != nil {
		return nil, err
	}
	d, err := awaitDisk(args.Device)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(string(d)+"/cache_type", []byte(args.Mode), 0); err != nil {
		return nil, err
	}
	return scenario.Cache{Device: args.Device, Mode: d.text("queue/write_cache")}, nil
}

func awaitSize(c *call) (any, error) {
	var args scenario.Size
	if err := c.into(&args); err != nil {
		return nil, err
	}
	d, err := awaitDisk(args.Device)
	if err != nil {
		return nil, err
	}
	found := int64(-1)
	for began := time.Now(); time.Since(began) < patience; time.Sleep(10 * time.Millisecond) {
		if found, err = d.size(); err != nil {
			return nil, err
		}
		if found == args.Bytes {
			return scenario.Size{Device: args.Device, Bytes: found}, nil
		}
	}
	return nil, fmt.Errorf("%s has %d bytes and not %d after %v", args.Device, found, args.Bytes, patience)
}

// direct is a file opened past the page cache and a buffer fit for it.
type direct struct {
	fd  int
	buf []byte
}

const maxBuffer = 64 << 20

func openDirect(path string, flags, n int) (*direct, error) {
	if n <= 0 || n > maxBuffer {
		return nil, fmt.Errorf("requests of %d bytes: want 1 to %d", n, maxBuffer)
	}
	fd, err := unix.Open(path, flags|unix.O_DIRECT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, &os.PathError{Op: "open for direct I/O", Path: path, Err: err}
	}
	// A mapping begins at a page.
	buf, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("mmap", err)
	}
	return &direct{fd: fd, buf: buf}, nil
}

func (d *direct) close() error {
	unix.Munmap(d.buf)
	return unix.Close(d.fd)
}

func (d *direct) readAt(p []byte, off int64) error {
	n, err := unix.Pread(d.fd, p, off)
	return whole("read", n, len(p), off, err)
}

func (d *direct) writeAt(p []byte, off int64) error {
	n, err := unix.Pwrite(d.fd, p, off)
	return whole("write", n, len(p), off, err)
}

func whole(op string, n, want int, off int64, err error) error {
	if err == nil && n == want {
		return nil
	}
	return fmt.Errorf("%s of %d bytes at %d: %d done: %w", op, want, off, n, err)
}

func read(c *call) (any, error) { return transfer(c, unix.O_RDONLY) }

func write(c *call) (any, error) { return transfer(c, unix.O_RDWR) }

// transfer goes through a range in direct requests and sums up its content.
func transfer(c *call, flags int) (any, error) {
	var args scenario.Transfer
	if err := c.into(&args); err != nil {
		return nil, err
	}
	d, err := awaitDisk(args.Device)
	if err != nil {
		return nil, err
	}
	f, err := openDirect(d.path(), flags, args.Step)
	if err != nil {
		return nil, err
	}
	defer f.close()
	sum := sha256.New()
	for off, end := args.Off, args.Off+args.N; off < end; off += int64(args.Step) {
		p := f.buf[:min(int64(args.Step), end-off)]
		if flags == unix.O_RDONLY {
			err = f.readAt(p, off)
		} else {
			scenario.Fill(p, args.Seed, off)
			err = f.writeAt(p, off)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", args.Device, err)
		}
		sum.Write(p)
	}
	if args.Sync {
		if err := unix.Fdatasync(f.fd); err != nil {
			return nil, fmt.Errorf("%s: flush: %w", args.Device, err)
		}
	}
	return scenario.Sum{SHA256: hex.EncodeToString(sum.Sum(nil))}, nil
}

func discard(c *call) (any, error) {
	var args scenario.Device
	if err := c.into(&args); err != nil {
		return nil, err
	}
	d, err := awaitDisk(args.Device)
	if err != nil {
		return nil, err
	}
	_, err = run("blkdiscard", d.path())
	return nil, err
}

// complaint matches what the kernel says when a disk, or the kernel itself, is
// in trouble.
var complaint = regexp.MustCompile(`I/O error|blocked for more than|EXT4-fs.*(error|warning)|critical|BUG:|WARNING:|virtio\S*: .*(fail|error|not a head)|timed out`)

const kernelLog = 1 << 20

func trouble(*call) (any, error) {
	buf := make([]byte, kernelLog)
	n, err := unix.Klogctl(unix.SYSLOG_ACTION_READ_CLEAR, buf)
	if err != nil {
		return nil, os.NewSyscallError("syslog", err)
	}
	out := scenario.Trouble{}
	for line := range strings.Lines(string(buf[:n])) {
		if complaint.MatchString(line) {
			out.Lines = append(out.Lines, strings.TrimSpace(line))
		}
	}
	return out, nil
}
