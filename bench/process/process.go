// Package process runs the servers that benchmarks compare: it starts them,
// says how much processor time they have used, binds them to a processor, and
// ends them.
package process

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// startTimeout is how long a server may take until its socket answers, and
// endTimeout how long to leave when asked to.
const (
	startTimeout = 15 * time.Second
	endTimeout   = 10 * time.Second
)

// Process is a server that this program started.
type Process struct {
	Name   string // what messages call it
	Socket string
	Pid    int
	log    string     // the file that has what it wrote, for when it fails
	ended  chan error // of the process started, which may not be Pid
}

// Command is how to start a server.
type Command struct {
	Args   []string
	Socket string // the path at which it will listen
	// PidFile: the process started forks, writes the server's id here, and
	// leaves.
	PidFile string
}

// Start runs a server and waits until its socket answers.
func Start(name string, c Command) (*Process, error) {
	s := &Process{Name: name, Socket: c.Socket, log: c.Socket + ".log", ended: make(chan error, 1)}
	log, err := os.Create(s.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(c.Args[0], c.Args[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	// A group of its own: an interrupt from the terminal is ours to pass on.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	s.Pid = cmd.Process.Pid
	go func() { s.ended <- cmd.Wait() }()
	if c.PidFile != "" {
		if err := s.follow(c.PidFile); err != nil {
			return nil, s.failed(c, err.Error())
		}
	}
	for began := time.Now(); time.Since(began) < startTimeout; time.Sleep(20 * time.Millisecond) {
		if !running(s.Pid) {
			return nil, s.failed(c, "ended at once")
		}
		if answers(c.Socket) {
			return s, nil
		}
	}
	return nil, errors.Join(s.failed(c, fmt.Sprintf("no answer on its socket within %v", startTimeout)), s.End())
}

// failed is the error for a server that did not start.
func (s *Process) failed(c Command, why string) error {
	said, err := os.ReadFile(s.log)
	if err != nil {
		said = []byte(err.Error())
	}
	return fmt.Errorf("%s: %s: %s\n%s", s.Name, why, strings.Join(c.Args, " "), bytes.TrimSpace(said))
}

// follow waits for the process that was started to leave, and takes the id of
// the one that stays.
func (s *Process) follow(pidFile string) error {
	if err := <-s.ended; err != nil {
		return err
	}
	for began := time.Now(); time.Since(began) < startTimeout; time.Sleep(20 * time.Millisecond) {
		text, err := os.ReadFile(pidFile)
		if err != nil || !bytes.HasSuffix(text, []byte("\n")) {
			continue // not there or not complete yet
		}
		s.Pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
		return err
	}
	return fmt.Errorf("no process id in %s within %v", pidFile, startTimeout)
}

func answers(socket string) bool {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return false
	}
	return conn.Close() == nil
}

// running reports whether a process is there and not just a corpse.
func running(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	after := bytes.TrimSpace(text[bytes.LastIndexByte(text, ')')+1:])
	return len(after) > 0 && after[0] != 'Z' && after[0] != 'X'
}

// End asks the server to end, and waits for it.
func (s *Process) End() error {
	if err := syscall.Kill(s.Pid, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("%s: %w", s.Name, err)
	}
	for began := time.Now(); time.Since(began) < endTimeout; time.Sleep(20 * time.Millisecond) {
		if !running(s.Pid) {
			return nil
		}
	}
	if err := syscall.Kill(s.Pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("%s: %w", s.Name, err)
	}
	return fmt.Errorf("%s did not end within %v of SIGTERM and was killed", s.Name, endTimeout)
}

// clockTick is the unit of times in /proc: USER_HZ, 100 on every Linux.
const clockTick = time.Second / 100

// CPU is the processor time, user and system, that the server has used so far:
// all its threads, its children, and children that have ended.
func (s *Process) CPU() (time.Duration, error) {
	return treeCPU("/proc", s.Pid)
}

func treeCPU(proc string, root int) (time.Duration, error) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return 0, err
	}
	parents := make(map[int]int)
	used := make(map[int]time.Duration)
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		text, err := os.ReadFile(filepath.Join(proc, e.Name(), "stat"))
		if err != nil {
			continue // ended meanwhile
		}
		if parents[pid], used[pid], err = parseStat(string(text)); err != nil {
			return 0, fmt.Errorf("%s/%d/stat: %w", proc, pid, err)
		}
	}
	if _, ok := used[root]; !ok {
		return 0, fmt.Errorf("no process %d: did the server end?", root)
	}
	total := time.Duration(0)
	for pid := range used {
		if descends(pid, root, parents) {
			total += used[pid]
		}
	}
	return total, nil
}

func descends(pid, root int, parents map[int]int) bool {
	for range len(parents) {
		if pid == root {
			return true
		}
		up, ok := parents[pid]
		if !ok {
			return false
		}
		pid = up
	}
	return false
}

// parseStat reads a process's parent and its processor time, that of ended
// children included, from its stat file (proc_pid_stat(5), fields 4 and 14–17).
func parseStat(text string) (parent int, used time.Duration, err error) {
	// The second field is a name in parentheses, which may hold anything.
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 15 {
		return 0, 0, fmt.Errorf("%d fields after the name, want at least 15", len(fields))
	}
	if parent, err = strconv.Atoi(fields[1]); err != nil {
		return 0, 0, err
	}
	for _, f := range fields[11:15] {
		ticks, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, 0, err
		}
		used += time.Duration(ticks) * clockTick
	}
	return parent, used, nil
}

// TellVersion is the first line of what a program says of its version.
func TellVersion(binary string, args []string) string {
	out, err := exec.Command(binary, args...).CombinedOutput()
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if err != nil && line == "" {
		return err.Error()
	}
	return line
}

// BuildPlatter builds the program from the tree that the benchmark runs in.
func BuildPlatter(binary string) error {
	cmd := exec.Command("go", "build", "-trimpath", "-o", binary, "./cmd/platter")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building platter (run this from the repository, or leave it out with -peers): %w\n%s", err, out)
	}
	return nil
}

// FirstLine is that of a file, or why there is none.
func FirstLine(name string) string {
	text, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	line, _, _ := strings.Cut(string(text), "\n")
	return line
}
