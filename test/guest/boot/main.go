// Command boot boots a test guest by hand: with a shell on this terminal, or
// for one scenario whose result it prints.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/platter-storage/platter/test/guest"
)

func main() {
	if err := boot(); err != nil {
		fmt.Fprintln(os.Stderr, "boot:", err)
		os.Exit(1)
	}
}

// repeated is a flag that may be given several times.
type repeated []string

func (r *repeated) String() string     { return strings.Join(*r, " ") }
func (r *repeated) Set(s string) error { *r = append(*r, s); return nil }

func boot() error {
	var o guest.Options
	var sockets, files, parts repeated
	flag.Var(&sockets, "vhost-user", "socket of a vhost-user-blk server: a disk (repeatable; before the files)")
	flag.Var(&files, "file", "raw file: a disk (repeatable)")
	flag.Var(&parts, "part", "fio or nfs: more programs in the guest (repeatable)")
	packed := flag.Bool("packed", false, "offer the packed ring")
	queues := flag.Int("queues", 1, "queues a disk")
	flag.IntVar(&o.Memory, "memory", 512, "MiB of memory")
	flag.IntVar(&o.CPUs, "cpus", 1, "processors; a disk has no more queues than these")
	ask := flag.String("ask", "", "scenario and its arguments, such as 'identity {\"device\":\"vda\"}', instead of a shell")
	flag.Parse()
	for _, s := range sockets {
		o.Disks = append(o.Disks, guest.Disk{Socket: s, Packed: *packed, Queues: *queues})
	}
	for _, f := range files {
		o.Disks = append(o.Disks, guest.Disk{File: f, Packed: *packed, Queues: *queues})
	}
	for _, p := range parts {
		o.Parts = append(o.Parts, guest.Part(p))
	}
	o.Shell = *ask == ""

	// Ctrl-C belongs to the shell in the guest.
	ctx := context.Background()
	if !o.Shell {
		var stop context.CancelFunc
		ctx, stop = signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
		defer stop()
	}
	lab, err := guest.Open(ctx)
	if err != nil {
		return err
	}
	defer lab.Close()
	vm, err := lab.Boot(ctx, o)
	if err != nil {
		return err
	}
	if o.Shell {
		return vm.Wait()
	}
	return errors.Join(one(ctx, vm, *ask), vm.PowerOff(context.WithoutCancel(ctx)))
}

// one runs a scenario and prints its events and its result.
func one(ctx context.Context, vm *guest.VM, ask string) error {
	name, args, _ := strings.Cut(ask, " ")
	if args == "" {
		args = "{}"
	}
	var result json.RawMessage
	err := vm.Follow(ctx, name, json.RawMessage(args), &result, func(e json.RawMessage) { fmt.Println(string(e)) })
	if err == nil {
		fmt.Println(string(result))
	}
	return err
}
