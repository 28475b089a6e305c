package guest

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/platter-storage/platter/internal/testutil"
)

// target is a disk that a server offers to guests.
type target struct {
	path     string
	socket   string
	size     int64
	sector   int // logical block size
	queues   int
	serial   string
	readOnly bool
	through  bool // the guest is told that nothing needs flushing
	slow     bool // every other write takes a while, and so does every flush
}

// newTarget makes a sparse disk and a place for its socket. Its path is short,
// because a socket's may have 107 bytes.
func newTarget(t *testing.T, size int64) target {
	t.Helper()
	dir, err := os.MkdirTemp("", "pgd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	d := target{path: filepath.Join(dir, "disk.img"), socket: filepath.Join(dir, "s"), size: size, sector: 512, queues: 1, serial: filepath.Base(dir)}
	if err := os.WriteFile(d.path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(d.path, size); err != nil {
		t.Fatal(err)
	}
	return d
}

// server is a vhost-user-blk server of one target. Killed, it is started again
// on the same socket by start.
type server struct {
	program
	target
	cmd    *exec.Cmd
	output testutil.Output
	done   chan struct{}
}

// program is who serves.
type program interface {
	// command is what to run.
	command(t *testing.T, d target) []string
	// resize makes a running server notice that its disk has another size.
	resize(t *testing.T, s *server, size int64)
}

// chosen is Platter, or the reference daemon where somebody who looks for a
// fault wants to know whether it is the laboratory's.
func chosen() program {
	if os.Getenv("PLATTER_GUEST_SERVER") == "reference" {
		return reference{}
	}
	return platter{}
}

// start starts a server and waits until it listens. The test's end kills it.
func start(t *testing.T, p program, d target) *server {
	t.Helper()
	s := &server{program: p, target: d}
	s.start(t)
	t.Cleanup(func() {
		s.kill()
		if t.Failed() {
			t.Logf("server of %s:\n%s", filepath.Base(filepath.Dir(d.path)), s.output.String())
		}
	})
	return s
}

func (s *server) start(t *testing.T) {
	t.Helper()
	// What a killed server leaves is a socket that nobody listens on.
	os.Remove(s.socket)
	args := s.command(t, s.target)
	s.cmd = exec.Command(args[0], args[1:]...)
	s.cmd.Stdout, s.cmd.Stderr = &s.output, &s.output
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	s.done = done
	go func() {
		s.cmd.Wait()
		close(done)
	}()
	for deadline := time.Now().Add(testutil.StartTimeout); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(s.socket); err == nil {
			return
		}
		select {
		case <-done:
			t.Fatalf("%s ended at once:\n%s", strings.Join(args, " "), s.output.String())
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not listen after %v\n%s", strings.Join(args, " "), testutil.StartTimeout, s.output.String())
		}
	}
}

// kill ends the server as a crash would.
func (s *server) kill() {
	s.cmd.Process.Kill()
	<-s.done
}

// platter is the program under test.
type platter struct{}

func (platter) command(t *testing.T, d target) []string {
	args := []string{testutil.Binary(t), "serve", d.node(), "--vhost-user", fmt.Sprintf("%s,queues=%d,block-size=%d,serial=%s", d.socket, d.queues, d.sector, d.serial)}
	if d.readOnly {
		args = append(args, "--read-only")
	}
	if d.through {
		args = append(args, "--cache", "writethrough")
	}
	return args
}

// slowly is how long a request of a slow disk takes where it is held up: many
// are in flight at any time, and end in another order than they began.
const slowly = 20 * time.Millisecond

// node is what to serve.
func (d target) node() string {
	if !d.slow {
		return d.path
	}
	rule := func(op, probability string) string {
		return fmt.Sprintf("driver=fault,op=%s,errno=none,times=0,probability=%s,seed=1,delay-ns=%d", op, probability, slowly.Nanoseconds())
	}
	flush := strings.ReplaceAll(rule("flush", "1"), ",", ",file.")
	return rule("write", "0.5") + ",file." + flush + ",file.file.driver=file,file.file.filename=" + d.path
}

func (platter) resize(t *testing.T, s *server, size int64) {
	t.Helper()
	if err := os.Truncate(s.path, size); err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
}

// reference is QEMU's storage daemon.
type reference struct{}

func (reference) command(_ *testing.T, d target) []string {
	return []string{
		"qemu-storage-daemon",
		"--blockdev", fmt.Sprintf("driver=file,node-name=f,filename=%s,discard=unmap,read-only=%s", d.path, onOff(d.readOnly)),
		"--export", fmt.Sprintf("type=vhost-user-blk,id=e,node-name=f,addr.type=unix,addr.path=%s,writable=%s,num-queues=%d,logical-block-size=%d",
			d.socket, onOff(!d.readOnly), d.queues, d.sector),
		"--chardev", "socket,id=m,path=" + d.socket + ".qmp,server=on,wait=off", "--monitor", "chardev=m",
	}
}

func (reference) resize(t *testing.T, s *server, size int64) {
	t.Helper()
	qmp(t, s.socket+".qmp", fmt.Sprintf(`{"execute":"block_resize","arguments":{"node-name":"f","size":%d}}`, size))
}

// qmp gives one command to QEMU or its storage daemon.
func qmp(t *testing.T, socket, command string) {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answers := json.NewDecoder(conn)
	// It speaks first.
	for _, say := range []string{"", `{"execute":"qmp_capabilities"}`, command} {
		if _, err := conn.Write([]byte(say)); err != nil {
			t.Fatal(err)
		}
		var answer map[string]any
		if err := answers.Decode(&answer); err != nil {
			t.Fatal(err)
		}
		if answer["error"] != nil {
			t.Fatalf("%s: %v", say, answer)
		}
	}
}
