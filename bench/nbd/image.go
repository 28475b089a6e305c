package main

import (
	"fmt"
	"os/exec"
	"path/filepath"

	"github.com/platter-storage/platter/bench/content"
)

// Disks that are qcow2 images, made by qemu-img: what lies between the server
// and the file is a format's lookups.

// image says how a disk's image is made.
type image struct {
	create string // options of qemu-img create
	// backed: an empty image over one that holds everything.
	backed bool
	shm    bool // on tmpfs, through no device
}

// make makes the image of at's size, full of the pattern, and returns its name.
func (i *image) make(at *place) (string, error) {
	at.filled = true
	dir := at.dir
	if i.shm {
		dir = at.shm
	}
	name, full := filepath.Join(dir, "disk.qcow2"), filepath.Join(dir, "full.qcow2")
	if !i.backed {
		full = name
	}
	steps := [][]string{{"create", "-q", "-f", "qcow2", "-o", i.options(), full, fmt.Sprint(at.size)}}
	if i.backed {
		steps = append(steps, []string{"create", "-q", "-f", "qcow2", "-o", i.options(), "-b", "full.qcow2", "-F", "qcow2", name})
	}
	for n, args := range steps {
		if out, err := exec.Command("qemu-img", args...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("qemu-img %q: %w: %s", args, err, out)
		}
		if n > 0 {
			continue
		}
		if err := fill(full, at); err != nil {
			return "", err
		}
	}
	return name, nil
}

func (i *image) options() string {
	if i.create == "" {
		return "compat=1.1"
	}
	return i.create
}

// fill writes the pattern into an empty image, by a server that is none of
// those measured.
func fill(name string, at *place) error {
	c := command{args: []string{"qemu-nbd", "--socket", at.socket(), "-f", "qcow2", "--cache=writeback", "--persistent", name}, socket: at.socket()}
	s, err := start("filling "+name, "", c)
	if err != nil {
		return err
	}
	err = once(s, workload{write: true, block: mib, depth: 4, conns: 1}, content.Filled, forLong, at.size/mib)
	if e := s.End(); err == nil {
		err = e
	}
	return err
}

// cache is the mode in which such a disk is opened.
func (i *image) cache() string {
	if i.shm {
		return "writeback"
	}
	return "none"
}
