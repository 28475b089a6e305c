package serve_test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/internal/testutil"
)

// fullPipe is the end to write of a pipe that has no room and no reader who
// reads.
func fullPipe(t *testing.T) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	conn, err := w.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	full := false
	err = conn.Write(func(fd uintptr) bool {
		for err := error(nil); err == nil; {
			_, err = unix.Write(int(fd), make([]byte, 4096))
			full = err == unix.EAGAIN
		}
		return true
	})
	if err != nil || !full {
		t.Fatalf("the pipe is full: %v, %v", full, err)
	}
	w.Fd() // blocking again, as a program expects of its output
	return w
}

// awaitSocket waits until somebody listens.
func awaitSocket(t *testing.T, path string) {
	t.Helper()
	for deadline := time.Now().Add(testutil.StartTimeout); ; time.Sleep(5 * time.Millisecond) {
		if c, err := net.Dial("unix", path); err == nil {
			c.Close()
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("nobody listens")
		}
	}
}

// awaitEnd waits for the end of a command.
func awaitEnd(t *testing.T, cmd *exec.Cmd, what string) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case err := <-done:
		return err
	case <-time.After(testutil.StartTimeout):
		cmd.Process.Kill()
		t.Fatalf("%s: it does not end", what)
		return nil
	}
}

// TestOutputThatNobodyReads: neither standard output nor the log may hold up
// clients and signals.
func TestOutputThatNobodyReads(t *testing.T) {
	for _, which := range []string{"standard output", "standard error"} {
		socket := filepath.Join(folder(t), "s")
		cmd := exec.Command(testutil.Binary(t), "serve", "--json", "--log-level", "debug", "--listen", "unix:"+socket, "mem:1M")
		pipe := fullPipe(t)
		if which == "standard output" {
			cmd.Stdout = pipe
		} else {
			cmd.Stderr = pipe
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		awaitSocket(t, socket)
		c := dial(t, "nbd+unix:///?socket="+socket)
		for range 300 { // more than wait for a reader
			if err := cmd.Process.Signal(syscall.SIGUSR1); err != nil {
				t.Fatal(err)
			}
			if err := c.Pwrite(make([]byte, 512), 0, 0); err != nil {
				t.Fatal(err)
			}
		}
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := awaitEnd(t, cmd, which+" is not read"); err != nil {
			t.Errorf("%s is not read: %v", which, err)
		}
	}
}

// fifo makes one at path; the returned function waits until somebody has opened
// it for reading, and keeps it open.
func fifo(t *testing.T, path string) (opened func()) {
	t.Helper()
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		for deadline := time.Now().Add(testutil.StartTimeout); ; time.Sleep(5 * time.Millisecond) {
			fd, err := unix.Open(path, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
			if err == nil {
				t.Cleanup(func() { unix.Close(fd) })
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("nobody opens the FIFO: %v", err)
			}
		}
	}
}

// TestSignalWhileTheConfigurationIsRead: it comes from a FIFO, and nobody
// writes.
func TestSignalWhileTheConfigurationIsRead(t *testing.T) {
	path := filepath.Join(folder(t), "serve.yaml")
	opened := fifo(t, path)
	cmd := exec.Command(testutil.Binary(t), "serve", "--config", path)
	var log testutil.Output
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	opened()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := awaitEnd(t, cmd, "SIGTERM while the configuration is read"); err == nil || !strings.Contains(log.String(), "interrupted while the configuration was being read") {
		t.Errorf("it ended with %v: %s", err, log.String())
	}
}

// TestSignalsWhileAReloadReads: the same of a reload; the disks stay served.
func TestSignalsWhileAReloadReads(t *testing.T) {
	dir := folder(t)
	path := filepath.Join(dir, "serve.yaml")
	if err := os.WriteFile(path, []byte("listen: unix:"+dir+"/s\ndisks: ['mem:1M']\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := launch(t, nil, "--config", path)
	p.ready()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	opened := fifo(t, path)
	p.signal(syscall.SIGHUP)
	opened()
	p.signal(syscall.SIGUSR1)
	p.await("stats", nil)
	p.signal(syscall.SIGHUP) // waits its turn
	p.signal(syscall.SIGTERM)
	p.await("stopped", nil)
	p.exits(0)
}
