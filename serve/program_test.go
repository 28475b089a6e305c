package serve_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/platter-storage/platter/internal/testutil"
	"github.com/platter-storage/platter/serve"
	"github.com/platter-storage/platter/wire/nbd"
)

func TestMain(m *testing.M) { testutil.Main(m) }

// program is a running platter serve --json.
type program struct {
	t      *testing.T
	cmd    *exec.Cmd
	events chan []byte // lines of standard output; closed at its end
	done   chan struct{}
	log    testutil.Output // standard error
}

// folder is one that leaves room for sockets.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pl")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// launch starts platter serve --json; prepare may change the command first.
func launch(t *testing.T, prepare func(*exec.Cmd), args ...string) *program {
	t.Helper()
	p := &program{t: t, events: make(chan []byte, 64), done: make(chan struct{})}
	p.cmd = exec.Command(testutil.Binary(t), append([]string{"serve", "--json"}, args...)...)
	if prepare != nil {
		prepare(p.cmd)
	}
	p.cmd.Stderr = &p.log
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		for sc := bufio.NewScanner(out); sc.Scan(); {
			p.events <- append([]byte(nil), sc.Bytes()...)
		}
		close(p.events)
		p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.cmd.Process.Kill()
		<-p.done
	})
	return p
}

func (p *program) stderr() string { return p.log.String() }

// await takes the next event, which must be the one of that name.
func (p *program) await(name string, into any) {
	p.t.Helper()
	select {
	case line, ok := <-p.events:
		var e struct{ Event string }
		if !ok {
			p.t.Fatalf("the program ended before %s:\n%s", name, p.stderr())
		}
		if err := json.Unmarshal(line, &e); err != nil || e.Event != name {
			p.t.Fatalf("got %s (%v), want the event %s", line, err, name)
		}
		if into != nil {
			if err := json.Unmarshal(line, into); err != nil {
				p.t.Fatal(err)
			}
		}
	case <-time.After(testutil.StartTimeout):
		p.t.Fatalf("no event %s:\n%s", name, p.stderr())
	}
}

func (p *program) ready() *serve.Ready {
	p.t.Helper()
	r := new(serve.Ready)
	p.await("ready", r)
	return r
}

func (p *program) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// exits waits for the end and checks the exit code.
func (p *program) exits(code int) {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(testutil.StartTimeout):
		p.t.Fatalf("the program does not end:\n%s", p.stderr())
	}
	if got := p.cmd.ProcessState.ExitCode(); got != code {
		p.t.Fatalf("exit code %d, want %d:\n%s", got, code, p.stderr())
	}
}

// logs waits until standard error has a text.
func (p *program) logs(text string) {
	p.t.Helper()
	for deadline := time.Now().Add(testutil.StartTimeout); !strings.Contains(p.stderr(), text); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			p.t.Fatalf("standard error lacks %q:\n%s", text, p.stderr())
		}
	}
}

func dial(t *testing.T, uri string) *nbd.Client {
	t.Helper()
	c, err := nbd.Dial(t.Context(), uri, nbd.Best)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// run runs platter to its end.
func run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	cmd := exec.Command(testutil.Binary(t), args...)
	var out, errOut strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errOut.String()
}

// TestFirstContact is what a newcomer does: make a disk, look at it, Ctrl-C.
func TestFirstContact(t *testing.T) {
	dir := folder(t)
	cmd := exec.Command(testutil.Binary(t), "serve", "--create", "64M", "./demo.img")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	var text strings.Builder
	lines := bufio.NewScanner(out)
	for lines.Scan() && !strings.HasPrefix(lines.Text(), "ready: ") {
		text.WriteString(lines.Text() + "\n")
	}
	uri := "nbd+unix:///?socket=" + dir + "/platter/demo.sock"
	for _, want := range []string{
		"./demo.img: 64 MiB (67108864 bytes), made now\n  direct I/O: ", "(cache=auto)\n  locked against other programs\n  engine: ", uri + "\n", "nbdinfo '" + uri + "'\n", "qemu-img info '" + uri + "'\n",
		"qemu-system-x86_64 -blockdev ", "nbd-client -unix ",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the text lacks %q:\n%s", want, text.String())
		}
	}
	if got := strings.TrimSpace(testutil.Run(t, "nbdinfo", "--size", uri)); got != "67108864" {
		t.Errorf("nbdinfo says %s bytes", got)
	}
	if st, err := os.Stat(dir + "/platter/demo.sock"); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v", st.Mode(), err)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	last := ""
	for lines.Scan() {
		last = lines.Text()
	}
	if err := cmd.Wait(); err != nil || last != "stopped (SIGINT): everything written is on the disks" {
		t.Errorf("it ends with %v and %q", err, last)
	}
}

