package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
)

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "print the version", Args: args(0, 0, "platter version"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), version())
			return err
		},
	}
}

// version says which source this binary was built from.
func version() string {
	v, commit, dirty := "(development)", "", ""
	if bi, ok := debug.ReadBuildInfo(); ok {
		if bi.Main.Version != "" && bi.Main.Version != "(devel)" {
			v = bi.Main.Version
		}
		for _, s := range bi.Settings {
			switch {
			case s.Key == "vcs.revision":
				commit = ", commit " + s.Value
			case s.Key == "vcs.modified" && s.Value == "true":
				dirty = " with changes"
			}
		}
	}
	return fmt.Sprintf("platter %s%s%s, %s %s/%s", v, commit, dirty, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

func newMan() *cobra.Command {
	return &cobra.Command{
		Use: "man DIR", Short: "write manual pages into a folder", Args: args(1, 1, "platter man DIR"),
		Example: "  platter man /usr/local/share/man/man1",
		RunE: func(cmd *cobra.Command, dirs []string) error {
			if err := os.MkdirAll(dirs[0], 0o755); err != nil {
				return err
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true
			prepareManual(root)
			return doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "Platter", Manual: "Platter manual"}, dirs[0])
		},
	}
}

// prepareManual leaves out pages that are for shells, and gives flags the names
// of their values, in the place of defaults that help has in words.
func prepareManual(cmd *cobra.Command) {
	if cmd.Name() == "completion" || cmd.Name() == "help" {
		cmd.Hidden = true
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		name, usage := pflag.UnquoteUsage(f)
		f.Usage = usage
		if f.DefValue = name; f.NoOptDefVal != "" {
			f.DefValue = f.NoOptDefVal
		}
	})
	for _, sub := range cmd.Commands() {
		prepareManual(sub)
	}
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
