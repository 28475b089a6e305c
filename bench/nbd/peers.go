package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/platter-storage/platter/bench/content"
)

// peer is a program that serves disks.
type peer struct {
	name    string
	binary  string
	version []string // arguments that make it tell its version
	// serve says how to start it for a disk. A peer that has no such disk
	// answers false.
	serve func(d disk, at *place) (c command, note string, ok bool, err error)
}

// place is where one server finds its things.
type place struct {
	dir    string // of its own, on the file system under test
	shm    string // of its own, on tmpfs
	size   int64
	filled bool // file or memory made a file, which holds the pattern
}

func (p *place) socket() string { return filepath.Join(p.dir, "socket") }

// file makes the disk's file on the file system under test.
func (p *place) file(cached bool) (string, error) {
	p.filled = true
	name := filepath.Join(p.dir, "disk.img")
	return name, content.File(name, p.size, cached)
}

// memory makes the disk's file on tmpfs.
func (p *place) memory() (string, error) {
	p.filled = true
	name := filepath.Join(p.shm, "disk.img")
	return name, content.File(name, p.size, true)
}

// peers are all servers; other is a second build of platter, and qemu another
// qemu-nbd, or "".
func peers(platter, other, qemu string) []peer {
	list := []peer{
		{name: "platter", binary: platter, version: []string{"version"}, serve: func(d disk, at *place) (command, string, bool, error) { return servePlatter(platter, d, at) }},
		{name: "qemu-nbd", binary: "qemu-nbd", version: []string{"--version"}, serve: func(d disk, at *place) (command, string, bool, error) {
			return serveQEMU("qemu-nbd", "io_uring", d, at)
		}},
		{name: "qemu-native", binary: "qemu-nbd", version: []string{"--version"}, serve: func(d disk, at *place) (command, string, bool, error) {
			if d.name != "direct" {
				return command{}, "", false, nil // Linux AIO needs O_DIRECT
			}
			return serveQEMU("qemu-nbd", "native", d, at)
		}},
		{name: "nbdkit", binary: "nbdkit", version: []string{"--version"}, serve: serveNBDKit},
		{name: "nbd-server", binary: "nbd-server", version: []string{"-V"}, serve: serveNBDServer},
	}
	if qemu != "" {
		list = append(list, peer{name: "qemu-other", binary: qemu, version: []string{"--version"}, serve: func(d disk, at *place) (command, string, bool, error) { return serveQEMU(qemu, "io_uring", d, at) }})
	}
	if other != "" {
		list = append(list, peer{name: "other", binary: other, version: []string{"version"}, serve: func(d disk, at *place) (command, string, bool, error) {
			c, note, ok, err := servePlatter(other, d, at)
			c.unlike = true
			return c, strings.TrimPrefix(note+", another build", ", "), ok, err
		}})
	}
	return list
}

func servePlatter(binary string, d disk, at *place) (command, string, bool, error) {
	args := []string{binary, "serve", "--listen", "unix:" + at.socket()}
	var file, note string
	var err error
	if d.image != nil {
		file, err = d.image.make(at)
		return command{args: append(args, "--format", "qcow2", "--cache", d.image.cache(), file), socket: at.socket()}, "", true, err
	}
	switch d.name {
	case "null":
		args = append(args, fmt.Sprintf("null:%d", at.size))
	case "memory":
		args = append(args, fmt.Sprintf("mem:%d", at.size))
	case "direct":
		file, err = at.file(false)
		args = append(args, "--cache", "none", file)
		note = "O_DIRECT"
	case "cached":
		file, err = at.file(true)
		args = append(args, "--cache", "writeback", file)
	}
	return command{args: args, socket: at.socket()}, note, true, err
}

func serveQEMU(binary, aio string, d disk, at *place) (command, string, bool, error) {
	args := []string{binary, "--socket", at.socket(), "--shared=32", "--persistent"}
	var file, note string
	var err error
	if d.image != nil {
		if d.image.shm {
			aio = "threads" // what is fastest there
		}
		file, err = d.image.make(at)
		args = append(args, "-f", "qcow2", "--cache="+d.image.cache(), "--aio="+aio, "--discard=unmap", file)
		return command{args: args, socket: at.socket()}, "aio=" + aio, true, err
	}
	switch d.name {
	case "null":
		args = append(args, "--image-opts", fmt.Sprintf("driver=null-co,size=%d,read-zeroes=on", at.size))
		note = "null-co, read-zeroes=on"
	case "memory":
		file, err = at.memory()
		args = append(args, "-f", "raw", "--cache=writeback", file)
		note = "file on tmpfs, aio=threads"
	case "direct":
		file, err = at.file(false)
		args = append(args, "-f", "raw", "--cache=none", "--aio="+aio, file)
		note = "cache=none, aio=" + aio
	case "cached":
		file, err = at.file(true)
		args = append(args, "-f", "raw", "--cache=writeback", file)
		note = "cache=writeback, aio=threads"
	}
	return command{args: args, socket: at.socket()}, note, true, err
}

func serveNBDKit(d disk, at *place) (command, string, bool, error) {
	if d.image != nil {
		return command{}, "", false, nil
	}
	args := []string{"nbdkit", "-f", "--unix", at.socket()}
	var file, note string
	var unlike bool
	var err error
	switch d.name {
	case "null":
		args = append(args, "null", fmt.Sprint(at.size))
	case "memory":
		args = append(args, "memory", fmt.Sprint(at.size))
	case "direct":
		file, err = at.file(false)
		args = append(args, "file", file, "cache=none")
		note, unlike = "cache=none: drops pages behind itself, no O_DIRECT", true
	case "cached":
		file, err = at.file(true)
		args = append(args, "file", file)
	}
	return command{args: args, socket: at.socket(), unlike: unlike}, note, true, err
}

// serveNBDServer: it has files only, and forks a process for each connection.
func serveNBDServer(d disk, at *place) (command, string, bool, error) {
	var file, note string
	var unlike bool
	var err error
	switch d.name {
	case "memory":
		file, err = at.memory()
		note = "file on tmpfs"
	case "direct":
		file, err = at.file(false)
		note, unlike = "page cache: it has no O_DIRECT", true
	case "cached":
		file, err = at.file(true)
	default:
		return command{}, "", false, nil
	}
	if err != nil {
		return command{}, "", false, err
	}
	config := filepath.Join(at.dir, "config")
	text := fmt.Sprintf("[generic]\n\tunixsock = %s\n\tallowlist = true\n[disk]\n\texportname = %s\n\tflush = true\n\tfua = true\n", at.socket(), file)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		return command{}, "", false, err
	}
	pidFile := filepath.Join(at.dir, "pid")
	return command{args: []string{"nbd-server", "-C", config, "-p", pidFile}, socket: at.socket(), export: "disk", pidFile: pidFile, unlike: unlike}, note, true, nil
}