// start runs a command that prints text. lines waits until a line begins so;
// out is all that was printed.
func start(t *testing.T, cmd *exec.Cmd) (out func() string, lines func(prefix string)) {
	t.Helper()
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	var text strings.Builder
	sc := bufio.NewScanner(pipe)
	return text.String, func(prefix string) {
		t.Helper()
		for sc.Scan() {
			text.WriteString(sc.Text() + "\n")
			if strings.HasPrefix(sc.Text(), prefix) {
				return
			}
		}
		t.Fatalf("no line begins with %q:\n%s", prefix, text.String())
	}
}

func TestMistakes(t *testing.T) {
	dir := folder(t)
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	small := file("small.img", strings.Repeat("x", 4096))
	foreign := file("image", "QFI\xfb\x00\x00\x00\x03"+strings.Repeat("\x00", 1024))
	wrong := file("wrong.yaml", "disks:\n  - path: mem:1M\n    cahce: none\n")
	busy, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"serve", 2, "platter: serve needs a disk: "},
		{"serve DIR/none.img", 1, "it does not exist: check the path, or create it (--create SIZE)"},
		{"serve DIR", 1, "cannot be opened as a disk: it is a folder"},
		{"serve --create 8K " + small, 1, "exists and has 4096 bytes (4 KiB), less than --create asks for (8192)"},
		{"serve --create 8K --read-only DIR/new.img", 1, "there is nothing to read in a new disk"},
		{"serve --create 8K mem:1M", 1, "driver mem cannot create storage"},
		{"serve " + foreign, 1, "begins like a qcow2 image, and its name does not end in .qcow2: say which it is, --format qcow2, or --format raw for the bytes of the file itself"},
		{"serve --cahce none x", 2, "platter: there is no flag --cahce; did you mean --cache?\nplatter: see platter serve --help\n"},
		{"serve --cache nonn x", 2, `--cache: "nonn" is not possible: choose one of auto, none, writeback, writethrough, directsync, unsafe; did you mean none?`},
		{"serve --cache none mem:1M", 2, "--cache: none of the disks has this option"},
		{"serve --format rwa x", 2, `x: there is no format "rwa"; there is: luks, qcow2, raw; did you mean raw?`},
		{"serve driver=raw,file.driver=file,file.filenam=x", 2, "did you mean filename?"},
		{"serve driver=nul", 2, "did you mean null?"},
		{"serve json:{", 2, "does not parse"},
		{"serve xyz://x", 2, "there is no driver for xyz:// here"},
		{"serve --config DIR/none.yaml", 2, "none.yaml: it does not exist: check the path"},
		{"serve --config " + wrong, 2, wrong + `:3:5: a disk has no setting "cahce": choose one of path, name, node, options, create, preallocation, create-options, format, read-only, cache, aio, locking, discard, throttle, export, vhost-user; did you mean cache?`},
		{"serve --listen " + busy.Addr().String() + " mem:1M", 1, fmt.Sprintf("process %d (", os.Getpid())},
		{"serve --listen /run/x mem:1M", 2, "for a Unix socket write unix:/run/x"},
		{"serve --tls-cert none --tls-key none mem:1M", 1, "tls-cert: none: it does not exist: check the path"},
		{"serve --tls required mem:1M", 2, "TLS needs a certificate and its key"},
		{"serve --export name=a --export name=a mem:1M", 2, `an export is called "a" already (--export)`},
		{"serv", 2, `there is no command "serv"; did you mean serve?`},
		{"version x", 2, "see platter version --help"},
		{"drivers fiel", 2, "did you mean file?"},
		{"man", 2, "platter man needs an argument: platter man DIR"},
	} {
		args := strings.Fields(strings.ReplaceAll(c.args, "DIR", dir))
		code, out, errOut := run(t, args...)
		if code != c.code || !strings.Contains(errOut, c.want) || out != "" {
			t.Errorf("platter %s\ngives %d, %q and\n%swant %d and %q", c.args, code, out, errOut, c.code, c.want)
		}
		if n := strings.Count(errOut, "\n"); n > 2 || n == 0 {
			t.Errorf("platter %s\nsays %d lines:\n%s", c.args, n, errOut)
		}
	}
	if b, _ := os.ReadFile(small); len(b) != 4096 {
		t.Errorf("the small file now has %d bytes", len(b))
	}
	if _, err := os.Stat(dir + "/new.img"); !os.IsNotExist(err) {
		t.Errorf("new.img: %v", err)
	}
}

