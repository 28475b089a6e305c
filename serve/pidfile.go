package serve

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// pidFile is a file with this process's id, locked as long as the process
// lives: a file without a lock is a dead process's.
type pidFile struct {
	f    *os.File
	path string
}

// takePIDFile makes and locks the file. One that a living process holds is
// refused with that process's name.
func takePIDFile(path string) (*pidFile, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o644)
		if err != nil {
			return nil, fmt.Errorf("pid file: %w", err)
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			defer f.Close()
			return nil, heldPIDFile(f, path, err)
		}
		p := &pidFile{f, path}
		if !p.current() {
			f.Close() // its holder removed it between our open and our lock
			continue
		}
		if !p.holdsPID() {
			f.Close()
			return nil, fmt.Errorf("pid file %s: there is a file of that name that holds no process id, and it would be overwritten: choose another name", path)
		}
		if err := p.write(); err != nil {
			p.release()
			return nil, fmt.Errorf("pid file %s: %w", path, err)
		}
		return p, nil
	}
}

func heldPIDFile(f *os.File, path string, err error) error {
	if err != unix.EWOULDBLOCK {
		return fmt.Errorf("pid file %s: cannot be locked: %w", path, err)
	}
	var buf [32]byte
	n, _ := f.ReadAt(buf[:], 0)
	holder := "another process"
	if pid, err := strconv.Atoi(strings.TrimSpace(string(buf[:n]))); err == nil && pid > 0 {
		holder = describeProcess(pid)
	}
	return fmt.Errorf("pid file %s: %s holds it and is alive: stop it first, or choose another file", path, holder)
}

// current reports whether the locked file is still the one at the path.
func (p *pidFile) current() bool {
	a, err := p.f.Stat()
	if err != nil {
		return false
	}
	b, err := os.Lstat(p.path)
	return err == nil && os.SameFile(a, b)
}

// holdsPID reports whether the file is empty or has one process id: no file of
// another kind, a disk above all, is overwritten by a slip of the keyboard.
func (p *pidFile) holdsPID() bool {
	var buf [32]byte
	n, err := p.f.ReadAt(buf[:], 0)
	if err != io.EOF || n == 0 {
		return err == io.EOF // longer than any process id, or empty
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(buf[:n])))
	return err == nil && pid > 0
}

func (p *pidFile) write() error {
	if err := p.f.Truncate(0); err != nil {
		return err
	}
	_, err := p.f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

// release removes the file and lets go of the lock.
func (p *pidFile) release() {
	if p == nil {
		return
	}
	if p.current() {
		os.Remove(p.path)
	}
	p.f.Close()
}
