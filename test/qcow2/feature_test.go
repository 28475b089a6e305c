package qcow2

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/platter-storage/platter/block"
	bt "github.com/platter-storage/platter/block/blocktest"
	"github.com/platter-storage/platter/graph"
	"github.com/platter-storage/platter/internal/testutil"
)

// written is what each image of a feature is given.
var written = []string{"write -P 1 0 300k", "write -P 2 1M 100k", "write -z 64k 64k", "write -z -u 1M 8k", "discard 128k 64k", "write -P 3 1500k 512", "write -P 4 1900k 70k"}

// packed is what is written compressed: whole clusters of 64 KiB.
var packed = []string{"write -c -P 9 512k 64k", "write -c -P 10 576k 64k", "write -c -P 11 704k 64k", "write -P 12 600k 1k"}

// feature is an image as the reference makes it.
type feature struct {
	name, opts string
	do         []string
	size       string
}

func features() (all []feature) {
	for _, c := range []string{"512", "1k", "2k", "4k", "8k", "16k", "32k", "64k", "128k", "256k", "512k", "1M", "2M"} {
		all = append(all, feature{"cluster" + c, "cluster_size=" + c, written, "3M"})
	}
	for _, b := range []int{1, 2, 4, 8, 16, 32, 64} {
		all = append(all, feature{fmt.Sprintf("refcount%d", b), fmt.Sprintf("refcount_bits=%d", b), append(written[:len(written):len(written)], packed...), "3M"})
	}
	for _, c := range []string{"16k", "64k", "2M"} {
		all = append(all, feature{"extended" + c, "extended_l2=on,cluster_size=" + c, written, "3M"})
	}
	both := append(written[:len(written):len(written)], packed...)
	return append(all,
		feature{"v2", "compat=0.10", both, "3M"},
		feature{"zlib", "compression_type=zlib", both, "3M"},
		feature{"zstd", "compression_type=zstd", both, "3M"},
		feature{"extendedzstd", "compression_type=zstd,extended_l2=on", both, "3M"},
		feature{"extendedzlib", "compression_type=zlib,extended_l2=on", both, "3M"},
		feature{"lazy", "lazy_refcounts=on", written, "3M"},
		feature{"metadata", "preallocation=metadata", written, "3M"},
		feature{"falloc", "preallocation=falloc", written, "3M"},
		feature{"full", "preallocation=full", written, "3M"},
		feature{"odd size", "", written, "3147264"},
		feature{"data file", "data_file=DIR/data.bin", written, "3M"},
		feature{"raw data file", "data_file=DIR/data.bin,data_file_raw=on", written, "3M"},
	)
}

// TestImagesOfTheReference: images of every feature read as the reference reads
// them, are sound for our check, take our writes, and are sound for both after
// that.
func TestImagesOfTheReference(t *testing.T) {
	for _, f := range features() {
		t.Run(f.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "image.qcow2")
			args := []string{"create", "-q", "-f", "qcow2"}
			if f.opts != "" {
				args = append(args, "-o", strings.ReplaceAll(f.opts, "DIR", dir))
			}
			testutil.Run(t, "qemu-img", append(args, path, f.size)...)
			io := []string{"-d", "unmap", "-f", "qcow2"}
			for _, c := range f.do {
				io = append(io, "-c", c)
			}
			if out := testutil.Run(t, "qemu-io", append(io, path)...); strings.Contains(out, "failed") {
				t.Fatal(out)
			}
			equal(t, f.name, readOurs(t, path, nil), readTheirs(t, path))
			sound(t, f.name, path)
			scribble(t, path)
			equal(t, f.name+" after our writes", readOurs(t, path, nil), readTheirs(t, path))
			sound(t, f.name+" after our writes", path)
		})
	}
}

// scribble writes over all kinds of clusters, and checks that it reads so.
func scribble(t *testing.T, path string) {
	t.Helper()
	want := readOurs(t, path, nil)
	use(t, path, false, nil, func(c *bt.Client) {
		for i, at := range []int64{1000, 66000, 130000, 524288 + 100, 600<<10 + 512, 720 << 10, 1 << 20, 2 << 20, int64(len(want)) - 5000} {
			b := bt.Pattern(make([]byte, 5000), uint64(i))
			copy(want[at:], b)
			if err := c.Write(at, 0, b); err != nil {
				t.Fatal(err)
			}
		}
		clear(want[300<<10 : 340<<10])
		if err := c.Zero(300<<10, 40<<10, block.MayUnmap); err != nil {
			t.Fatal(err)
		}
	})
	if got := readOurs(t, path, nil); string(got) != string(want) {
		t.Error("what is read is not what was written")
	}
}

