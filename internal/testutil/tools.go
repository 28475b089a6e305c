package testutil

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Run runs a peer's tool and returns its standard output; the test fails where
// the tool is missing or fails.
func Run(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := Try(name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Try is Run for a tool that may fail: the error has all its output.
func Try(name string, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s %s: %w\n%s%s", name, strings.Join(args, " "), err, stdout.String(), stderr.String())
	}
	return stdout.String(), nil
}

// Loop attaches a file of size bytes to a loop device with the given sector
// size and detaches it at the test's end. The backing file lies in dir.
func Loop(t testing.TB, dir string, size int64, sector int) (device string) {
	t.Helper()
	f, err := os.CreateTemp(dir, "loop-*.img")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	device = strings.TrimSpace(Run(t, "losetup", "--find", "--show", "--direct-io=on", "--sector-size", fmt.Sprint(sector), f.Name()))
	t.Cleanup(func() {
		if _, err := Try("losetup", "--detach", device); err != nil {
			t.Error(err)
		}
	})
	return device
}

// Background starts a peer's server, waits until socket accepts, and returns
// what ends it, by its process id.
func Background(t testing.TB, socket, name string, args ...string) (stop func()) {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		cmd.Wait()
		close(done)
	}()
	stop = func() {
		cmd.Process.Signal(syscall.SIGTERM)
		<-done
	}
	deadline := time.Now().Add(StartTimeout)
	for {
		if c, err := net.Dial("unix", socket); err == nil {
			c.Close()
			return stop
		}
		select {
		case <-done:
			t.Fatalf("%s ended at once:\n%s", name, out.String())
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			stop()
			t.Fatalf("%s does not listen:\n%s", name, out.String())
		}
	}
}
