//go:build !linux

package file

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"syscall"

	"github.com/platter-storage/platter/block"
)

// plainFile reads and writes at positions through the Go library: no direct
// I/O, no locks, no holes.
type plainFile struct{ f *os.File }

func openSystem(c *config, direct bool) (system, error) {
	if direct {
		return nil, fmt.Errorf("%w: not on %s, only on Linux", errNoDirect, runtime.GOOS)
	}
	if c.mustBeDevice {
		return nil, block.Errorf(syscall.ENOTSUP, "%s: block devices are opened on Linux only", c.path)
	}
	if c.locking == "on" {
		return nil, block.Errorf(syscall.ENOTSUP, "%s: locking=on: files are locked on Linux only; use locking=auto or off, and keep other programs away from it", c.path)
	}
	fi, err := os.Stat(c.path)
	if err == nil && !fi.Mode().IsRegular() {
		return nil, block.Errorf(syscall.EINVAL, "%s: cannot be opened as a disk: it is no regular file", c.path)
	}
	flag := os.O_RDWR
	if c.readOnly {
		flag = os.O_RDONLY
	}
	f, err := os.OpenFile(c.path, flag, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot be opened: %w", err)
	}
	return &plainFile{f}, nil
}

func directError(c *config, why error) error {
	return block.Errorf(syscall.EINVAL, "%s: cache=%s: %v; use cache=writeback, or fallback=buffered", c.path, c.cacheName, why)
}

func (p *plainFile) readv(off int64, v block.Vec) (int, error) {
	n := 0
	for _, e := range v {
		k, err := p.f.ReadAt(e, off+int64(n))
		n += k
		if err != nil || k < len(e) {
			if n > 0 || err == nil || errors.Is(err, io.EOF) {
				return n, nil
			}
			return 0, err
		}
	}
	return n, nil
}

func (p *plainFile) writev(off int64, v block.Vec, durable bool) (int, error) {
	n := 0
	for _, e := range v {
		k, err := p.f.WriteAt(e, off+int64(n))
		n += k
		if err != nil && n == 0 {
			return 0, err
		}
		if err != nil {
			return n, nil
		}
	}
	if durable {
		return n, p.f.Sync()
	}
	return n, nil
}

func (p *plainFile) isDevice() bool     { return false }
func (p *plainFile) main() descriptor   { return p }
func (p *plainFile) cached() descriptor { return p }
func (p *plainFile) sync() error        { return p.f.Sync() }
func (p *plainFile) close() error       { return p.f.Close() }

func (p *plainFile) size() (int64, error) {
	fi, err := p.f.Stat()
	if err != nil {
		return 0, err
	}
	return fi.Size(), nil
}
func (p *plainFile) elsewhere() bool       { return false }
func (p *plainFile) setSize(n int64) error { return p.f.Truncate(n) }

func (p *plainFile) zeroRange(off, n int64) error             { return block.ErrNotSupported }
func (p *plainFile) punch(off, n int64) error                 { return block.ErrNotSupported }
func (p *plainFile) discard(off, n int64) error               { return block.ErrNotSupported }
func (p *plainFile) allocate(off, n int64) error              { return block.ErrNotSupported }
func (p *plainFile) seek(off int64, hole bool) (int64, error) { return 0, block.ErrNotSupported }
func (p *plainFile) fileSystem() (fsAnswer, error)            { return fsAnswer{}, block.ErrNotSupported }
func (p *plainFile) statx() (statxAnswer, error)              { return statxAnswer{}, block.ErrNotSupported }
func (p *plainFile) device() (deviceAnswer, error)            { return deviceAnswer{}, block.ErrNotSupported }
func (p *plainFile) queue() (queueAnswer, error)              { return queueAnswer{}, block.ErrNotSupported }
func (p *plainFile) xfs() (xfsAnswer, error)                  { return xfsAnswer{}, block.ErrNotSupported }
func (p *plainFile) kernel() (major, minor int)               { return 0, 0 }
func (p *plainFile) data() (off, n int64, err error)          { return 0, 0, block.ErrNotSupported }
func (p *plainFile) trial(trialRead) trialOutcome             { return trialOutcome{err: block.ErrNotSupported} }

func (p *plainFile) lockFile(*config) (locked bool, reason string, err error) {
	return false, "not locked: files are locked on Linux only; keep other programs away from it", nil
}

func (p *plainFile) startEngine(want string, memory bool) (reason string, err error) {
	if want != "auto" && want != "threads" {
		return "", block.Errorf(syscall.ENOTSUP, "aio=%s: on Linux only: use aio=auto or threads", want)
	}
	return "engine: calls on the caller's thread", nil
}

func (p *plainFile) newLeaf(*config) block.Leaf { return nil }
func (p *plainFile) durableFlag() bool          { return true }

func (p *plainFile) place() placed { return placed{allocated: -1} }
