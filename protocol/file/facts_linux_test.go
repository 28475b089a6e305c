package file

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/platter-storage/platter/block"
)

// TestQueueOfAPartition is that of the whole disk: a partition has none.
func TestQueueOfAPartition(t *testing.T) {
	root := t.TempDir()
	disk := filepath.Join(root, "devices/pci/vdx")
	for name, text := range map[string]string{
		"queue/logical_block_size": "4096\n", "queue/dma_alignment": "3\n", "queue/max_segments": "33\n", "queue/max_sectors_kb": "garbage\n",
		"queue/write_zeroes_max_bytes": "18446744073709551615\n", "vdx1/partition": "1\n",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(disk, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(disk, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	dev := filepath.Join(root, "dev/block")
	if err := os.MkdirAll(dev, 0o755); err != nil {
		t.Fatal(err)
	}
	for number, target := range map[string]string{"252:0": disk, "252:1": disk + "/vdx1", "7:0": root + "/gone"} {
		if err := os.Symlink(target, filepath.Join(dev, number)); err != nil {
			t.Fatal(err)
		}
	}
	for _, minor := range []uint32{0, 1} {
		a, err := readQueue(root, 252, minor)
		if err != nil {
			t.Fatal(err)
		}
		want := queueAnswer{dir: disk + "/queue", logical: 4096, dma: 4, maxSegments: 33}
		if a != want {
			t.Errorf("252:%d: %+v, want %+v", minor, a, want)
		}
	}
	for _, n := range [][2]uint32{{7, 0}, {8, 0}} {
		if a, err := readQueue(root, n[0], n[1]); err == nil {
			t.Errorf("%v: %+v, want an error", n, a)
		}
	}
}

// TestPartitionOnRealDevice finds the queue of the disk below a partition.
func TestPartitionOnRealDevice(t *testing.T) {
	dev := attachLoop(t, filepath.Join(t.TempDir(), "disk.img"), 16<<20, 4096)
	t.Cleanup(func() { run(t, "losetup", "--detach", dev) })
	run(t, "addpart", dev, "1", "2048", "8192") // in 512 bytes: 4 MiB
	t.Cleanup(func() { run(t, "delpart", dev, "1") })
	number := strings.TrimSpace(readText(t, "/sys/block/"+filepath.Base(dev)+"/"+filepath.Base(dev)+"p1/dev"))
	node := filepath.Join(t.TempDir(), "part")
	major, minor, _ := strings.Cut(number, ":")
	run(t, "mknod", node, "b", major, minor)
	e := openEdge(t, node, "cache=none")
	l := e.Limits()
	if e.Size() != 4<<20 || l.WriteAlign != 4096 || l.MaxSegments != uint16(attr("/sys/block/"+filepath.Base(dev)+"/queue", "max_segments")) || l.Origins.MaxSegments != block.OriginSysfs {
		t.Errorf("size %d, write alignment %d, segments %d by %v", e.Size(), l.WriteAlign, l.MaxSegments, l.Origins.MaxSegments)
	}
	if err := e.write(4<<20-512, pattern(aligned(t, 512, 0), 1)); err != nil {
		t.Error(err)
	}
}

func readText(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestParseRelease(t *testing.T) {
	for text, want := range map[string][2]int{
		"6.18.44-fc-v657": {6, 18}, "5.4": {5, 4}, "6.1-rc3": {6, 1}, "4.19.0": {4, 19}, "": {}, "garbage": {}, "7": {7, 0},
	} {
		if got := parseRelease(text); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

func TestMountsOf(t *testing.T) {
	path := writeFile(t, t.TempDir(), "mountinfo", []byte("36 35 98:0 /mnt1 /mnt2 rw - ext3 /dev/root rw\n37 35 98:1 / /x\\040y rw - xfs /dev/b rw\nshort\n"))
	if got := mountsOf(path, "98:1"); len(got) != 1 || got[0] != "/x\\040y" {
		t.Errorf("%q", got)
	}
	if got := mountsOf(path+".gone", "98:1"); got != nil {
		t.Errorf("%q", got)
	}
}

// TestExamine tells all, of files in use too, and changes nothing.
func TestExamine(t *testing.T) {
	path := makeDisk(t, mounted(t, "ext4", 4096), 1<<20, "")
	e := openEdge(t, path, "cache=none") // in use meanwhile
	x, err := Examine(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if x.Kind != "regular file" || x.FileSystem != "ext4" || x.Size != 1<<20 || x.Allocated != 4096 || !x.Direct || x.ByPageCache ||
		!strings.Contains(x.Device, " loop") || x.Engine == "" || x.EngineReason == "" || x.Disagreement != "" {
		t.Errorf("%+v", x)
	}
	sources := map[string]string{}
	for _, a := range x.Answers {
		sources[a.Source] = a.text()
	}
	for _, s := range []string{"file system", "statx", "sysfs", "cross-check", "trial"} {
		if sources[s] == "" {
			t.Errorf("nothing from %q: %v", s, sources)
		}
	}
	if len(x.Limits) != len(limitList(e.Limits())) || x.Limits[1] != (Limit{"write_align", 4096, "statx"}) {
		t.Errorf("limits: %+v", x.Limits)
	}
	text, err := json.Marshal(x)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{`"path"`, `"file_system"`, `"direct_reason"`, `"answers":[{"source"`, `"limits":[{"name":"read_align","value":4096,"origin":"statx"}`, `"engines":{"io_uring"`} {
		if !strings.Contains(string(text), key) {
			t.Errorf("the JSON has no %s: %s", key, text)
		}
	}
}

func TestExamineOtherThings(t *testing.T) {
	dev := loopDevice(t, 1<<20, 512)
	x, err := Examine(dev, block.Values{"aio": "threads"})
	if err != nil {
		t.Fatal(err)
	}
	if x.Kind != "block device" || x.FileSystem != "" || !x.Direct || x.Engine != "threads" || x.Allocated != -1 || x.Size != 1<<20 {
		t.Errorf("%+v", x)
	}
	x, err = Examine("/proc/version", nil)
	if err != nil {
		t.Fatal(err)
	}
	if x.Direct || !strings.Contains(x.DirectReason, "O_DIRECT is refused") || len(x.Limits) == 0 {
		t.Errorf("%+v", x)
	}
	btrfs := makeDisk(t, mounted(t, "btrfs", 4096), 1<<20, "")
	if x, err = Examine(btrfs, nil); err != nil || !x.Direct || x.FileSystem != "btrfs" {
		t.Errorf("%v %+v", err, x)
	}
	for _, bad := range []string{"/no/such/file", "/proc"} {
		if x, err := Examine(bad, nil); err == nil || !strings.HasPrefix(err.Error(), bad+": ") {
			t.Errorf("%s: %v, %+v", bad, err, x)
		}
	}
	if _, err := Examine(dev, block.Values{"nonsense": "1"}); err == nil {
		t.Error("an unknown option was taken")
	}
}

func FuzzURI(f *testing.F) {
	for _, s := range []string{"file:a", "file:///a%20b", "file://localhost/x", "file://h/x", "file:", "file:///%"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, uri string) {
		if v, err := parseURI("file:" + uri); err == nil && len(v) != 1 {
			t.Errorf("%q: %v", uri, v)
		}
	})
}

func FuzzProcText(f *testing.F) {
	f.Add("lock:\t1: OFDLCK ADVISORY  READ -1 fe:00:9978067 100 101\n")
	f.Add("6.18.44-fc")
	f.Fuzz(func(t *testing.T, text string) {
		holdsOurBytes(text)
		parseRelease(text)
		dir := t.TempDir()
		if os.Mkdir(dir+"/1", 0o755) == nil && os.WriteFile(dir+"/1/stat", []byte(text), 0o644) == nil {
			startTime(dir, 1)
		}
	})
}
