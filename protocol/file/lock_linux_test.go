package file

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// openers of one disk: which may be together, and what the refusal says.
func TestLocksBetweenOurselves(t *testing.T) {
	env, _ := testEnv(t)
	for _, c := range []struct {
		first, second string // w or r
		together      bool
	}{{"w", "w", false}, {"w", "r", false}, {"r", "w", false}, {"r", "r", true}} {
		path := makeDisk(t, t.TempDir(), 1<<20, "")
		a, err := tryOpen(t, env, c.first == "r", filename(path))
		if err != nil {
			t.Fatal(err)
		}
		b, err := tryOpen(t, env, c.second == "r", filename(path))
		if (err == nil) != c.together {
			t.Errorf("%s then %s: %v", c.first, c.second, err)
		}
		if err != nil {
			for _, want := range []string{path + ": is in use: ", "this very process", fmt.Sprintf("(pid %d, since ", os.Getpid()), "locking=off"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%s then %s: the error does not say %q: %v", c.first, c.second, want, err)
				}
			}
		}
		// Without locks anything goes.
		free, err := tryOpen(t, env, false, filename(path)+",locking=off")
		if err != nil {
			t.Errorf("locking=off: %v", err)
		}
		for _, n := range []*node{a, b, free} {
			if n != nil {
				_ = n.Close()
			}
		}
		// And closing gives the locks back.
		again, err := tryOpen(t, env, false, filename(path))
		if err != nil {
			t.Fatalf("after closing: %v", err)
		}
		_ = again.Close()
	}
}

// TestLocksSurviveOtherDescriptors: closing another descriptor of the same file
// in this process, which would end a POSIX lock, ends nothing.
func TestLocksSurviveOtherDescriptors(t *testing.T) {
	path := makeDisk(t, t.TempDir(), 1<<20, "")
	openEdge(t, path, "cache=none")
	if _, err := os.ReadFile(path); err != nil {
		t.Fatal(err)
	}
	env, _ := testEnv(t)
	if n, err := tryOpen(t, env, false, filename(path)); err == nil {
		_ = n.Close()
		t.Error("a second writer was let in")
	}
}

// TestLocksWithQEMU: each keeps the other out, both ways, and readers share as
// QEMU has it.
func TestLocksWithQEMU(t *testing.T) {
	env, _ := testEnv(t)
	for _, c := range []struct {
		qemu     []string // options of qemu-io
		readOnly bool     // ours
		together bool
	}{
		{[]string{"-f", "qcow2"}, false, false},
		{[]string{"-f", "qcow2"}, true, false},
		{[]string{"-r", "-f", "qcow2"}, false, false},
		{[]string{"-r", "-f", "qcow2"}, true, true},
		{[]string{"-f", "raw"}, false, false},
		{[]string{"-f", "raw"}, true, false},
		{[]string{"-r", "-f", "raw"}, true, true},
	} {
		name := fmt.Sprintf("%s, we read only %v", strings.Join(c.qemu, " "), c.readOnly)
		t.Run("first QEMU "+name, func(t *testing.T) {
			path := qcow2File(t)
			stop := holdWithQEMU(t, path, c.qemu...)
			n, err := tryOpen(t, env, c.readOnly, filename(path))
			if (err == nil) != c.together {
				t.Errorf("opening beside QEMU: %v", err)
			}
			if n != nil {
				_ = n.Close()
			}
			if err != nil && !strings.Contains(err.Error(), "qemu-io (pid ") {
				t.Errorf("the error does not name the holder: %v", err)
			}
			stop()
		})
		t.Run("first we "+name, func(t *testing.T) {
			path := qcow2File(t)
			n, err := tryOpen(t, env, c.readOnly, filename(path))
			if err != nil {
				t.Fatal(err)
			}
			defer n.Close()
			out, err := exec.Command("qemu-io", append(c.qemu, "-c", "read 0 512", path)...).CombinedOutput()
			if (err == nil) != c.together {
				t.Errorf("QEMU beside us: %v\n%s", err, out)
			}
			if err != nil && !strings.Contains(string(out), "lock") {
				t.Errorf("QEMU failed for another reason: %s", out)
			}
		})
	}
}

func qcow2File(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "a.qcow2")
	run(t, "qemu-img", "create", "-q", "-f", "qcow2", path, "10M")
	return path
}

