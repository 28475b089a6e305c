package guest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/platter-storage/platter/test/guest/scenario"
)

// Bounds of what a guest may take; generous, because test machines are slow.
const (
	bootTimeout = 3 * time.Minute
	offTimeout  = time.Minute
)

// maxLine bounds a message of the agent.
const maxLine = 16 << 20

// processor is all that the emulator has, except cmpxchg16b: QEMU 7.2 gets it
// wrong now and then, and the kernel, whose allocator uses it for every object,
// died of that in 10 of 24 boots (without it, in none of 16). Five levels of
// page tables would only be slower.
const processor = "max,-cx16,-la57"

const emulator = "qemu-system-x86_64"

// Options say what machine to boot.
type Options struct {
	Memory int // MiB; 512 where 0
	CPUs   int // 1 where 0
	Parts  []Part
	Disks  []Disk
	Shell  bool     // a shell on the terminal that this process has, beside the agent
	Extra  []string // more arguments for the emulator
}

// Disk is a disk of the machine: /dev/vda, /dev/vdb and so on in their order.
type Disk struct {
	Socket string // of a vhost-user-blk server; or
	File   string // a raw file, served by the emulator itself
	Packed bool   // offers the packed ring
	Queues int    // 1 where 0
	Serial string // of a File
}

// VM is a running guest.
type VM struct {
	cmd     *exec.Cmd
	dir     string
	console string // the file that has what the kernel printed
	conn    net.Conn
	done    chan struct{} // closed when the emulator has ended
	err     error         // then: how
	output  bytes.Buffer  // then: what the emulator said
	ending  sync.Once     // cleans up
	last    string        // the console, once its file is gone

	mu      sync.Mutex
	asked   int
	waiting map[int]*question
	gone    error // why no more answers come
}

// question is one that the agent has not answered for good.
type question struct {
	event func(json.RawMessage)
	reply chan scenario.Reply
}

// maxBoots is how often a machine is started whose kernel dies before anything
// of ours runs in it: the emulator runs the processors on threads, and a kernel
// that patches its own code on one of them has been seen to die of that on
// another ("Oops: int3"), some moments after its start.
const maxBoots = 3

// Boot starts a machine and waits until its agent answers. The guest powers
// off by itself when this process dies.
func (l *Lab) Boot(ctx context.Context, o Options) (vm *VM, err error) {
	for range maxBoots {
		if vm, err = l.bootOnce(ctx, o); err == nil || !strings.Contains(err.Error(), "Kernel panic") {
			break
		}
	}
	return vm, err
}

func (l *Lab) bootOnce(ctx context.Context, o Options) (*VM, error) {
	initrd, err := l.initrd(o.Parts)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "pg") // short: a socket's path is at most 107 bytes
	if err != nil {
		return nil, err
	}
	vm := &VM{dir: dir, console: filepath.Join(dir, "console"), done: make(chan struct{}), waiting: make(map[int]*question)}
	listener, err := net.Listen("unix", filepath.Join(dir, "agent"))
	if err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	defer listener.Close()
	args, err := arguments(o, l.kernel, initrd, vm.console, listener.Addr().String())
	if err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	if err := vm.start(args, o.Shell); err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	if err := vm.connect(ctx, listener); err != nil {
		err = fmt.Errorf("the guest does not come up: %w\n%s", err, vm.Console())
		vm.Kill()
		return nil, err
	}
	return vm, nil
}

func (vm *VM) start(args []string, shell bool) error {
	vm.cmd = exec.Command(emulator, args...)
	vm.cmd.Stdout, vm.cmd.Stderr = &vm.output, &vm.output
	if shell {
		vm.cmd.Stdin, vm.cmd.Stdout = os.Stdin, os.Stdout
	}
	if err := vm.cmd.Start(); err != nil {
		return fmt.Errorf("%w: scripts/deps.sh installs the emulator", err)
	}
	go func() {
		vm.err = vm.cmd.Wait()
		close(vm.done)
	}()
	return nil
}

