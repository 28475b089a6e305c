package qcow2

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/race"
	"github.com/platter-storage/platter/internal/testutil"
)

// image makes one with qemu-img and writes into it with qemu-io.
func image(t testing.TB, size, options string, writes ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image.qcow2")
	args := []string{"create", "-q", "-f", "qcow2"}
	if options != "" {
		args = append(args, "-o", options)
	}
	testutil.Run(t, "qemu-img", append(args, path, size)...)
	io(t, path, writes...)
	return path
}

func io(t testing.TB, path string, commands ...string) {
	t.Helper()
	args := []string{"-f", "qcow2"}
	for _, w := range commands {
		args = append(args, "-c", w)
	}
	if len(commands) > 0 {
		testutil.Run(t, "qemu-io", append(args, path)...)
	}
}

// theirs is what qemu-img check says of the file.
func theirs(t testing.TB, path string, args ...string) (r block.CheckResult) {
	t.Helper()
	out, _ := testutil.Try("qemu-img", append(append([]string{"check", "-f", "qcow2", "--output=json"}, args...), path)...)
	at := strings.Index(out, "\n{")
	if strings.HasPrefix(out, "{") {
		at = 0
	}
	if at < 0 {
		r.CheckErrors = -1
		return r
	}
	var j map[string]any
	if err := json.NewDecoder(strings.NewReader(out[at:])).Decode(&j); err != nil {
		t.Fatalf("qemu-img check: %v in %s", err, out)
	}
	for name, p := range map[string]*int64{"check-errors": &r.CheckErrors, "corruptions": &r.Corruptions, "leaks": &r.Leaks,
		"corruptions-fixed": &r.CorruptionsFixed, "leaks-fixed": &r.LeaksFixed, "image-end-offset": &r.ImageEndOffset,
		"total-clusters": &r.TotalClusters, "allocated-clusters": &r.AllocatedClusters, "fragmented-clusters": &r.FragmentedClusters,
		"compressed-clusters": &r.CompressedClusters} {
		if x, ok := j[name].(float64); ok {
			*p = int64(x)
		}
	}
	return r
}

// kinds are images with each feature that the checker knows, the test's own.
func kinds(t testing.TB) map[string]string {
	t.Helper()
	made.Lock()
	defer made.Unlock()
	if made.images == nil {
		images := map[string][]byte{}
		for name, path := range makeKinds(t) {
			images[name] = load(t, path).b
		}
		made.images = images
	}
	all := map[string]string{}
	for name, b := range made.images {
		if race.Enabled && !slices.Contains([]string{"plain", "v2", "extended", "snapshots", "bitmaps", "zstd", "refcounts 1"}, name) {
			continue // what is tried on them runs on one goroutine
		}
		all[name] = filepath.Join(t.TempDir(), "image.qcow2")
		save(t, b, all[name])
	}
	return all
}

// made are the images that kinds copies, made once.
var made struct {
	sync.Mutex
	images map[string][]byte
}

func makeKinds(t testing.TB) map[string]string {
	t.Helper()
	scribble := []string{"write -P 1 0 3M", "write -P 2 5M 100k", "write -z 1M 200k", "discard 2M 300k", "write -c -P 3 6M 64k", "write -P 4 7000k 9000", "write -P 9 12M 1M", "write 8M 64k"}
	all := map[string]string{}
	for name, o := range map[string]string{
		"plain": "", "v2": "compat=0.10", "small": "cluster_size=512", "large": "cluster_size=2M", "extended": "extended_l2=on,cluster_size=16k",
		"refcounts 1": "refcount_bits=1", "refcounts 64": "refcount_bits=64,cluster_size=4k", "refcounts 2": "refcount_bits=2,cluster_size=1k",
		"metadata": "preallocation=metadata", "zstd": "compression_type=zstd",
	} {
		w := scribble
		if name == "large" || name == "metadata" || name == "extended" || name == "small" || strings.HasPrefix(name, "refcounts") {
			w = nil
			for _, x := range scribble {
				if !strings.Contains(x, "-c") {
					w = append(w, x)
				}
			}
		}
		all[name] = image(t, "64M", o, w...)
	}
	snap := image(t, "64M", "cluster_size=4k", scribble[:4]...)
	for _, s := range []string{"one", "two"} {
		testutil.Run(t, "qemu-img", "snapshot", "-c", s, snap)
		io(t, snap, "write -P 5 100k 300k", "write -P 6 20M 50k")
	}
	all["snapshots"] = snap
	bitmaps := image(t, "64M", "cluster_size=4k", scribble[:3]...)
	testutil.Run(t, "qemu-img", "bitmap", "--add", "-g", "512", bitmaps, "fine")
	testutil.Run(t, "qemu-img", "bitmap", "--add", "--disable", bitmaps, "off")
	io(t, bitmaps, "write 3M 5M")
	all["bitmaps"] = bitmaps
	return all
}

// Sound images of every kind are found sound, with the figures that qemu-img
// gives.
func TestSoundImages(t *testing.T) {
	for name, path := range kinds(t) {
		t.Run(name, func(t *testing.T) {
			want := theirs(t, path)
			got, told, err := load(t, path).check(t, 0)
			if err != nil || got != want {
				t.Errorf("%v: got  %+v\nwant %+v\n%s", err, got, want, strings.Join(told, "\n"))
			}
			if got.Corruptions+got.Leaks+got.CheckErrors != 0 {
				t.Errorf("a sound image: %+v", got)
			}
		})
	}
}