// holdWithQEMU starts qemu-io on path and returns when it has opened it.
func holdWithQEMU(t *testing.T, path string, args ...string) (stop func()) {
	t.Helper()
	cmd := exec.Command("qemu-io", append(args, path)...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	stop = func() {
		if !ended {
			ended = true
			_ = in.Close()
			_ = cmd.Wait()
		}
	}
	t.Cleanup(stop)
	fmt.Fprintln(in, "length")
	answer := make([]byte, 100)
	if _, err := out.Read(answer); err != nil {
		t.Fatalf("qemu-io did not open %s: %v", path, err)
	}
	return stop
}

// TestLockingOnWhereThereIsNone: auto goes on and says so; on refuses.
func TestLockingOnWhereThereIsNone(t *testing.T) {
	for _, e := range []syscall.Errno{syscall.ENOLCK, syscall.EOPNOTSUPP, syscall.EINVAL} {
		if !lockingMissing(fmt.Errorf("x: %w", e)) {
			t.Errorf("%v means that there are no locks", e)
		}
	}
	if lockingMissing(syscall.EBADF) || lockingMissing(errors.New("x")) {
		t.Error("other errors do not")
	}
}

func TestPOSIXLockHolderIsNamed(t *testing.T) {
	path := makeDisk(t, t.TempDir(), 1<<20, "")
	// Another process with a POSIX lock on one of our bytes.
	cmd := exec.Command("python3", "-c", `import fcntl,sys
f=open(sys.argv[1],"r+"); fcntl.lockf(f,fcntl.LOCK_EX,1,201); print("held",flush=True); sys.stdin.read()`, path)
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close(); _ = cmd.Wait() }()
	if _, err := out.Read(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	env, _ := testEnv(t)
	_, err := tryOpen(t, env, false, filename(path))
	if want := fmt.Sprintf("python3 (pid %d, since ", cmd.Process.Pid); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want one with %q", err, want)
	}
}

func TestHoldsOurBytes(t *testing.T) {
	for text, want := range map[string]bool{
		"lock:\t1: OFDLCK ADVISORY  READ -1 fe:00:9978067 100 101\n":            true,
		"lock:\t1: OFDLCK  ADVISORY  READ -1 08:10:1 203 203\n":                 true,
		"lock:\t1: POSIX  ADVISORY  WRITE 77 08:10:1 0 EOF\n":                   true,
		"lock:\t1: OFDLCK  ADVISORY  READ -1 08:10:1 0 99\n":                    false,
		"lock:\t1: OFDLCK  ADVISORY  READ -1 08:10:1 204 300\n":                 false,
		"lock:\t1: FLOCK  ADVISORY  WRITE 77 08:10:1 0 EOF\n":                   false,
		"pos:\t0\nflags:\t0100002\nlock:\t1: OFDLCK ADVISORY READ -1 a b\n":     false,
		"pos:\t0\nflags:\t02\nmnt_id:\t30\nino:\t5\nlock:\tgarbage 100 101 x\n": false,
	} {
		if got := holdsOurBytes(text); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

// TestHolderOfAnotherUser: where /proc may not be read the message says so.
func TestHolderOfAnotherUser(t *testing.T) {
	if got := listHolders(nil, 3); !strings.Contains(got, "unknown program (3 processes") {
		t.Error(got)
	}
	if got := listHolders(nil, 0); !strings.Contains(got, "unknown program") {
		t.Error(got)
	}
	names := []string{"a", "b", "c", "d", "e", "f"}
	if got := listHolders(names[:maxHolders], 0); got != "a and b and c and d" {
		t.Error(got)
	}
	if got := listHolders(names[:maxHolders+1], 0); got != "a and b and c and d and 1 more" {
		t.Error(got)
	}
}

func TestStartTimeOfStrangeCommands(t *testing.T) {
	proc := t.TempDir()
	if err := os.Mkdir(proc+"/42", 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"stat":    "cpu 1 2 3\nbtime 1700000000\n",
		"42/stat": "42 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 12345 20 21\n",
		"42/comm": "a) b (c\n",
	} {
		if err := os.WriteFile(proc+"/"+name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if at, ok := startTime(proc, 42); !ok || at.Unix() != 1700000000+123 {
		t.Errorf("%v %v", at, ok)
	}
	if got := processText(proc, 42); !strings.HasPrefix(got, "a) b (c (pid 42, since 20") {
		t.Error(got)
	}
	if got := processText(proc, 43); got != "a process (pid 43, start unknown)" {
		t.Error(got)
	}
}

// TestDeviceInUse: a mounted device, and one that another disk has claimed.
func TestDeviceInUse(t *testing.T) {
	env, _ := testEnv(t)
	dir := mounted(t, "ext4", 512)
	dev := deviceOf(t, dir)
	_, err := tryOpen(t, env, false, filename(dev))
	if !errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), "it is mounted at ") || !strings.Contains(err.Error(), "open it read-only") {
		t.Errorf("a mounted device: %v", err)
	}
	n, err := tryOpen(t, env, true, filename(dev))
	if err != nil {
		t.Fatalf("a mounted device, read only: %v", err)
	}
	if n.info.Driver != "host_device" {
		t.Errorf("driver %s", n.info.Driver)
	}
	_ = n.Close()
	claimed := openEdge(t, loopDevice(t, 1<<20, 512), "cache=none")
	_, err = tryOpen(t, env, false, filename(claimed.n.cfg.path))
	if !errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), fmt.Sprintf("(pid %d", os.Getpid())) {
		t.Errorf("a claimed device: %v", err)
	}
}

func deviceOf(t *testing.T, dir string) string {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		t.Fatal(err)
	}
	target, err := filepath.EvalSymlinks(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev)))
	if err != nil {
		t.Fatal(err)
	}
	return "/dev/" + filepath.Base(target)
}
