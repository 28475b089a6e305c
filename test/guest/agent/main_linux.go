// Command agent is the first process of a test guest. It mounts what programs
// expect, loads the drivers, and then does what the host asks for, each
// request beside the others, until the host is gone.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/test/guest/scenario"
)

// patience bounds a wait for what another part of the guest is about to do.
const patience = time.Minute

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "agent: it is the first process of a test guest and nothing else: see test/guest/README.md")
		os.Exit(2)
	}
	err := serve()
	fmt.Println("agent:", err)
	powerOff()
}

func serve() error {
	if err := furnish(); err != nil {
		return err
	}
	port, err := openPort()
	if err != nil {
		return err
	}
	a := &agent{port: port, writers: make(map[string]*writer)}
	if err := a.send(scenario.Reply{Done: true}); err != nil {
		return err
	}
	// Not waited for: a disk that does not answer blocks its driver, and the
	// host is to hear that from the scenario that needs the disk.
	go func() {
		if err := modprobe("virtio_blk"); err != nil {
			fmt.Println("agent:", err)
		}
	}()
	if text, err := os.ReadFile("/proc/cmdline"); err == nil && strings.Contains(string(text), "platter.shell") {
		go shell()
	}
	return a.listen()
}

// furnish makes the guest a place where programs run.
func furnish() error {
	os.Setenv("PATH", "/bin")
	for _, m := range []struct{ kind, on string }{
		{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/tmp"}, {"tmpfs", "/run"},
	} {
		if err := mount(m.kind, m.kind, m.on, ""); err != nil {
			return err
		}
	}
	if err := mount("tmpfs", "tmpfs", "/dev/shm", ""); err != nil {
		return err
	}
	return modprobe("virtio_pci", "virtio_console")
}

func mount(what, kind, on, options string) error {
	if err := os.MkdirAll(on, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(what, on, kind, 0, options); err != nil {
		return fmt.Errorf("mounting %s (%s) on %s: %w", what, kind, on, err)
	}
	return nil
}

// modprobe loads modules.
func modprobe(names ...string) error {
	_, err := run("modprobe", append([]string{"-a"}, names...)...)
	return err
}

// run is a program's output; the error has it too.
func run(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

// openPort finds the port to the host by its name. The kernel opens it for
// reading and writing at once; until the host's end is known to it, it reads
// as ended, which listen takes for what it is.
func openPort() (*os.File, error) {
	for began := time.Now(); time.Since(began) < patience; time.Sleep(10 * time.Millisecond) {
		names, err := filepath.Glob("/sys/class/virtio-ports/*/name")
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err == nil && strings.TrimSpace(string(text)) == scenario.Port {
				return os.OpenFile("/dev/"+filepath.Base(filepath.Dir(name)), os.O_RDWR, 0)
			}
		}
	}
	return nil, fmt.Errorf("no port %s after %v", scenario.Port, patience)
}

// agent serves one host.
type agent struct {
	mu   sync.Mutex // one message at a time
	port *os.File

	writersMu sync.Mutex
	writers   map[string]*writer
}

// call is one request that is being served.
type call struct {
	agent *agent
	id    int
	args  json.RawMessage
}

func (c *call) into(args any) error {
	if err := json.Unmarshal(c.args, args); err != nil {
		return fmt.Errorf("arguments %s: %w", c.args, err)
	}
	return nil
}

func (c *call) event(e any) error {
	raw, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return c.agent.send(scenario.Reply{ID: c.id, Event: raw})
}

// scenarios are what the host may ask for.
var scenarios map[string]func(*call) (any, error)

func init() { // a table that refers to what refers to it
	scenarios = map[string]func(*call) (any, error){
		scenario.PowerOff:    endAll,
		scenario.Kernel:      trouble,
		scenario.Run:         runLine,
		scenario.Identity:    identify,
		scenario.SetCache:    setCache,
		scenario.AwaitSize:   awaitSize,
		scenario.Read:        read,
		scenario.Write:       write,
		scenario.Discard:     discard,
		scenario.Files:       files,
		scenario.FioVerify:   fioVerify,
		scenario.WriterStart: startWriter,
		scenario.WriterCheck: checkWriter,
		scenario.WriterStop:  stopWriter,
		scenario.Verify:      verify,
		scenario.NFSVectors:  nfsVectors,
	}
}

func (a *agent) send(r scenario.Reply) error {
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	_, err = a.port.Write(append(line, '\n'))
	return err
}

// listen serves until the host has gone.
func (a *agent) listen() error {
	lines := bufio.NewReader(a.port)
	heard := false
	for began := time.Now(); ; {
		line, err := lines.ReadBytes('\n')
		switch {
		case err == nil:
			heard = true
			var r scenario.Request
			if err := json.Unmarshal(line, &r); err != nil {
				return fmt.Errorf("the host said %.200q: %w", line, err)
			}
			go a.serve(r)
		case errors.Is(err, io.EOF) && !heard && time.Since(began) < patience:
			time.Sleep(time.Millisecond)
		default:
			return fmt.Errorf("the host is gone: %w", err)
		}
	}
}

func (a *agent) serve(r scenario.Request) {
	reply := scenario.Reply{ID: r.ID, Done: true}
	result, err := a.do(r)
	if err == nil && result != nil {
		reply.Result, err = json.Marshal(result)
	}
	if err != nil {
		reply.Error = err.Error()
	}
	if err := a.send(reply); err != nil {
		fmt.Println("agent:", err)
	}
}

func (a *agent) do(r scenario.Request) (any, error) {
	f := scenarios[r.Name]
	if f == nil {
		return nil, fmt.Errorf("there is no scenario %q", r.Name)
	}
	return f(&call{agent: a, id: r.ID, args: r.Args})
}

// shell gives whoever started the guest a terminal in it.
func shell() {
	cmd := exec.Command("setsid", "cttyhack", "sh")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		fmt.Println("agent: the shell:", err)
	}
	powerOff()
}

func runLine(c *call) (any, error) {
	var args scenario.Command
	if err := c.into(&args); err != nil {
		return nil, err
	}
	text, err := run("sh", "-c", args.Line)
	return scenario.Output{Text: text}, err
}

func endAll(*call) (any, error) {
	powerOff()
	return nil, nil
}

func powerOff() {
	unix.Sync()
	err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	fmt.Println("agent: power off:", err)
}