// connect waits for the emulator's connection and the agent's first line.
func (vm *VM) connect(ctx context.Context, listener net.Listener) error {
	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	accepted := make(chan error, 1)
	go func() {
		conn, err := listener.Accept()
		vm.conn = conn
		accepted <- err
	}()
	select {
	case err := <-accepted:
		if err != nil {
			return err
		}
	case <-vm.done:
		return vm.ended()
	case <-ctx.Done():
		return ctx.Err()
	}
	hello := &question{reply: make(chan scenario.Reply, 1)}
	vm.waiting[0] = hello
	go vm.read()
	select {
	case <-hello.reply:
		return vm.broken()
	case <-vm.done:
		return vm.ended()
	case <-ctx.Done():
		return fmt.Errorf("no word from the agent: %w", ctx.Err())
	}
}

func (vm *VM) ended() error {
	return fmt.Errorf("the emulator ended (%v): %s", vm.err, bytes.TrimSpace(vm.output.Bytes()))
}

func (vm *VM) broken() error {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	return vm.gone
}

// read hands the agent's messages to whoever asked, until the connection ends.
func (vm *VM) read() {
	lines := bufio.NewScanner(vm.conn)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var r scenario.Reply
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			vm.fail(fmt.Errorf("the agent said %.200q: %w", lines.Text(), err))
			return
		}
		vm.deliver(r)
	}
	err := lines.Err()
	if err == nil {
		err = io.EOF
	}
	vm.fail(fmt.Errorf("the guest is gone: %w", err))
}

func (vm *VM) deliver(r scenario.Reply) {
	vm.mu.Lock()
	q := vm.waiting[r.ID]
	if r.Done {
		delete(vm.waiting, r.ID)
	}
	vm.mu.Unlock()
	switch {
	case q == nil:
	case r.Done:
		q.reply <- r
	case q.event != nil:
		q.event(r.Event)
	}
}

func (vm *VM) fail(err error) {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	vm.gone = err
	for id, q := range vm.waiting {
		delete(vm.waiting, id)
		q.reply <- scenario.Reply{ID: id, Done: true, Error: err.Error()}
	}
}

// Ask runs a scenario in the guest and waits for its result, which may be nil
// where nothing is expected.
func (vm *VM) Ask(ctx context.Context, name string, args, result any) error {
	return vm.Follow(ctx, name, args, result, nil)
}

// Follow is Ask for a scenario that tells events on its way. They are handed
// to event one after another, in their order.
func (vm *VM) Follow(ctx context.Context, name string, args, result any, event func(json.RawMessage)) error {
	raw, err := json.Marshal(args)
	if err != nil {
		return err
	}
	q := &question{event: event, reply: make(chan scenario.Reply, 1)}
	if err := vm.send(scenario.Request{Name: name, Args: raw}, q); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	select {
	case r := <-q.reply:
		if r.Error != "" {
			return fmt.Errorf("in the guest: %s %s: %s", name, raw, r.Error)
		}
		if result == nil {
			return nil
		}
		return json.Unmarshal(r.Result, result)
	case <-ctx.Done():
		return fmt.Errorf("%s %s: no answer from the guest: %w\n%s", name, raw, ctx.Err(), vm.Console())
	}
}

func (vm *VM) send(r scenario.Request, q *question) error {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if vm.gone != nil {
		return vm.gone
	}
	vm.asked++
	r.ID = vm.asked
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	vm.waiting[r.ID] = q
	if _, err := vm.conn.Write(append(line, '\n')); err != nil {
		delete(vm.waiting, r.ID)
		return err
	}
	return nil
}

// Console is what the guest's kernel and the emulator have printed.
func (vm *VM) Console() string {
	text := vm.last
	if raw, err := os.ReadFile(vm.console); err == nil {
		text = string(raw)
	}
	out := "--- the guest's console:\n" + strings.ReplaceAll(text, "\r", "")
	select {
	case <-vm.done:
		return out + "--- the emulator: " + vm.output.String()
	default:
		return out
	}
}

// Pid is the emulator's process.
func (vm *VM) Pid() int { return vm.cmd.Process.Pid }

// Kill ends the machine at once, as pulling its plug would.
func (vm *VM) Kill() {
	vm.cmd.Process.Kill()
	<-vm.done
	vm.clean()
}

