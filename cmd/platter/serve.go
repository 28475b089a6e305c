package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/platter-storage/platter/internal/procs"
	"github.com/platter-storage/platter/serve"
	"github.com/platter-storage/platter/serve/config"
)

func newServe() *cobra.Command {
	var file string
	var json, verbose, check bool
	flags := &config.Layer{}
	cmd := &cobra.Command{
		Use:   "serve [DISK…]",
		Short: "serve disks over NBD and vhost-user",
		Long: `Serve opens disks and serves them until it is told to end. A DISK is a path, a
URI (null:4G, mem:1G, file:///srv/disk.img), an option string (driver=raw,…) or
an object (json:{…}).

Without --listen it serves on a Unix socket that only this user can reach, below
XDG_RUNTIME_DIR or the folder for temporary files, and prints its URI. With
--vhost-user it serves virtual machines, and without --listen nobody else.

SIGTERM and SIGINT end it: requests in flight are finished and the disks made
durable; a second one ends it at once. SIGHUP reads the configuration file and
the certificates again. SIGUSR1 prints counters and latencies.

Exit codes: 0 ended as told, 1 failed, 2 the command line or the configuration
is wrong.`,
		Example: `  platter serve disk.img
  platter serve --create 20G --preallocation falloc new.img
  platter serve --read-only --export name=golden,description='the golden image' golden.img
  platter serve --listen localhost:10809 /dev/sdb
  platter serve --vhost-user /run/vm.sock,queues=4 vm.img
  platter serve --listen :10809 --tls-cert server.pem --tls-key key.pem --tls-ca ca.pem --tls-verify-client a.img b.img
  platter serve driver=raw,offset=1M,size=1G,file.driver=file,file.filename=disk.img
  platter serve --config /etc/platter/serve.yaml`,
		RunE: func(cmd *cobra.Command, disks []string) error {
			if len(disks) == 0 && file == "" {
				return usagef("serve needs a disk: a path, a URI such as mem:1G, or --config FILE")
			}
			for _, d := range disks {
				flags.AddDisk(d)
			}
			procs.Dedicate()
			return serve.Run(cmd.Context(), serve.Options{
				Load: func() (*config.Config, error) { return load(file, flags) },
				Out:  cmd.OutOrStdout(), Err: cmd.ErrOrStderr(), JSON: json, Verbose: verbose, Check: check, ConfigFile: file,
			})
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	addSettings(cmd, flags)
	f.StringVar(&file, "config", "", "take settings and disks from `FILE` (YAML) too; SIGHUP reads it again")
	f.BoolVar(&json, "json", false, "write one JSON object for each event (ready, checked, stats, reloaded, stopped) to standard output")
	f.BoolVar(&check, "check", false, "open the disks, say how, and end: nothing is made or served (also --dry-run)")
	f.BoolVar(&check, "dry-run", false, "the same as --check")
	f.BoolFuncP("verbose", "v", "say all that is known of the disks, and --log-level debug", func(string) error {
		verbose = true
		flags.Set("log-level", config.Text{Value: "debug", At: config.Place{Flag: "verbose"}})
		return nil
	})
	f.FuncP("socket", "k", "the same as --listen unix:`PATH`", func(path string) error {
		return set(flags, "listen", config.Text{Value: "unix:" + path, At: config.Place{Flag: "socket"}})
	})
	return cmd
}

// load puts the flags over the file.
func load(file string, flags *config.Layer) (*config.Config, error) {
	if file == "" {
		return config.Build(flags)
	}
	layer, err := config.LoadFile(file)
	if err != nil {
		return nil, err
	}
	return config.Build(layer, flags)
}

// addSettings makes a flag of each setting there is.
func addSettings(cmd *cobra.Command, layer *config.Layer) {
	for i := range config.Settings {
		s := &config.Settings[i]
		v := &settingFlag{layer, s}
		f := cmd.Flags().VarPF(v, s.Name, s.Short, help(s))
		if s.Bool() {
			f.NoOptDefVal = "on"
		}
		// The name was registered a line ago: there is nothing to fail.
		_ = cmd.RegisterFlagCompletionFunc(s.Name, cobra.FixedCompletions(completions(s), directive(s)))
	}
}

// help is the setting's line, with what is allowed and its default.
func help(s *config.Setting) string {
	var notes []string
	if vals := s.Values(); len(vals) > 0 {
		notes = append(notes, strings.Join(vals, ", "))
	}
	if s.Default != "" && !s.Bool() {
		notes = append(notes, "default: "+s.Default)
	}
	if len(notes) == 0 {
		return s.Help
	}
	return s.Help + " (" + strings.Join(notes, "; ") + ")"
}

func completions(s *config.Setting) []cobra.Completion {
	if s.Bool() {
		return []string{"on", "off"}
	}
	return s.Values()
}

func directive(s *config.Setting) cobra.ShellCompDirective {
	if s.Value == "FILE" {
		return cobra.ShellCompDirectiveDefault
	}
	return cobra.ShellCompDirectiveNoFileComp
}

// settingFlag is a setting as a flag: it is checked when it is given.
type settingFlag struct {
	layer *config.Layer
	s     *config.Setting
}

func (f *settingFlag) String() string { return "" }
func (f *settingFlag) Type() string   { return f.s.Value }
func (f *settingFlag) Set(v string) error {
	return set(f.layer, f.s.Name, config.Text{Value: v, At: config.Place{Flag: f.s.Name}})
}

// set checks a value by itself and notes it. A setting that is one value takes
// the last.
func set(layer *config.Layer, name string, v config.Text) error {
	if err := config.Find(name).Check(v); err != nil {
		return err
	}
	layer.Set(name, v)
	return nil
}
