package file

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// lab has the storage that tests need beside the temporary folder: loop
// devices and file systems on them, made when first asked for and removed when
// all tests are over.
var lab struct {
	sync.Mutex
	dir    string
	undo   []func()
	mounts map[string]string
}

func TestMain(m *testing.M) {
	code := m.Run()
	for i := len(lab.undo) - 1; i >= 0; i-- {
		lab.undo[i]()
	}
	os.Exit(code)
}

// labDir is a folder that lives as long as all tests. Called with lab held.
func labDir(t testing.TB) string {
	if lab.dir == "" {
		dir, err := os.MkdirTemp("", "platter-file-test")
		if err != nil {
			t.Fatal(err)
		}
		lab.dir = dir
		lab.undo = append(lab.undo, func() { _ = os.RemoveAll(dir) })
	}
	return lab.dir
}

func run(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// attachLoop makes a loop device over a new sparse file.
func attachLoop(t testing.TB, path string, size int64, sector int) string {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
	return run(t, "losetup", "--find", "--show", "--direct-io=on", "--sector-size", fmt.Sprint(sector), path)
}

// loopDevice is a loop device of its own for one test, filled with data so
// that nothing of it is a hole.
func loopDevice(t testing.TB, size int64, sector int) string {
	t.Helper()
	dev := attachLoop(t, filepath.Join(t.TempDir(), "loop.img"), size, sector)
	t.Cleanup(func() { run(t, "losetup", "--detach", dev) })
	if err := os.WriteFile(dev, pattern(make([]byte, size), 9), 0); err != nil {
		t.Fatal(err)
	}
	run(t, "blockdev", "--flushbufs", dev)
	return dev
}

// mounted is a folder on a file system of this type, on a loop device with
// sectors of that size. It is emptied of nothing: tests use their own names.
func mounted(t testing.TB, fs string, sector int) string {
	t.Helper()
	lab.Lock()
	defer lab.Unlock()
	key := fmt.Sprintf("%s-%d", fs, sector)
	if lab.mounts[key] == "" {
		if lab.mounts == nil {
			lab.mounts = map[string]string{}
		}
		lab.mounts[key] = mount(t, filepath.Join(labDir(t), key), fs, sector)
	}
	dir, err := os.MkdirTemp(lab.mounts[key], "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// mount makes image, device, file system and mount. Called with lab held.
func mount(t testing.TB, path, fs string, sector int) string {
	t.Helper()
	dev := attachLoop(t, path+".img", 400<<20, sector)
	lab.undo = append(lab.undo, func() { _ = exec.Command("losetup", "--detach", dev).Run() })
	force := "-f"
	if fs == "ext4" {
		force = "-F"
	}
	run(t, "mkfs."+fs, "-q", force, dev)
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(dev, path, fs, 0, ""); err != nil {
		t.Fatalf("mount %s: %v", fs, err)
	}
	lab.undo = append(lab.undo, func() { _ = unix.Unmount(path, 0) })
	return path
}

// tmpfsDir is a folder on tmpfs.
func tmpfsDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "platter-file-test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
