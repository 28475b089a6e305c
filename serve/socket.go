package serve

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/serve/config"
)

// rootCause is the errno inside err, or err.
func rootCause(err error) error {
	var e syscall.Errno
	if errors.As(err, &e) {
		return e
	}
	return err
}

// umask is the process's: whoever narrows it for a moment holds this.
var umask sync.Mutex

// listenUnix makes a Unix socket at path. A dead process's socket is replaced;
// a living one's is refused.
func listenUnix(path string, mode fs.FileMode) (net.Listener, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if len(path) > config.MaxSocketPath {
		return nil, fmt.Errorf("listen on %s: the path has %d bytes, and a Unix socket's has at most %d: choose a shorter one", path, len(path), config.MaxSocketPath)
	}
	unlock, err := lockFolder(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	defer unlock()
	if err := clearSocket(path); err != nil {
		return nil, err
	}
	l, err := bindUnix(path, mode)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, rootCause(err))
	}
	id, err := os.Lstat(path)
	if err != nil {
		l.Close()
		return nil, err
	}
	return &unixListener{Listener: l, path: path, id: id}, nil
}

// lockFolder keeps others of us from looking at the folder's sockets while we
// replace one: of two that find the same stale socket, one must lose.
func lockFolder(dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}

// inUseError says that somebody listens already.
type inUseError struct{ path, holder string }

func (e *inUseError) Error() string {
	who := e.holder
	if who == "" {
		who = "a process that cannot be seen from here"
	}
	return fmt.Sprintf("listen on %s: %s listens there already: stop it, or choose another path with --listen unix:PATH", e.path, who)
}

// clearSocket removes what a dead process left at path.
func clearSocket(path string) error {
	state, holder, err := lookAtSocket(path)
	switch {
	case err != nil:
		return fmt.Errorf("listen: %w", err)
	case state == socketLive:
		return &inUseError{path, holder}
	case state == socketStale:
		return os.Remove(path)
	}
	return nil
}

// bindUnix makes the socket with exactly the permissions of mode, from the
// start.
func bindUnix(path string, mode fs.FileMode) (*net.UnixListener, error) {
	umask.Lock()
	old := unix.Umask(int(0o777 &^ mode.Perm()))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	unix.Umask(old)
	umask.Unlock()
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // unixListener looks first whether it is still ours
	return l, nil
}

// unixListener removes its socket when it closes, unless another stands there.
type unixListener struct {
	net.Listener
	path string
	id   os.FileInfo
	once sync.Once
}

// Close implements net.Listener.
func (l *unixListener) Close() error {
	l.once.Do(func() {
		if now, err := os.Lstat(l.path); err == nil && os.SameFile(now, l.id) {
			os.Remove(l.path)
		}
	})
	return l.Listener.Close()
}

// maxAuto bounds the names that are tried for a socket of our choice.
const maxAuto = 100

// listenAuto makes a socket in a private folder, named after the first disk.
// One of that name that is in use makes it try the next name.
func listenAuto(name string, mode fs.FileMode) (net.Listener, error) {
	dir, err := privateFolder()
	if err != nil {
		return nil, err
	}
	for n := 1; n <= maxAuto; n++ {
		file := name
		if n > 1 {
			file += "-" + strconv.Itoa(n)
		}
		l, err := listenUnix(filepath.Join(dir, file+".sock"), mode)
		var used *inUseError
		if !errors.As(err, &used) {
			return l, err
		}
	}
	return nil, fmt.Errorf("listen: %d sockets called %s are in use in %s: choose a path with --listen unix:PATH", maxAuto, name, dir)
}

// roomForName is how many bytes a socket's name takes at most in its folder:
// the slash, a disk's name, a number and the ending.
const roomForName = len("/") + 31 + len("-100.sock")

// privateFolder is a folder that only this user can look into: below
// XDG_RUNTIME_DIR, or in the folder for temporary files.
func privateFolder() (string, error) {
	dirs := []string{filepath.Join(os.TempDir(), "platter-"+strconv.Itoa(os.Getuid()))}
	if run := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(run) {
		dirs = []string{filepath.Join(run, "platter"), dirs[0]}
	}
	var errs []error
	for _, dir := range dirs {
		err := makePrivate(dir)
		if err == nil {
			return dir, nil
		}
		errs = append(errs, err)
	}
	return "", fmt.Errorf("no folder for the socket: %w: choose a path with --listen unix:PATH", errors.Join(errs...))
}

// makePrivate makes the folder, or makes sure that the one that is there is
// this user's alone: another's could swap the socket for his own.
func makePrivate(dir string) error {
	if len(dir)+roomForName > config.MaxSocketPath {
		return fmt.Errorf("%s is too long for the path of a Unix socket", dir)
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !os.IsExist(err) {
		return err
	}
	st, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	switch {
	case !st.IsDir():
		return fmt.Errorf("%s is no folder", dir)
	case ok && int(sys.Uid) != os.Getuid():
		return fmt.Errorf("%s belongs to user %d", dir, sys.Uid)
	case st.Mode().Perm()&0o077 != 0:
		return os.Chmod(dir, 0o700)
	}
	return nil
}
