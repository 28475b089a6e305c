// Package testutil is what whole-program tests share: the built binary, servers
// started from it and ended by their process id, loop devices, and the peers'
// tools.
package testutil

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "platter-bin-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "platter")
	cmd := exec.Command("go", "build", "-o", path, "github.com/platter-storage/platter/cmd/platter")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building platter: %w\n%s", err, out)
	}
	return path, nil
})

// Binary is the path of platter, built once for the test process. Call Cleanup
// from TestMain.
func Binary(t testing.TB) string {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Main runs the tests, then after, and removes the built binary; TestMain
// calls it.
func Main(m *testing.M, after ...func()) {
	code := m.Run()
	for _, f := range after {
		f()
	}
	if path, err := binary(); err == nil {
		os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// Server is a running platter serve.
type Server struct {
	Socket string
	cmd    *exec.Cmd
	out    Output
	done   chan struct{}
	err    error
}

// StartTimeout bounds how long a server may take to listen; it is generous
// because test machines are slow, not because servers are.
const StartTimeout = 60 * time.Second

// Serve starts platter serve with args, listening on a unix socket of its own,
// and waits until it accepts. The test's end stops it.
func Serve(t testing.TB, args ...string) *Server {
	t.Helper()
	dir, err := os.MkdirTemp("", "pl") // short: a socket's path is at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return ServeOn(t, filepath.Join(dir, "s"), args...)
}

// ServeOn is Serve on a given socket path.
func ServeOn(t testing.TB, socket string, args ...string) *Server {
	t.Helper()
	s := &Server{Socket: socket, done: make(chan struct{})}
	s.cmd = exec.Command(Binary(t), append([]string{"serve", "--listen", "unix:" + socket}, args...)...)
	s.cmd.Stdout, s.cmd.Stderr = &s.out, &s.out
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		s.err = s.cmd.Wait()
		close(s.done)
	}()
	t.Cleanup(func() { s.end(syscall.SIGKILL) })
	deadline := time.Now().Add(StartTimeout)
	for {
		if c, err := net.Dial("unix", socket); err == nil {
			c.Close()
			return s
		}
		select {
		case <-s.done:
			t.Fatalf("platter serve %s ended at once: %v\n%s", strings.Join(args, " "), s.err, s.Output())
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("platter serve %s does not listen after %v\n%s", strings.Join(args, " "), StartTimeout, s.Output())
		}
	}
}

// Output is what the server has printed so far.
func (s *Server) Output() string { return s.out.String() }

// URI is the NBD URI of an export of the server.
func (s *Server) URI(export string) string {
	return "nbd+unix:///" + export + "?socket=" + s.Socket
}

// Pid is the server's process.
func (s *Server) Pid() int { return s.cmd.Process.Pid }

// Kill ends the server at once, as a crash would.
func (s *Server) Kill() { s.end(syscall.SIGKILL) }

func (s *Server) end(sig syscall.Signal) {
	s.cmd.Process.Signal(sig)
	<-s.done
}

// Stop ends the server in the ordinary way and fails the test where it does
// not end well.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.done:
	case <-time.After(StartTimeout):
		s.Kill()
		t.Fatalf("the server does not end on SIGTERM\n%s", s.Output())
	}
	if s.err != nil {
		t.Fatalf("the server ended with %v\n%s", s.err, s.Output())
	}
}
