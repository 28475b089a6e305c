package main

import "slices"

const (
	kib = 1 << 10
	mib = 1 << 20
)

// row is a line of the table: one workload on every server.
type row struct {
	name  string
	about string
	load  workload
	on    []string // the disks it is measured on
	// asks: the latencies shown are those of GET_CONFIG beside the load.
	asks bool
}

var rows = []row{
	{name: "r4k-d1", about: "4 KiB random read, depth 1", load: workload{random: true, block: 4 * kib, depth: 1, queues: 1}, on: []string{"null", "tmpfs", "direct"}},
	{name: "r4k-d1-pin", about: "4 KiB random read, depth 1, client and server on one processor", load: workload{random: true, block: 4 * kib, depth: 1, queues: 1, pinned: true}, on: []string{"null", "tmpfs"}},
	{name: "r4k-d32", about: "4 KiB random read, depth 32", load: workload{random: true, block: 4 * kib, depth: 32, queues: 1}, on: []string{"null", "tmpfs", "direct", "cached"}},
	{name: "r4k-d1-busy", about: "4 KiB random read, depth 1, a client that polls", load: workload{random: true, block: 4 * kib, depth: 1, queues: 1, polls: true}, on: []string{"null", "tmpfs"}},
	{name: "r4k-d32-busy", about: "4 KiB random read, depth 32, a client that polls", load: workload{random: true, block: 4 * kib, depth: 32, queues: 1, polls: true}, on: []string{"null", "tmpfs", "cached"}},
	{name: "r4k-d128", about: "4 KiB random read, depth 128", load: workload{random: true, block: 4 * kib, depth: 128, queues: 1}, on: []string{"null"}},
	{name: "r4k-2x32", about: "4 KiB random read, 2 queues x depth 32", load: workload{random: true, block: 4 * kib, depth: 32, queues: 2}, on: []string{"null", "tmpfs"}},
	{name: "w4k-d1", about: "4 KiB random write, depth 1", load: workload{write: true, random: true, block: 4 * kib, depth: 1, queues: 1}, on: []string{"direct"}},
	{name: "w4k-d32", about: "4 KiB random write, depth 32", load: workload{write: true, random: true, block: 4 * kib, depth: 32, queues: 1}, on: []string{"tmpfs", "direct"}},
	{name: "r8k-4rd", about: "8 KiB sequential read, 4 readers of depth 1 each", load: workload{streams: true, block: 8 * kib, depth: 4, queues: 1}, on: []string{"direct"}},
	{name: "r128k-d8", about: "128 KiB sequential read, depth 8", load: workload{block: 128 * kib, depth: 8, queues: 1}, on: []string{"tmpfs", "direct"}},
	{name: "w128k-d8", about: "128 KiB sequential write, depth 8", load: workload{write: true, block: 128 * kib, depth: 8, queues: 1}, on: []string{"tmpfs", "direct"}},
	{name: "r1m-d4", about: "1 MiB sequential read, depth 4", load: workload{block: mib, depth: 4, queues: 1}, on: []string{"tmpfs", "direct"}},
	{name: "w1m-d4", about: "1 MiB sequential write, depth 4", load: workload{write: true, block: mib, depth: 4, queues: 1}, on: []string{"tmpfs", "direct"}},
	{name: "config", about: "r4k-2x32, and GET_CONFIG beside it every 2 ms, whose latencies are shown", load: workload{random: true, block: 4 * kib, depth: 32, queues: 2}, on: []string{"null", "tmpfs"}, asks: true},
}

// disk is what a server serves.
type disk struct {
	name  string
	about string
	// content: it holds what is written to it.
	content bool
}

var disks = []disk{
	{name: "null", about: "reads as zeroes, forgets writes"},
	{name: "tmpfs", about: "file on tmpfs", content: true},
	{name: "direct", about: "file on the file system of -dir, O_DIRECT", content: true},
	{name: "cached", about: "file on the file system of -dir, through the page cache", content: true},
}

func (r row) isOn(d disk) bool { return slices.Contains(r.on, d.name) }
