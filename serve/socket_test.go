package serve

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/platter-storage/platter/serve/config"
)

// stale leaves a socket at path that nobody listens on.
func stale(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
}

// short is a folder whose name leaves room for sockets.
func short(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pl")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// self is how messages name this process.
func self() string { return fmt.Sprintf("process %d (", os.Getpid()) }

func mustListen(t *testing.T, path string, mode os.FileMode) net.Listener {
	t.Helper()
	l, err := listenUnix(path, mode)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func TestStaleSocketIsReplaced(t *testing.T) {
	path := filepath.Join(short(t), "s")
	stale(t, path)
	l := mustListen(t, path, 0o640)
	if st, err := os.Lstat(path); err != nil || st.Mode().Perm() != 0o640 {
		t.Errorf("the socket's mode is %v (%v), want 0640", st.Mode(), err)
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	l.Close()
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is left behind: %v", err)
	}
}

func TestLiveSocketIsRefusedWithItsHolder(t *testing.T) {
	path := filepath.Join(short(t), "s")
	mustListen(t, path, 0o600)
	_, err := listenUnix(path, 0o600)
	var used *inUseError
	if !errors.As(err, &used) || !strings.Contains(err.Error(), self()) || !strings.Contains(err.Error(), path) {
		t.Errorf("second listener: %v, want a refusal that names %s…)", err, self())
	}
	// As where the kernel's table shows another network name space.
	if state, who, err := knock(path); state != socketLive || !strings.HasPrefix(who, self()) || err != nil {
		t.Errorf("knocking: state %d, holder %q, error %v", state, who, err)
	}
}

func TestOfTwoAtAStaleSocketOneWins(t *testing.T) {
	path := filepath.Join(short(t), "s")
	stale(t, path)
	var wg sync.WaitGroup
	won := make(chan net.Listener, 8)
	for range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if l, err := listenUnix(path, 0o600); err == nil {
				won <- l
			}
		}()
	}
	wg.Wait()
	if len(won) != 1 {
		t.Fatalf("%d listeners of one path", len(won))
	}
	(<-won).Close()
}

func TestWhatIsNoSocketStays(t *testing.T) {
	path := filepath.Join(short(t), "s")
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := listenUnix(path, 0o600); err == nil || !strings.Contains(err.Error(), "is there already and is no socket") {
		t.Errorf("got %v", err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "mine" {
		t.Errorf("the file now holds %q (%v)", b, err)
	}
}

func TestSocketPathLength(t *testing.T) {
	dir := short(t)
	name := strings.Repeat("x", config.MaxSocketPath-len(dir)-1)
	mustListen(t, filepath.Join(dir, name), 0o600)
	if _, err := listenUnix(filepath.Join(dir, name+"x"), 0o600); err == nil || !strings.Contains(err.Error(), "has 108 bytes, and a Unix socket's has at most 107") {
		t.Errorf("one too long: %v", err)
	}
}

func TestCloseLeavesAnothersSocket(t *testing.T) {
	path := filepath.Join(short(t), "s")
	l := mustListen(t, path, 0o600)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	stale(t, path)
	l.Close()
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("another's socket was removed: %v", err)
	}
}

func TestAutoSocket(t *testing.T) {
	run := short(t)
	t.Setenv("XDG_RUNTIME_DIR", run)
	for i, want := range []string{"vm.sock", "vm-2.sock", "vm-3.sock"} {
		l, err := listenAuto("vm", 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if got := l.Addr().String(); got != filepath.Join(run, "platter", want) {
			t.Errorf("socket %d is %s, want %s", i, got, want)
		}
	}
	st, err := os.Stat(filepath.Join(run, "platter"))
	if err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("the folder's mode is %v (%v), want 0700", st.Mode(), err)
	}
}

func TestPrivateFolder(t *testing.T) {
	run, tmp := short(t), short(t)
	t.Setenv("XDG_RUNTIME_DIR", run)
	t.Setenv("TMPDIR", tmp)
	own := filepath.Join(run, "platter")
	if err := os.Mkdir(own, 0o755); err != nil {
		t.Fatal(err)
	}
	if dir, err := privateFolder(); err != nil || dir != own {
		t.Fatalf("got %s (%v), want %s", dir, err, own)
	}
	if st, _ := os.Stat(own); st.Mode().Perm() != 0o700 {
		t.Errorf("mode %v: others can look in", st.Mode())
	}
	// One that leads elsewhere is not used.
	os.Remove(own)
	if err := os.Symlink(tmp, own); err != nil {
		t.Fatal(err)
	}
	fallback := filepath.Join(tmp, fmt.Sprintf("platter-%d", os.Getuid()))
	if dir, err := privateFolder(); err != nil || dir != fallback {
		t.Errorf("got %s (%v), want %s", dir, err, fallback)
	}
	t.Setenv("TMPDIR", filepath.Join(tmp, strings.Repeat("y", 100)))
	if _, err := privateFolder(); err == nil || !strings.Contains(err.Error(), "choose a path with --listen unix:PATH") {
		t.Errorf("nowhere to go: %v", err)
	}
}

func TestAnothersFolderIsRefused(t *testing.T) {
	dir, owner := "/", 0 // who is not root has root's folders to look at
	if os.Getuid() == 0 {
		dir, owner = filepath.Join(short(t), "d"), 65534
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(dir, owner, -1); err != nil {
			t.Fatal(err)
		}
	}
	if err := makePrivate(dir); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("belongs to user %d", owner)) {
		t.Errorf("got %v", err)
	}
}

func TestPortInUseNamesItsHolder(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "::1"} {
		l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		_, err = listenTCP(l.Addr().String())
		if err == nil || !strings.Contains(err.Error(), self()) || !strings.Contains(err.Error(), "choose another port") {
			t.Errorf("%s: %v, want a refusal that names %s…)", l.Addr(), err, self())
		}
	}
	if got := portHolder(1); got != "" {
		t.Errorf("port 1 is held by %q", got)
	}
}

func TestListenErrors(t *testing.T) {
	for name, try := range map[string]func() error{
		"this machine does not have that address": func() error { _, err := listenTCP("192.0.2.1:1"); return err },
		"is not a listening socket":               func() error { _, err := listenFD(new(inherited).fd(999)); return err },
		"no such file or directory":               func() error { _, err := listenUnix("/nonexistent/s", 0o600); return err },
		"no sockets were passed":                  func() error { _, err := (&Daemon{}).listenSystemd(""); return err },
		"set FileDescriptorName=nbd":              func() error { _, err := (&Daemon{}).listenSystemd("nbd"); return err },
	} {
		if err := try(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("got %v, want %q", err, name)
		}
	}
}
