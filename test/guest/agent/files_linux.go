package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/test/guest/scenario"
)

// readSize is the request of the direct readers, which once cost one storage
// stack dearly.
const readSize = 8 << 10

// tree is an ext4 file system with files whose content is known.
type tree struct {
	disk disk
	on   string // where it is mounted
	work scenario.FileWork
}

// files makes a file system, works in it as a person would, and ends with an
// unmounted disk on which everything was found to be right.
func files(c *call) (any, error) {
	var t tree
	if err := c.into(&t.work); err != nil {
		return nil, err
	}
	var err error
	if t.disk, err = awaitDisk(t.work.Device); err != nil {
		return nil, err
	}
	t.on = "/mnt/" + t.work.Device
	var out scenario.FileResult
	for _, step := range []struct {
		name string
		do   func(*scenario.FileResult) error
	}{
		{"mkfs", t.format},
		{"mount", t.mount},
		{"write", t.fill},
		{"concurrent direct reads", t.readDirect},
		{"trim", t.trim},
		{"unmount", t.unmount},
		{"fsck", t.check},
		{"mount again", t.mount},
		{"read", t.readBack},
		{"unmount again", t.unmount},
	} {
		if err := step.do(&out); err != nil {
			return nil, fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return out, nil
}

func (t *tree) format(*scenario.FileResult) error {
	if err := modprobe("ext4"); err != nil {
		return err
	}
	_, err := run("mkfs.ext4", "-q", "-F", t.disk.path())
	return err
}

func (t *tree) mount(*scenario.FileResult) error { return mount(t.disk.path(), "ext4", t.on, "") }

func (t *tree) unmount(*scenario.FileResult) error { return unix.Unmount(t.on, 0) }

func (t *tree) name(i int) string { return filepath.Join(t.on, fmt.Sprintf("file-%d", i)) }

// fill writes the files through the page cache, and beside each one that trim
// removes again.
func (t *tree) fill(*scenario.FileResult) error {
	content := make([]byte, t.work.Bytes)
	for i := range t.work.Files {
		scenario.Fill(content, t.work.Seed+uint64(i), 0)
		for _, name := range []string{t.name(i), t.name(i) + ".gone"} {
			if err := writeFile(name, content); err != nil {
				return err
			}
		}
	}
	return nil
}

func writeFile(name string, content []byte) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(content); err != nil {
		return err
	}
	return f.Sync()
}

// readDirect reads all files at once, each by a reader of its own.
func (t *tree) readDirect(out *scenario.FileResult) error {
	errs := make([]error, t.work.Files)
	var wg sync.WaitGroup
	for i := range t.work.Files {
		wg.Go(func() { errs[i] = t.readOne(i) })
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			return fmt.Errorf("%s: %w", t.name(i), err)
		}
		out.Readers++
	}
	return nil
}

func (t *tree) readOne(i int) error {
	f, err := openDirect(t.name(i), unix.O_RDONLY, readSize)
	if err != nil {
		return err
	}
	defer f.close()
	want := make([]byte, readSize)
	for off := int64(0); off < t.work.Bytes; off += readSize {
		if err := f.readAt(f.buf, off); err != nil {
			return err
		}
		scenario.Fill(want, t.work.Seed+uint64(i), off)
		if !bytes.Equal(f.buf, want) {
			return fmt.Errorf("the %d bytes at %d are not what was written", readSize, off)
		}
	}
	return nil
}

var trimmed = regexp.MustCompile(`\((\d+) bytes\) trimmed`)

func (t *tree) trim(out *scenario.FileResult) error {
	for i := range t.work.Files {
		if err := os.Remove(t.name(i) + ".gone"); err != nil {
			return err
		}
	}
	unix.Sync()
	text, err := run("fstrim", "-v", t.on)
	if err != nil {
		return err
	}
	m := trimmed.FindStringSubmatch(text)
	if m == nil {
		return fmt.Errorf("fstrim says %q", text)
	}
	out.Trimmed, err = strconv.ParseInt(m[1], 10, 64)
	return err
}

func (t *tree) check(out *scenario.FileResult) error {
	text, err := run("e2fsck", "-fn", t.disk.path())
	out.Fsck = text
	return err
}

// readBack reads the files through a page cache that knows nothing of them:
// the file system has been mounted anew and the disk's own pages dropped.
func (t *tree) readBack(out *scenario.FileResult) error {
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0); err != nil {
		return err
	}
	for i := range t.work.Files {
		f, err := os.Open(t.name(i))
		if err != nil {
			return err
		}
		sum := sha256.New()
		_, err = io.Copy(sum, f)
		f.Close()
		if err != nil {
			return err
		}
		out.ReadSums = append(out.ReadSums, hex.EncodeToString(sum.Sum(nil)))
	}
	return nil
}

// fioReport is what fio's JSON has of interest.
type fioReport struct {
	Jobs []struct {
		Error int `json:"error"`
		Read  struct {
			Bytes int64 `json:"io_bytes"`
		} `json:"read"`
		Write struct {
			Bytes int64 `json:"io_bytes"`
		} `json:"write"`
	} `json:"jobs"`
}

func fioVerify(c *call) (any, error) {
	var args scenario.FioWork
	if err := c.into(&args); err != nil {
		return nil, err
	}
	d, err := awaitDisk(args.Device)
	if err != nil {
		return nil, err
	}
	const report = "/tmp/fio.json"
	_, err = run("fio", "--name=verify", "--filename="+d.path(), "--direct=1", "--rw=randwrite", "--bs=8k",
		"--ioengine="+args.Engine, "--iodepth="+strconv.Itoa(args.Depth), "--size="+strconv.FormatInt(args.Bytes, 10),
		"--verify=crc32c", "--verify_fatal=1", "--do_verify=1", "--thread", "--output-format=json", "--output="+report)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(report)
	if err != nil {
		return nil, err
	}
	// fio may put notes of its own before the report.
	if i := bytes.IndexByte(text, '{'); i > 0 {
		text = text[i:]
	}
	var got fioReport
	if err := json.Unmarshal(text, &got); err != nil {
		return nil, fmt.Errorf("fio's report: %w: %.500s", err, text)
	}
	var out scenario.FioResult
	for _, j := range got.Jobs {
		out.Written += j.Write.Bytes
		out.Read += j.Read.Bytes
		if j.Error != 0 {
			out.Errors++
		}
	}
	return out, nil
}
