package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/platter-storage/platter/bench/content"
	"github.com/platter-storage/platter/bench/process"
)

// peer is a program that serves disks.
type peer struct {
	name    string
	binary  string
	version []string // arguments that make it tell its version; nil: it is this program
	// unlike: it is shown, and not compared with.
	unlike bool
	note   string
	// only are the disks that it is measured on; nil is all.
	only []string
	// args say how to serve a disk, whose file is file, at socket.
	args func(d disk, socket, file string, size int64) []string
}

// place is where one server finds its things.
type place struct {
	dir  string // of its own, on the file system under test
	shm  string // of its own, on tmpfs
	size int64
}

func (p *place) socket() string { return filepath.Join(p.dir, "socket") }

// file makes the disk's file, in full.
func (p *place) file(d disk) (string, error) {
	switch d.name {
	case "null":
		return "", nil
	case "tmpfs":
		name := filepath.Join(p.shm, "disk.img")
		return name, content.File(name, p.size, true)
	}
	name := filepath.Join(p.dir, "disk.img")
	return name, content.File(name, p.size, d.name == "cached")
}

func makePlace(dir, shm, name string, size int64) (*place, error) {
	p := &place{dir: filepath.Join(dir, name), shm: filepath.Join(shm, name), size: size}
	if err := os.MkdirAll(p.dir, 0o755); err != nil {
		return p, err
	}
	return p, os.MkdirAll(p.shm, 0o755)
}

// remove takes everything away, the file first: it fills memory.
func (p *place) remove() error {
	if err := os.RemoveAll(p.shm); err != nil {
		return err
	}
	return os.RemoveAll(p.dir)
}

// peers are all servers.
func (o *options) peers(platter, self string) []peer {
	daemon := func(binary, aio string) func(d disk, socket, file string, size int64) []string {
		return func(d disk, socket, file string, size int64) []string {
			return reference(binary, aio, d, socket, file, size)
		}
	}
	list := []peer{
		{name: "platter", binary: platter, version: []string{"version"}, args: ours(platter, "")},
		{name: "qsd", binary: "qemu-storage-daemon", version: []string{"--version"}, note: "qemu-storage-daemon, aio=io_uring", args: daemon("qemu-storage-daemon", "io_uring")},
		{name: "qsd-native", binary: "qemu-storage-daemon", version: []string{"--version"}, note: "aio=native", only: []string{"direct"}, args: daemon("qemu-storage-daemon", "native")},
		{name: "qsd-threads", binary: "qemu-storage-daemon", version: []string{"--version"}, note: "aio=threads", only: []string{"tmpfs", "cached"}, args: daemon("qemu-storage-daemon", "threads")},
		{name: "no-poll", binary: platter, version: []string{"version"}, note: "platter, poll=off", unlike: true, args: ours(platter, ",poll=off")},
		{name: "bare", binary: self, note: "package queue in this program, as what clears is measured against", unlike: true, args: inProcess(self, 0)},
		{name: "clears-40k", binary: self, note: "the same, but it clears 40 KiB for each request", unlike: true, args: inProcess(self, 40*kib)},
	}
	if o.qsd != "" {
		list = append(list, peer{name: "qsd-other", binary: o.qsd, version: []string{"--version"}, note: o.qsd + ", aio=io_uring", args: daemon(o.qsd, "io_uring")})
	}
	if o.other != "" {
		list = append(list, peer{name: "other", binary: o.other, version: []string{"version"}, note: "another build of platter", unlike: true, args: ours(o.other, "")})
	}
	return list
}

func cacheOf(d disk) string {
	if d.name == "direct" {
		return "none"
	}
	return "writeback"
}

// ours is how platter serves; more is added to the socket's options.
func ours(binary, more string) func(d disk, socket, file string, size int64) []string {
	return func(d disk, socket, file string, size int64) []string {
		args := []string{binary, "serve", "--vhost-user", socket + ",queues=2" + more}
		if d.name == "null" {
			return append(args, fmt.Sprintf("null:%d", size))
		}
		return append(args, "--cache", cacheOf(d), file)
	}
}

// reference is how QEMU's storage daemon serves.
func reference(binary, aio string, d disk, socket, file string, size int64) []string {
	node := fmt.Sprintf("driver=null-co,node-name=d,read-zeroes=on,size=%d", size)
	if d.name != "null" {
		direct := "off"
		if d.name == "direct" {
			direct = "on"
		}
		node = fmt.Sprintf("driver=file,node-name=d,aio=%s,cache.direct=%s,filename=%s", aio, direct, file)
	}
	return []string{binary, "--blockdev", node, "--export", "type=vhost-user-blk,id=e,node-name=d,writable=on,num-queues=2,addr.type=unix,addr.path=" + socket}
}

// inProcess is how this program serves.
func inProcess(self string, clears int) func(d disk, socket, file string, size int64) []string {
	return func(d disk, socket, file string, size int64) []string {
		name := file
		if d.name == "null" {
			name = fmt.Sprintf("null:%d", size)
		}
		return []string{self, "-serve", socket, "-serve-disk", name, "-serve-cache", cacheOf(d), "-serve-clears", fmt.Sprint(clears)}
	}
}

func (p *peer) serves(d disk) bool {
	return p.only == nil || strings.Contains(" "+strings.Join(p.only, " ")+" ", " "+d.name+" ")
}

// about is what the head of the table says of a peer.
func (p *peer) about() string {
	if p.version == nil {
		return "this program"
	}
	return process.TellVersion(p.binary, p.version)
}
