// Command platter opens disks and serves them to virtual machines, kernels and
// tools. Its commands are thin: what they do is in packages.
package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/platter-storage/platter/serve/config"

	_ "github.com/platter-storage/platter/filter/all"
	_ "github.com/platter-storage/platter/format/all"
	_ "github.com/platter-storage/platter/protocol/all"
)

// The exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2 // the command line or the configuration is wrong
)

func main() {
	if code, named := asNamed(os.Args); named {
		os.Exit(code)
	}
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	root := newRoot()
	root.SetArgs(args)
	cmd, err := root.ExecuteC()
	if err == nil {
		return exitOK
	}
	var told exitCode
	if errors.As(err, &told) {
		return int(told)
	}
	fmt.Fprintf(os.Stderr, "platter: %s\n", oneLine(err))
	var usage *usageError
	var conf *config.Error
	if errors.As(err, &usage) {
		fmt.Fprintf(os.Stderr, "platter: see %s --help\n", cmd.CommandPath())
	}
	if errors.As(err, &usage) || errors.As(err, &conf) {
		return exitUsage
	}
	return exitFailed
}

// oneLine joins several errors, as of several disks.
func oneLine(err error) string {
	return strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; ")
}

// usageError is a mistake in how the program was called.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "platter",
		Short: "open disks and serve them to virtual machines, kernels and tools",
		Long: `Platter opens a disk (a file, a block device, memory) and serves it to virtual
machines, kernels and tools over NBD. It finds out how the storage wants to be
accessed, does so, and says what it found.`,
		Example: `  platter serve disk.img                    serve a disk on a private Unix socket
  platter serve --create 20G new.img        make it first
  platter probe /dev/nvme0n1                what the storage can do, and how fast
  platter drivers file                      the options of a driver`,
		SilenceErrors: true, SilenceUsage: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return usagef("there is no command %q%s", args[0], didYouMean(args[0], commandNames(cmd)))
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(flagError)
	root.Version = version()
	root.SetVersionTemplate("{{.Version}}\n")
	root.AddCommand(newServe(), newStatus(), newProbe(), newBench(), newDrivers(), newVersion(), newMan(), newLinks())
	root.AddCommand(newVerbs()...)
	return root
}

func commandNames(cmd *cobra.Command) []string {
	var names []string
	for _, c := range cmd.Commands() {
		names = append(names, c.Name())
	}
	return names
}

func didYouMean(given string, candidates []string) string {
	if near := config.Nearest(given, candidates); near != "" {
		return fmt.Sprintf("; did you mean %s?", near)
	}
	return ""
}

// args makes a wrong number of arguments a mistake of usage; form is how the
// command is called rightly.
func args(least, most int, form string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, a []string) error {
		switch {
		case len(a) < least:
			return usagef("%s needs an argument: %s", cmd.CommandPath(), form)
		case len(a) > most:
			return usagef("%s: %q is one argument too many: %s", cmd.CommandPath(), a[most], form)
		}
		return nil
	}
}
