package main

// row is a line of the table: one workload on every server.
type row struct {
	name  string
	about string
	load  workload
	tool  tool // instead of load
	// content: the row makes sense on a disk that holds data only.
	content bool
}

// tool is another program as the client.
type tool int

const (
	ownClient tool = iota
	nbdcopy
	fio
)

const (
	kib = 1 << 10
	mib = 1 << 20
)

var rows = []row{
	{name: "r4k-d1", about: "4 KiB random read, depth 1", load: workload{random: true, block: 4 * kib, depth: 1, conns: 1}},
	{name: "r4k-d1-pin", about: "4 KiB random read, depth 1, client and server on one processor", load: workload{random: true, block: 4 * kib, depth: 1, conns: 1, pinned: true}},
	{name: "r4k-d32", about: "4 KiB random read, depth 32", load: workload{random: true, block: 4 * kib, depth: 32, conns: 1}},
	{name: "r4k-4x16", about: "4 KiB random read, 4 connections x depth 16", load: workload{random: true, block: 4 * kib, depth: 16, conns: 4}},
	{name: "w4k-d32", about: "4 KiB random write, depth 32", load: workload{write: true, random: true, block: 4 * kib, depth: 32, conns: 1}},
	{name: "r1m-d4", about: "1 MiB sequential read, depth 4", load: workload{block: mib, depth: 4, conns: 1}},
	{name: "w1m-d4", about: "1 MiB sequential write, depth 4", load: workload{write: true, block: mib, depth: 4, conns: 1}},
	{name: "w128k-d8", about: "128 KiB sequential write, depth 8", load: workload{write: true, block: 128 * kib, depth: 8, conns: 1}},
	{name: "copy", about: "nbdcopy of the whole, fully written disk to null:, 4 connections; a request is 1 MiB", tool: nbdcopy, content: true},
	{name: "fio", about: "4 KiB random read, depth 32, by fio's nbd engine: the same as r4k-d32 by another client", tool: fio},
}

// disk is what a server serves.
type disk struct {
	name  string
	about string
	// content: it holds what is written to it.
	content bool
	// image: it is an image, whose file the servers find made.
	image *image
}

var disks = []disk{
	{name: "null", about: "reads as zeroes, forgets writes"},
	{name: "memory", about: "memory of the server's own, or a file on tmpfs where it has none", content: true},
	{name: "direct", about: "file on the file system of -dir, O_DIRECT where the server can", content: true},
	{name: "cached", about: "file on the file system of -dir, through the page cache", content: true},
	{name: "qcow2", about: "qcow2 image, all of it allocated, on the file system of -dir, O_DIRECT", content: true, image: &image{}},
	{name: "qcow2-shm", about: "qcow2 image, all of it allocated, on tmpfs", content: true, image: &image{shm: true}},
	{name: "qcow2-el2", about: "qcow2 image with extended L2 entries, all of it allocated, on tmpfs", content: true, image: &image{shm: true, create: "compat=1.1,extended_l2=on,cluster_size=128k"}},
	{name: "qcow2-backed", about: "empty qcow2 image over a full one, on tmpfs: what is written is copied", content: true, image: &image{shm: true, backed: true}},
}
