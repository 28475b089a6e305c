package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/platter-storage/platter/cmd/platter/img"
)

// linkNames are the names under which the program is another one.
var linkNames = []string{"qemu-img", "qemu-io"}

// asNamed runs the tool that the program was called as; false where it was
// called by its own name.
func asNamed(args []string) (int, bool) {
	name := filepath.Base(args[0])
	if !slices.Contains(linkNames, name) {
		return 0, false
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c := &img.Call{Name: name, In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Trust: true}
	if name == "qemu-io" {
		return c.IO(ctx, args[1:]), true
	}
	return c.Run(ctx, args[1:]), true
}

// exitCode is an error that has been told.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

var verbDocs = map[string][2]string{
	"info":     {"what an image is", "platter info --output=json disk.qcow2"},
	"create":   {"make an image", "platter create -f qcow2 disk.qcow2 20G"},
	"convert":  {"copy images, of any format to any", "platter convert -O qcow2 -c disk.raw disk.qcow2"},
	"map":      {"what of a disk has data, and where", "platter map --output=json disk.qcow2"},
	"compare":  {"whether two images have the same content", "platter compare a.raw b.qcow2"},
	"measure":  {"how large an image's file will be", "platter measure -O qcow2 disk.raw"},
	"resize":   {"make a disk larger or smaller", "platter resize disk.qcow2 +10G"},
	"check":    {"look through an image's metadata, and repair it", "platter check -r leaks disk.qcow2"},
	"snapshot": {"list, make, apply and delete internal snapshots", "platter snapshot -c before-update disk.qcow2"},
	"bitmap":   {"dirty bitmaps kept in an image", "platter bitmap --add disk.qcow2 backup0"},
	"commit":   {"write an overlay's content into its backing file", "platter commit -d overlay.qcow2"},
	"rebase":   {"change an image's backing file", "platter rebase -F qcow2 -b base2.qcow2 overlay.qcow2"},
	"amend":    {"change an image's format in place", "platter amend -o compat=1.1 disk.qcow2"},
	"dd":       {"copy a part of an image", "platter dd bs=1M skip=4 count=16 if=disk.qcow2 of=part.raw"},
}

// newVerbs makes a command of each verb: the grammar is img's own.
func newVerbs() []*cobra.Command {
	var out []*cobra.Command
	usage := img.Verbs()
	for _, name := range slices.Sorted(maps.Keys(usage)) {
		doc := verbDocs[name]
		out = append(out, &cobra.Command{
			Use: name + " " + usage[name], Short: doc[0], Example: "  " + doc[1],
			DisableFlagParsing: true, DisableFlagsInUseLine: true,
			RunE: func(cmd *cobra.Command, args []string) error {
				if slices.Contains(args, "--help") || slices.Contains(args, "-h") {
					return cmd.Help()
				}
				ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
				defer stop()
				c := &img.Call{Name: "platter", In: os.Stdin, Out: os.Stdout, Err: os.Stderr}
				if code := c.Run(ctx, append([]string{name}, args...)); code != exitOK {
					return exitCode(code)
				}
				return nil
			},
		})
	}
	return out
}

// newLinks makes the command that lets the program be called as others.
func newLinks() *cobra.Command {
	return &cobra.Command{
		Use: "install-links DIR", Short: "make links in DIR by which the program is " + strings.Join(linkNames, " and "),
		Example: "  platter install-links /usr/local/bin",
		Args:    args(1, 1, "platter install-links DIR"),
		RunE: func(_ *cobra.Command, a []string) error {
			self, err := os.Executable()
			if err != nil {
				return err
			}
			for _, name := range linkNames {
				if err := os.Symlink(self, filepath.Join(a[0], name)); err != nil {
					return fmt.Errorf("%w: remove what is there, or choose another folder", err)
				}
			}
			return nil
		},
	}
}
