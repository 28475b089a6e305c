// Package policy decides which files an image may name. An image is somebody
// else's text: a backing file or data file that it names is opened with the
// rights of whoever opens the image, so that a hostile image could show its user
// any file of the host.
package policy

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
)

// MaxName bounds a name in an image in bytes, as in the reference.
const MaxName = 1023

// Follow gives the path of the file that the image at path image names. Only
// files in the image's folder or below it are followed, links resolved; with
// trust every path is. option names what the user writes to name the file
// himself.
func Follow(image, name, option string, trust bool) (string, error) {
	name = strings.TrimPrefix(name, "file:")
	scheme, _, ok := strings.Cut(name, ":")
	switch {
	case name == "" || len(name) > MaxName || strings.ContainsRune(name, 0):
		return "", refuse(syscall.EINVAL, "%s: the name of its %s has %d bytes, or a zero byte; at most %d are possible", image, option, len(name), MaxName)
	case ok && !strings.Contains(scheme, "/"):
		return "", refuse(syscall.EPERM, "%s: its %s is %q, which is no path: an image cannot choose a protocol; if you trust it, name the node yourself: %s.driver=…", image, option, name, option)
	}
	path := name
	if !filepath.IsAbs(path) {
		path = filepath.Join(filepath.Dir(image), path)
	}
	if trust || below(filepath.Dir(image), path) {
		return path, nil
	}
	return "", refuse(syscall.EPERM, "%s: its %s is %q, outside the image's folder; if you trust the image, add trust=on, or name the file yourself: %s.driver=…", image, option, name, option)
}

// below reports whether path lies in dir or a folder below, links resolved. What
// does not exist is judged by its name: opening it says that it is missing.
func below(dir, path string) bool {
	if !inside(dir, path) {
		return false
	}
	d, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return true
	}
	p, err := filepath.EvalSymlinks(path)
	return err != nil || inside(d, p)
}

func inside(dir, path string) bool {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return false
	}
	path, err = filepath.Abs(path)
	if err != nil {
		return false
	}
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator))
}

// refusal is a reason in words, with the errno that programs look for.
type refusal struct {
	errno syscall.Errno
	msg   string
}

func (r *refusal) Error() string { return r.msg }
func (r *refusal) Unwrap() error { return r.errno }

func refuse(errno syscall.Errno, format string, args ...any) error {
	return &refusal{errno, fmt.Sprintf(format, args...)}
}
