package file

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/block"
)

// TestOpenErrors: one line each, which says what, where, why and what to do.
func TestOpenErrors(t *testing.T) {
	dir := t.TempDir()
	file := writeFile(t, dir, "disk.img", make([]byte, 8192))
	in := func(name string) string { return filepath.Join(dir, name) }
	for _, err := range []error{
		unix.Mkfifo(in("fifo"), 0o644), os.Symlink("nowhere", in("dangling")), os.Symlink("circle", in("circle")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	l, err := net.Listen("unix", in("socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	run(t, "chattr", "+i", writeFile(t, dir, "immutable", make([]byte, 512)))
	defer run(t, "chattr", "-i", in("immutable"))
	program := writeFile(t, dir, "program", nil)
	run(t, "cp", "/bin/sleep", program)
	run(t, "chmod", "755", program)
	running := exec.Command(program, "60")
	if err := running.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = running.Process.Kill(); _ = running.Wait() }()
	readOnlyLoop := run(t, "losetup", "--find", "--show", "--read-only", file)
	defer run(t, "losetup", "--detach", readOnlyLoop)

	for _, c := range []struct {
		path     string
		readOnly bool
		errno    syscall.Errno
		says     []string
	}{
		{in("missing.img"), false, syscall.ENOENT, []string{"does not exist", "create"}},
		{in("no/such/folder.img"), false, syscall.ENOENT, []string{"nor does the folder", "check the path"}},
		{in("dangling"), false, syscall.ENOENT, []string{"symbolic link to nowhere"}},
		{in("circle"), false, syscall.ELOOP, []string{"symbolic links"}},
		{file + "/x", false, syscall.ENOTDIR, []string{"not a folder"}},
		{in(strings.Repeat("x", 300)), false, syscall.ENAMETOOLONG, []string{"too long"}},
		{dir, false, syscall.EISDIR, []string{"is a folder", "regular file or a block device"}},
		{in("fifo"), false, syscall.ESPIPE, []string{"is a FIFO"}},
		{in("fifo"), true, syscall.ESPIPE, []string{"is a FIFO"}},
		{in("socket"), false, syscall.ENXIO, []string{"is a socket", "nbd+unix"}},
		{"/dev/null", false, syscall.EINVAL, []string{"is a character device"}},
		{in("immutable"), false, syscall.EPERM, []string{"for writing", "immutable", "open it read-only"}},
		{program, false, syscall.ETXTBSY, []string{"in use as a program"}},
		{readOnlyLoop, false, syscall.EACCES, []string{"read-only"}},
	} {
		env, _ := testEnv(t)
		n, err := tryOpen(t, env, c.readOnly, filename(c.path))
		if err == nil {
			_ = n.Close()
		}
		if !errors.Is(err, c.errno) {
			t.Errorf("%s: error %v, want %v", c.path, err, c.errno)
			continue
		}
		text := err.Error()
		if !strings.HasPrefix(text, c.path+": ") || strings.Contains(text, "\n") {
			t.Errorf("not one line that begins with the name: %q", text)
		}
		for _, want := range c.says {
			if !strings.Contains(text, want) {
				t.Errorf("%q does not say %q", text, want)
			}
		}
	}
	// What can be read can be opened read-only.
	for _, path := range []string{in("immutable"), program, readOnlyLoop} {
		env, _ := testEnv(t)
		n, err := tryOpen(t, env, true, filename(path))
		if err != nil {
			t.Errorf("read only: %v", err)
			continue
		}
		if !n.info.ReadOnly {
			t.Errorf("%s is not marked read-only", path)
		}
		_ = n.Close()
	}
}

// TestOpenErrorWords: causes that root does not meet.
func TestOpenErrorWords(t *testing.T) {
	c := &config{path: "a.img"}
	for errno, want := range map[syscall.Errno]string{
		syscall.EROFS: "mounted read-only", syscall.EMFILE: "ulimit -n", syscall.ENXIO: "no device behind it",
		syscall.ENOMEDIUM: "no medium", syscall.EIO: "input/output error", syscall.EACCES: "folder on its path",
	} {
		if text := openError(c, errno).Error(); !strings.HasPrefix(text, "a.img: cannot be opened for writing: ") || !strings.Contains(text, want) {
			t.Errorf("%v: %q", errno, text)
		}
	}
}

func TestHostDeviceWantsADevice(t *testing.T) {
	path := writeFile(t, t.TempDir(), "disk.img", make([]byte, 8192))
	env, _ := testEnv(t)
	_, err := open(&block.OpenArgs{Env: env, Options: options(t, "host_device", filename(path))}, true)
	if !errors.Is(err, syscall.ENOTBLK) || !strings.Contains(err.Error(), "driver=file") {
		t.Errorf("%v", err)
	}
	n, err := open(&block.OpenArgs{Env: env, Options: options(t, "host_device", filename(loopDevice(t, 1<<20, 512)))}, true)
	if err != nil {
		t.Fatal(err)
	}
	_ = n.Close()
}

// TestNativeEngineNeedsDirectIO: forced engines are used or refused, with the
// file named.
func TestForcedEngines(t *testing.T) {
	path := makeDisk(t, t.TempDir(), 1<<20, "")
	env, _ := testEnv(t)
	_, err := tryOpen(t, env, false, filename(path)+",aio=native,cache=writeback")
	if !errors.Is(err, syscall.EINVAL) || !strings.HasPrefix(err.Error(), path) || !strings.Contains(err.Error(), "cache=none") {
		t.Errorf("%v", err)
	}
	for _, aio := range []string{"io_uring", "native", "threads"} {
		e := openEdge(t, path, "cache=none,locking=off,aio="+aio)
		if m := e.n.sys.(*linuxFile).moves; !m.exact || m.engine.Kind().String() != aio {
			t.Errorf("aio=%s: engine %v, exactly so: %v", aio, m.engine.Kind(), m.exact)
		}
	}
}

// TestEnginesEndWithTheirLastFile: descriptors and goroutines go.
func TestEnginesEndWithTheirLastFile(t *testing.T) {
	path := makeDisk(t, t.TempDir(), 1<<20, "")
	env, _ := testEnv(t)
	before := openDescriptors(t)
	for _, aio := range []string{"io_uring", "native", "threads", "auto"} {
		a, err := tryOpen(t, env, false, filename(path)+",cache=none,locking=off,aio="+aio)
		if err != nil {
			t.Fatal(err)
		}
		b, err := tryOpen(t, env, false, filename(path)+",cache=none,locking=off,aio="+aio)
		if err != nil {
			t.Fatal(err)
		}
		if a.sys.(*linuxFile).moves.engine != b.sys.(*linuxFile).moves.engine {
			t.Errorf("aio=%s: two files, two engines", aio)
		}
		if err := errors.Join(a.Close(), b.Close()); err != nil {
			t.Errorf("aio=%s: closing: %v", aio, err)
		}
	}
	if len(engines.m) != 0 {
		t.Errorf("%d engines are left", len(engines.m))
	}
	if after := openDescriptors(t); after > before {
		t.Errorf("%d descriptors are open, %d were", after, before)
	}
}

func openDescriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// TestFailedOpensLeaveNothingOpen, whatever fails.
func TestFailedOpensLeaveNothingOpen(t *testing.T) {
	path := makeDisk(t, t.TempDir(), 1<<20, "")
	holder := openEdge(t, path, "cache=none")
	env, _ := testEnv(t)
	before := openDescriptors(t)
	for _, opts := range []string{"cache=none", "cache=writeback", "cache=none,aio=io_uring", "cache=writeback,aio=native,locking=off", "request-align=512,segment-align=4096,locking=off,cache=none"} {
		if n, err := tryOpen(t, env, false, join(filename(path), opts)); err == nil {
			_ = n.Close()
			t.Errorf("%s: opened", opts)
		}
	}
	if after := openDescriptors(t); after > before {
		t.Errorf("%d descriptors are open, %d were", after, before)
	}
	_ = holder
}

func TestOptions(t *testing.T) {
	d, err := block.FindDriver("file")
	if err != nil {
		t.Fatal(err)
	}
	parse := func(text string) config {
		t.Helper()
		c, err := parseOptions(options(t, "file", text), false)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	if c := parse("filename=a"); c.direct || c.auto || c.sync || c.noFlush || c.cacheName != "writeback" || c.aio != "auto" || c.locking != "auto" || !c.discard || c.fallback {
		t.Errorf("defaults: %+v", c)
	}
	if c := parse("filename=a,cache=writeback,cache.direct=on,cache.no-flush=on"); !c.direct || !c.noFlush {
		t.Errorf("overrides: %+v", c)
	}
	if c := parse("filename=a,cache=auto,cache.direct=off"); c.direct || c.auto {
		t.Errorf("overridden auto: %+v", c)
	}
	for _, bad := range []string{"filename=", "filename=a,request-align=1000", "filename=a,mem-align=128K", "filename=a,segment-align=0"} {
		vals, _ := block.ParseOptions(bad)
		o, err := d.Check(vals)
		if err == nil {
			_, err = parseOptions(o, false)
		}
		if !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v, want EINVAL", bad, err)
		}
	}
}

func TestURIs(t *testing.T) {
	for uri, want := range map[string]string{
		"file:a.img": "a.img", "file:/x/a:b%20.img": "/x/a:b%20.img", "file:///x/a%20b.img": "/x/a b.img", "file://localhost/x": "/x",
	} {
		if v, err := parseURI(uri); err != nil || v["filename"] != want {
			t.Errorf("%s: %v, %v, want %s", uri, v, err, want)
		}
	}
	for _, uri := range []string{"file://server/x", "file://", "file:///%zz"} {
		if v, err := parseURI(uri); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v, %v, want EINVAL", uri, v, err)
		}
	}
	if d := block.DriverForURI("file:a.img"); d == nil || d.Name != "file" {
		t.Error("file: does not lead to the driver")
	}
}

// TestF5RealDirectIOWhereThereIsNone: a file system that refuses O_DIRECT.
func TestF5RealDirectIOWhereThereIsNone(t *testing.T) {
	path := "/proc/version" // procfs files refuse O_DIRECT
	env, log := testEnv(t)
	_, err := tryOpen(t, env, true, filename(path)+",cache=none,locking=off")
	if !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), path+": cache=none needs direct I/O") || !strings.Contains(err.Error(), "fallback=buffered") {
		t.Errorf("%v", err)
	}
	n, err := tryOpen(t, env, true, filename(path)+",cache=none,locking=off,fallback=buffered")
	if err != nil {
		t.Fatal(err)
	}
	if c := strings.Count(log.text(), "level=WARN"); n.direct || c != 1 {
		t.Errorf("direct %v, %d warnings, want 1: %s", n.direct, c, log.text())
	}
	_ = n.Close()
	n, err = tryOpen(t, env, true, filename(path)+",cache=auto,locking=off")
	if err != nil {
		t.Fatal(err)
	}
	if n.direct {
		t.Error("cache=auto took direct I/O")
	}
	_ = n.Close()
}