// PowerOff ends the machine in the ordinary way.
func (vm *VM) PowerOff(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, offTimeout)
	defer cancel()
	// The answer may be lost in the machine's end, which is what counts.
	asked := vm.Ask(ctx, scenario.PowerOff, struct{}{}, nil)
	select {
	case <-vm.done:
	case <-ctx.Done():
		console := vm.Console()
		vm.Kill()
		return fmt.Errorf("the guest does not power off: %w\n%s", errors.Join(ctx.Err(), asked), console)
	}
	defer vm.clean()
	if vm.err != nil {
		return vm.ended()
	}
	return nil
}

// Wait returns when the machine has ended by itself.
func (vm *VM) Wait() error {
	<-vm.done
	defer vm.clean()
	return vm.err
}

func (vm *VM) clean() {
	vm.ending.Do(func() {
		if vm.conn != nil {
			vm.conn.Close()
		}
		if raw, err := os.ReadFile(vm.console); err == nil {
			vm.last = string(raw)
		}
		os.RemoveAll(vm.dir)
	})
}

// arguments are the emulator's. Guest memory is shared, as vhost-user needs
// it; there is no hardware virtualisation, so that every machine that can run
// the tests runs the same.
func arguments(o Options, kernel, initrd, console, agent string) ([]string, error) {
	memory, cpus := o.Memory, o.CPUs
	if memory == 0 {
		memory = 512
	}
	if cpus == 0 {
		cpus = 1
	}
	cmdline := "console=ttyS0 quiet loglevel=4 panic=-1 tsc=reliable mitigations=off nokaslr"
	serial := "file:" + console
	if o.Shell {
		cmdline += " platter.shell"
		serial = "stdio"
	}
	args := []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-M", "q35,memory-backend=mem,accel=tcg", "-cpu", processor,
		"-m", strconv.Itoa(memory), "-smp", strconv.Itoa(cpus),
		"-object", fmt.Sprintf("memory-backend-memfd,id=mem,size=%dM,share=on", memory),
		"-kernel", kernel, "-initrd", initrd, "-append", cmdline, "-serial", serial,
		"-chardev", "socket,id=agent,path=" + agent,
		"-device", "virtio-serial-pci", "-device", "virtserialport,chardev=agent,name=" + scenario.Port,
	}
	reconnect, err := reconnectOption()
	if err != nil {
		return nil, err
	}
	for i, d := range o.Disks {
		args = append(args, d.arguments(i, reconnect)...)
	}
	return append(args, o.Extra...), nil
}

func (d Disk) arguments(i int, reconnect string) []string {
	queues := max(d.Queues, 1)
	if d.File != "" {
		return []string{
			"-blockdev", fmt.Sprintf("driver=file,node-name=f%d,filename=%s,discard=unmap", i, d.File),
			"-device", fmt.Sprintf("virtio-blk-pci,drive=f%d,num-queues=%d,serial=%s,packed=%s", i, queues, d.Serial, onOff(d.Packed)),
		}
	}
	return []string{
		"-chardev", fmt.Sprintf("socket,id=c%d,path=%s,%s", i, d.Socket, reconnect),
		"-device", fmt.Sprintf("vhost-user-blk-pci,chardev=c%d,num-queues=%d,packed=%s", i, queues, onOff(d.Packed)),
	}
}

func onOff(b bool) string {
	if b {
		return "on"
	}
	return "off"
}

var versionNumber = regexp.MustCompile(`version (\d+)\.(\d+)`)

// reconnectOption makes a front end connect again: in seconds at least one,
// before the emulator counted in milliseconds.
var reconnectOption = sync.OnceValues(func() (string, error) {
	out, err := output(context.Background(), emulator, "--version")
	if err != nil {
		return "", fmt.Errorf("%w: scripts/deps.sh installs the emulator", err)
	}
	v := versionNumber.FindStringSubmatch(out)
	if v == nil {
		return "", fmt.Errorf("%s --version says %q", emulator, out)
	}
	major, _ := strconv.Atoi(v[1]) // the pattern has digits only
	minor, _ := strconv.Atoi(v[2])
	if major > 9 || major == 9 && minor >= 2 {
		return "reconnect-ms=200", nil
	}
	return "reconnect=1", nil
})