// TestSnapshotsOfTheReference: each snapshot of an image reads as the reference
// reads it.
func TestSnapshotsOfTheReference(t *testing.T) {
	for _, opts := range []string{"cluster_size=4k", "compat=0.10", "extended_l2=on"} {
		path := filepath.Join(t.TempDir(), "image.qcow2")
		testutil.Run(t, "qemu-img", "create", "-q", "-f", "qcow2", "-o", opts, path, "3M")
		for i, c := range written {
			testutil.Run(t, "qemu-io", "-f", "qcow2", "-c", c, path)
			testutil.Run(t, "qemu-img", "snapshot", "-c", fmt.Sprint("s", i), path)
		}
		for i := range written {
			raw := path + ".raw"
			testutil.Run(t, "qemu-img", "convert", "-l", fmt.Sprint("s", i), "-f", "qcow2", "-O", "raw", path, raw)
			want, err := os.ReadFile(raw)
			if err != nil {
				t.Fatal(err)
			}
			equal(t, fmt.Sprintf("%s, snapshot %d", opts, i), readOurs(t, path, block.Values{"snapshot": fmt.Sprint("s", i)}), want)
		}
	}
}

// create makes an image with Platter.
func create(t testing.TB, path string, size int64, vals block.Values) {
	t.Helper()
	d := graph.Disk{Name: path, Format: "qcow2"}
	if err := graph.Create(context.Background(), bt.NewEnv(t), d, graph.CreateOptions{Size: size, Options: vals}); err != nil {
		t.Fatal(err)
	}
}

// chain makes an image of so many layers, each with some clusters of its own,
// and returns the topmost and the content.
func chain(t *testing.T, dir string, layers int) (top string, want []byte) {
	t.Helper()
	const cluster = 4096
	want = make([]byte, 256*cluster)
	below := ""
	for i := range layers {
		top = filepath.Join(dir, fmt.Sprintf("layer%d.qcow2", i))
		vals := block.Values{"cluster_size": "4K"}
		if below != "" {
			vals["backing_file"], vals["backing_fmt"] = below, "qcow2"
		}
		create(t, top, int64(len(want)), vals)
		below = filepath.Base(top)
		// Whole clusters need nothing from below, which is left closed.
		at := i * 37 % 255 * cluster
		b := bt.Pattern(make([]byte, 2*cluster), uint64(i))
		copy(want[at:], b)
		use(t, top, false, block.Values{"backing": ""}, func(c *bt.Client) {
			if err := c.Write(int64(at), 0, b); err != nil {
				t.Fatal(err)
			}
		})
	}
	return top, want
}

// TestChains: chains of many layers read right, through us and through the
// reference, and take writes.
func TestChains(t *testing.T) {
	for _, layers := range []int{2, 64, 200} {
		t.Run(fmt.Sprint(layers), func(t *testing.T) {
			top, want := chain(t, t.TempDir(), layers)
			equal(t, "the chain through us", readOurs(t, top, nil), want)
			equal(t, "the chain through the reference", readTheirs(t, top), want)
			b := bt.Pattern(make([]byte, 1000), 1234)
			use(t, top, false, nil, func(c *bt.Client) {
				if err := c.Write(333_333, 0, b); err != nil {
					t.Fatal(err)
				}
			})
			copy(want[333_333:], b)
			equal(t, "after a write, through us", readOurs(t, top, nil), want)
			equal(t, "after a write, through the reference", readTheirs(t, top), want)
			sound(t, "the top", top)
		})
	}
}

// TestChainThatEndsInItself: images that are below themselves are refused, and
// the sentence says so.
func TestChainThatEndsInItself(t *testing.T) {
	dir := t.TempDir()
	for name, below := range map[string]string{"self": "self", "a": "b", "b": "c", "c": "a"} {
		create(t, filepath.Join(dir, name+".qcow2"), 1<<20, block.Values{"backing_file": below + ".qcow2", "backing_fmt": "qcow2"})
	}
	for _, name := range []string{"self", "a"} {
		for _, readOnly := range []bool{true, false} {
			err := tryUse(t, filepath.Join(dir, name+".qcow2"), readOnly, nil, func(*bt.Client) {})
			if err == nil || !strings.Contains(err.Error(), "chain") && !errors.Is(err, syscall.EBUSY) && !strings.Contains(err.Error(), "lock") {
				t.Errorf("%s, read-only %v: %v", name, readOnly, err)
			}
		}
	}
}