func TestNoPermission(t *testing.T) {
	dir := folder(t)
	disk, binary := filepath.Join(dir, "disk.img"), filepath.Join(dir, "platter")
	if err := os.WriteFile(disk, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(testutil.Binary(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(binary, text, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "serve", disk)
	if os.Getuid() == 0 {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	} else if err := os.Chmod(disk, 0); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), disk+": cannot be opened for writing: permission denied") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestCreateKeepsWhatIsThere(t *testing.T) {
	dir := folder(t)
	disk := filepath.Join(dir, "d.img")
	old := []byte(strings.Repeat("old!", 4096))
	if err := os.WriteFile(disk, old, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, size := range []string{"4K", "16K"} {
		p := launch(t, nil, "--create", size, "--listen", "unix:"+dir+"/s", disk)
		if r := p.ready(); r.Disks[0].Created || r.Disks[0].Size != int64(len(old)) {
			t.Errorf("--create %s: %+v", size, r.Disks[0])
		}
		p.signal(syscall.SIGTERM)
		p.exits(0)
		if b, _ := os.ReadFile(disk); string(b) != string(old) {
			t.Fatalf("--create %s changed the file", size)
		}
	}
}

func TestPreallocation(t *testing.T) {
	dir := folder(t)
	disk := filepath.Join(dir, "d.img")
	p := launch(t, nil, "--create", "8M", "--preallocation", "falloc", "--listen", "unix:"+dir+"/s", disk)
	if r := p.ready(); !r.Disks[0].Created || r.Disks[0].Size != 8<<20 {
		t.Errorf("%+v", r.Disks[0])
	}
	st, err := os.Stat(disk)
	if err != nil {
		t.Fatal(err)
	}
	if got := st.Sys().(*syscall.Stat_t).Blocks * 512; got < 8<<20 {
		t.Errorf("%d bytes are allocated, want 8 MiB", got)
	}
}

func TestStatsOnSignalAndExit(t *testing.T) {
	dir := folder(t)
	p := launch(t, nil, "--stats", "--listen", "unix:"+dir+"/s", "mem:1M")
	c := dial(t, p.ready().Disks[0].Exports[0].URIs[0])
	for range 5 {
		if err := c.Pwrite(make([]byte, 512), 512, 0); err != nil {
			t.Fatal(err)
		}
	}
	p.signal(syscall.SIGUSR1)
	var s serve.Stats
	p.await("stats", &s)
	if w := s.Exports[0].Operations["write"]; s.Connections != 1 || w.Requests != 5 || w.Bytes != 2560 || w.Max == 0 {
		t.Errorf("statistics: %+v", s)
	}
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	p.signal(syscall.SIGTERM)
	p.await("stats", &s)
	if s.Exports[0].Operations["flush"].Requests != 1 {
		t.Errorf("statistics at the end: %+v", s)
	}
	p.await("stopped", nil)
	p.exits(0)
}

// TestReaderOfEventsGoes: a pipe that nobody reads any more must not end the
// daemon.
func TestReaderOfEventsGoes(t *testing.T) {
	dir := folder(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(testutil.Binary(t), "serve", "--listen", "unix:"+dir+"/s", "mem:1M")
	var log strings.Builder
	cmd.Stdout, cmd.Stderr = w, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	w.Close()
	for lines := bufio.NewScanner(r); lines.Scan() && !strings.HasPrefix(lines.Text(), "ready: "); {
	}
	r.Close()
	if err := cmd.Process.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	if err := dial(t, "nbd+unix:///?socket="+dir+"/s").Flush(); err != nil {
		t.Errorf("a client: %v", err)
	}
	cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil || !strings.Contains(log.String(), "an event cannot be written") {
		t.Errorf("it ends with %v:\n%s", err, log.String())
	}
}

func TestRequestsInFlightAreFinished(t *testing.T) {
	dir := folder(t)
	p := launch(t, nil, "--listen", "unix:"+dir+"/s", "driver=null,latency-ns=300000000")
	c := dial(t, p.ready().Disks[0].Exports[0].URIs[0])
	answered := make(chan error, 1)
	go func() { answered <- c.Pread(make([]byte, 512), 0, 0) }()
	inFlight(t, p)
	p.signal(syscall.SIGTERM)
	if err := <-answered; err != nil {
		t.Errorf("the request in flight: %v", err)
	}
	p.exits(0)
}

// inFlight waits until the program has taken up a request.
func inFlight(t *testing.T, p *program) {
	t.Helper()
	var s serve.Stats
	for deadline := time.Now().Add(testutil.StartTimeout); s.InFlight == 0; {
		if time.Now().After(deadline) {
			t.Fatal("no request is in flight")
		}
		p.signal(syscall.SIGUSR1)
		p.await("stats", &s)
	}
}

func TestSecondSignalEndsAtOnce(t *testing.T) {
	dir := folder(t)
	p := launch(t, nil, "--listen", "unix:"+dir+"/s", "driver=null,latency-ns=60000000000")
	c := dial(t, p.ready().Disks[0].Exports[0].URIs[0])
	go c.Pread(make([]byte, 512), 0, 0)
	inFlight(t, p)
	// Twice at once is one wish: so does whoever signals a process and then
	// its group.
	p.signal(syscall.SIGTERM)
	p.logs("stopping: ")
	p.signal(syscall.SIGTERM)
	for over := false; !over; { // as often as it takes: the two may have come apart
		_ = p.cmd.Process.Signal(syscall.SIGINT)
		select {
		case <-p.done:
			over = true
		case <-time.After(time.Second):
		}
	}
	p.exits(1)
	if want := "platter: a second signal: ended at once: 1 requests of 1 clients were not answered"; !strings.Contains(p.stderr(), want) {
		t.Errorf("standard error lacks %q:\n%s", want, p.stderr())
	}
}

func TestReloadOnSignal(t *testing.T) {
	dir := folder(t)
	file := filepath.Join(dir, "serve.yaml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("disks:\n  - {path: 'mem:1M', name: a}\n")
	p := launch(t, nil, "--config", file, "--listen", "unix:"+dir+"/s")
	c := dial(t, p.ready().Disks[0].Exports[0].URIs[0])
	if err := c.Pwrite([]byte{9}, 0, 0); err != nil {
		t.Fatal(err)
	}
	var r serve.Reloaded
	write("disks:\n  - {path: 'mem:1M', name: a}\n  - {path: 'mem:2M', name: b}\n")
	p.signal(syscall.SIGHUP)
	if p.await("reloaded", &r); len(r.Disks) != 2 {
		t.Errorf("after the reload: %+v", r)
	}
	write("disks:\n  - {path: 'mem:1M', name: a}\n  - {path: 'mem:2M', nam: b}\n")
	p.signal(syscall.SIGHUP)
	p.logs(file + `:3:22: a disk has no setting`)
	if p.await("reloaded", &r); len(r.Disks) != 2 || !strings.Contains(r.Error, ":3:22: ") {
		t.Errorf("after a wrong one: %+v", r)
	}
	write("disks:\n  - {path: 'mem:1M', name: a}\n  - {path: " + dir + "/none, name: c}\n")
	p.signal(syscall.SIGHUP)
	if p.await("reloaded", &r); len(r.Disks) != 2 || !strings.Contains(r.Error, file+":3:6: ") {
		t.Errorf("after one that asks for a file that is not there: %+v", r)
	}
	b := []byte{0}
	if err := c.Pread(b, 0, 0); err != nil || b[0] != 9 {
		t.Errorf("the client reads %d (%v)", b[0], err)
	}
	p.signal(syscall.SIGTERM)
	p.await("stopped", nil)
	p.exits(0)
}

func TestOnce(t *testing.T) {
	dir := folder(t)
	p := launch(t, nil, "--once", "--listen", "unix:"+dir+"/s", "mem:1M")
	uri := p.ready().Disks[0].Exports[0].URIs[0]
	// Who only knocks is no client.
	knock, err := net.Dial("unix", dir+"/s")
	if err != nil {
		t.Fatal(err)
	}
	io.ReadFull(knock, make([]byte, 8))
	knock.Close()
	a, b := dial(t, uri), dial(t, uri)
	a.Disconnect()
	if err := b.Flush(); err != nil {
		t.Fatal(err)
	}
	b.Disconnect()
	p.await("stopped", nil)
	p.exits(0)
}

func TestPIDFileOfTheLiving(t *testing.T) {
	dir := folder(t)
	p := launch(t, nil, "--pid-file", dir+"/pid", "--listen", "unix:"+dir+"/s", "mem:1M")
	p.ready()
	code, _, errOut := run(t, "serve", "--pid-file", dir+"/pid", "--listen", "unix:"+dir+"/t", "mem:1M")
	if want := fmt.Sprintf("process %d (", p.cmd.Process.Pid); code != 1 || !strings.Contains(errOut, want) {
		t.Errorf("exit code %d and %q, want 1 and %q", code, errOut, want)
	}
	// A crash leaves both behind; neither is in the way.
	p.signal(syscall.SIGKILL)
	<-p.done
	again := launch(t, nil, "--pid-file", dir+"/pid", "--listen", "unix:"+dir+"/s", "mem:1M")
	dial(t, again.ready().Disks[0].Exports[0].URIs[0])
}

func TestTwoCannotServeOneFile(t *testing.T) {
	dir := folder(t)
	p := launch(t, nil, "--create", "1M", "--listen", "unix:"+dir+"/s", dir+"/d.img")
	p.ready()
	code, _, errOut := run(t, "serve", "--listen", "unix:"+dir+"/t", dir+"/d.img")
	if code != 1 || !strings.Contains(errOut, "is in use") {
		t.Errorf("exit code %d and %q", code, errOut)
	}
}

// TestServiceManager passes a socket and hears of each state, as systemd does.
func TestServiceManager(t *testing.T) {
	dir := folder(t)
	states, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: dir + "/notify", Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer states.Close()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dir + "/s", Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	sock, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	p := launch(t, func(c *exec.Cmd) {
		// LISTEN_PID is the process's own: the shell becomes it.
		c.Args = append([]string{"sh", "-c", `LISTEN_PID=$$ exec "$0" "$@"`, c.Path}, c.Args[1:]...)
		c.Path = "/bin/sh"
		c.Env = append(os.Environ(), "LISTEN_FDS=1", "LISTEN_FDNAMES=disk", "NOTIFY_SOCKET="+dir+"/notify")
		c.ExtraFiles = []*os.File{sock}
	}, "mem:1M")
	expect := func(want string) {
		t.Helper()
		buf := make([]byte, 4096)
		states.SetReadDeadline(time.Now().Add(testutil.StartTimeout))
		n, err := states.Read(buf)
		if err != nil || !strings.HasPrefix(string(buf[:n]), want) {
			t.Fatalf("the service manager hears %q (%v), want %q", buf[:n], err, want)
		}
	}
	r := p.ready()
	expect("READY=1")
	if len(r.Listen) != 1 || r.Listen[0] != "unix:"+dir+"/s" {
		t.Errorf("listens on %v", r.Listen)
	}
	c := dial(t, r.Disks[0].Exports[0].URIs[0])
	p.signal(syscall.SIGHUP)
	expect("RELOADING=1\nMONOTONIC_USEC=")
	expect("READY=1")
	p.await("reloaded", nil)
	if err := c.Flush(); err != nil {
		t.Errorf("after the reload: %v", err)
	}
	p.signal(syscall.SIGTERM)
	expect("STOPPING=1")
	p.await("stopped", nil)
	p.exits(0)
	if _, err := os.Stat(dir + "/s"); err != nil {
		t.Errorf("the service manager's socket was removed: %v", err)
	}
}

func TestTLS(t *testing.T) {
	certs := testutil.Certs(t)
	for _, verify := range []string{"off", "on"} {
		args := []string{"--listen", "localhost:0", "--tls-cert", certs + "/server-cert.pem", "--tls-key", certs + "/server-key.pem"}
		if verify == "on" {
			args = append(args, "--tls-verify-client", "--tls-ca", certs+"/ca-cert.pem")
		}
		p := launch(t, nil, append(args, "mem:1M")...)
		r := p.ready()
		uri := r.Disks[0].Exports[0].URIs[0]
		if r.TLS != "required" || !strings.HasPrefix(uri, "nbds://localhost:") {
			t.Fatalf("TLS %s at %s", r.TLS, uri)
		}
		dial(t, uri+"?tls-certificates="+certs)
		if _, err := nbd.Dial(t.Context(), "nbd"+strings.TrimPrefix(uri, "nbds"), nbd.Best); err == nil {
			t.Error("an unencrypted client is let in")
		}
		anonymous := folder(t)
		ca, err := os.ReadFile(certs + "/ca-cert.pem")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(anonymous+"/ca-cert.pem", ca, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err = nbd.Dial(t.Context(), uri+"?tls-certificates="+anonymous, nbd.Best)
		if (err == nil) != (verify == "off") {
			t.Errorf("verification of clients %s, and a client without certificate: %v", verify, err)
		}
		p.signal(syscall.SIGTERM)
		p.exits(0)
	}
}

// TestRSAClientsOfGnuTLSWereNeverAccepted: certificates of either kind of key
// let libnbd and QEMU in, and a client without one, or with another
// authority's, stays out.
func TestRSAClientsOfGnuTLSWereNeverAccepted(t *testing.T) {
	for _, kind := range []testutil.KeyKind{testutil.RSA, testutil.ECDSA} {
		certs, others := testutil.CertsOf(t, kind), testutil.CertsOf(t, kind)
		p := launch(t, nil, "--listen", "localhost:0", "--tls-cert", certs+"/server-cert.pem", "--tls-key", certs+"/server-key.pem",
			"--tls-verify-client", "--tls-ca", certs+"/ca-cert.pem", "mem:1M")
		uri := p.ready().Disks[0].Exports[0].URIs[0]
		if got := strings.TrimSpace(testutil.Run(t, "nbdinfo", "--size", uri+"?tls-certificates="+certs)); got != "1048576" {
			t.Errorf("%s: nbdinfo says %s", kind, got)
		}
		port := uri[strings.LastIndex(uri, ":")+1:]
		port = strings.TrimSuffix(port, "/")
		out := testutil.Run(t, "qemu-img", "info", "--object", "tls-creds-x509,id=t,endpoint=client,dir="+certs,
			"--image-opts", "driver=nbd,server.type=inet,server.host=localhost,server.port="+port+",tls-creds=t")
		if !strings.Contains(out, "1 MiB") {
			t.Errorf("%s: qemu-img says %s", kind, out)
		}
		if err := os.Rename(certs+"/ca-cert.pem", others+"/ca-cert.pem"); err != nil {
			t.Fatal(err)
		}
		if _, err := testutil.Try("nbdinfo", "--size", uri+"?tls-certificates="+others); err == nil {
			t.Errorf("%s: a certificate of another authority is accepted", kind)
		}
		p.logs("the client's certificate (CN=client) is refused: x509: certificate signed by unknown authority")
		p.signal(syscall.SIGTERM)
		p.exits(0)
	}
}

// TestPrintedCommands runs the lines that the program prints.
func TestPrintedCommands(t *testing.T) {
	dir := folder(t)
	p := launch(t, nil, "--listen", "unix:"+dir+"/s", "--export", "name=a b,,c,description=it's,read-only=on", "mem:1M")
	e := p.ready().Disks[0].Exports[0]
	for _, line := range e.Commands[:2] {
		out, err := exec.Command("sh", "-c", line).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "1048576") {
			t.Errorf("%s: %v\n%s", line, err, out)
		}
	}
}

func TestProbe(t *testing.T) {
	dir := folder(t)
	disk := filepath.Join(dir, "d.img")
	if err := os.WriteFile(disk, []byte(strings.Repeat("data", 1<<19)), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errOut := run(t, "probe", "--json", "--time", "2ms", "--write-test", disk)
	var f struct {
		Examination struct{ Kind string }
		Measurement struct {
			Rows []struct {
				Op   string
				Rate float64 `json:"requests_per_second"`
			}
		}
		Advice []string
	}
	if err := json.Unmarshal([]byte(out), &f); code != 0 || err != nil || errOut != "" {
		t.Fatalf("exit code %d, %v:\n%s%s", code, err, out, errOut)
	}
	if f.Examination.Kind != "regular file" || len(f.Measurement.Rows) < 13 || f.Measurement.Rows[0].Rate <= 0 || len(f.Advice) == 0 {
		t.Errorf("%+v", f)
	}
	device := testutil.Loop(t, dir, 4<<20, 4096)
	code, out, errOut = run(t, "probe", "--time", "2ms", device)
	if code != 0 || !strings.Contains(out, device+": block device, device ") || !strings.Contains(out, "write_align     4 KiB") || !strings.Contains(out, "logical_block_size=4096") {
		t.Errorf("exit code %d:\n%s%s", code, out, errOut)
	}
	if code, _, errOut = run(t, "probe", "--write-test", device); code != 2 || !strings.Contains(errOut, "says nothing about a device") {
		t.Errorf("--write-test of a device gives %d: %s", code, errOut)
	}
	if code, _, errOut = run(t, "probe", dir+"/none"); code != 1 || !strings.Contains(errOut, "does not exist") {
		t.Errorf("probing nothing gives %d: %s", code, errOut)
	}
	if left, _ := filepath.Glob(dir + "/.platter-probe-*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestOtherCommands(t *testing.T) {
	dir := folder(t)
	for _, c := range []struct{ args, want string }{
		{"version", "platter "},
		{"drivers", "\nraw          format    "},
		{"drivers file", "\n  filename  "},
		{"drivers --json", `"name": "mem"`},
		{"completion bash", "complete -o default -F __start_platter platter"},
		{"completion zsh", "#compdef platter"},
		{"completion fish", "complete -c platter"},
		{"__complete serve --cache w", "writeback\nwritethrough\n"},
		{"serve --help", "--listen ADDRESS"},
		{"man " + dir + "/man1", ""},
	} {
		code, out, errOut := run(t, strings.Fields(c.args)...)
		if code != 0 || !strings.Contains(out, c.want) {
			t.Errorf("platter %s gives %d and lacks %q:\n%s%s", c.args, code, c.want, out, errOut)
		}
	}
	if page, err := os.ReadFile(dir + "/man1/platter-serve.1"); err != nil || !strings.Contains(string(page), "--tls-verify-client") {
		t.Errorf("the manual page: %v", err)
	}
}
