package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/platter-storage/platter/block"
)

func newDrivers() *cobra.Command {
	var json bool
	cmd := &cobra.Command{
		Use:   "drivers [NAME]",
		Short: "list the drivers, or the options of one",
		Long: `Drivers lists what reaches storage (protocol), what interprets it (format) and
what adds behaviour (filter), or the options of one driver. Options are written
as driver=NAME,option=value,file.driver=…; a comma in a value is doubled.`,
		Example: "  platter drivers\n  platter drivers file\n  platter drivers --json",
		Args:    args(0, 1, "platter drivers [NAME]"),
		RunE: func(cmd *cobra.Command, names []string) error {
			drivers := block.Drivers()
			if len(names) == 1 {
				d, err := block.FindDriver(names[0])
				if err != nil {
					return usagef("%w%s", err, didYouMean(names[0], driverNames()))
				}
				drivers = []*block.Driver{d}
			}
			switch {
			case json:
				return writeJSON(cmd.OutOrStdout(), describeDrivers(drivers))
			case len(names) == 1:
				return writeDriver(cmd.OutOrStdout(), drivers[0])
			}
			return writeDrivers(cmd.OutOrStdout(), drivers)
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
			return driverNames(), cobra.ShellCompDirectiveNoFileComp
		},
	}
	cmd.Flags().BoolVar(&json, "json", false, "write JSON")
	return cmd
}

func driverNames() []string {
	var names []string
	for _, d := range block.Drivers() {
		names = append(names, d.Name)
	}
	return names
}

func writeDrivers(w io.Writer, drivers []*block.Driver) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, d := range drivers {
		fmt.Fprintf(t, "%s\t%s\t%s\n", d.Name, d.Kind, d.Doc)
	}
	return t.Flush()
}

func writeDriver(w io.Writer, d *block.Driver) error {
	fmt.Fprintf(w, "%s (%s): %s\n", d.Name, d.Kind, d.Doc)
	if len(d.Schemes) > 0 {
		fmt.Fprintf(w, "URIs: %s:…\n", strings.Join(d.Schemes, ":…, "))
	}
	writeOptions(w, "options", d.Options)
	writeOptions(w, "options for creating (platter serve --create SIZE --create-options NAME=VALUE,…)", d.CreateOptions)
	for _, o := range d.Options {
		if o.Name == "cache" {
			fmt.Fprintln(w, "platter serve, platter.Open and platter probe take cache=auto where nothing is said, instead of the driver's own default.")
		}
	}
	return nil
}

func writeOptions(w io.Writer, title string, options []block.Option) {
	if len(options) == 0 {
		return
	}
	fmt.Fprintf(w, "%s:\n", title)
	t := tabwriter.NewWriter(w, 2, 0, 2, ' ', 0)
	for _, o := range options {
		fmt.Fprintf(t, "  %s\t%s\t%s\n", o.Name, valueText(&o), o.Help)
	}
	t.Flush()
}

// optionTypes are the types' names for people and for JSON.
var optionTypes = map[block.OptType]string{
	block.OptString: "text", block.OptBool: "on or off", block.OptSize: "size", block.OptInt: "number", block.OptEnum: "one of", block.OptNode: "node",
}

func valueText(o *block.Option) string {
	s := optionTypes[o.Type]
	if o.Type == block.OptEnum {
		s = strings.Join(o.Enum, "|")
	}
	switch {
	case o.Required:
		s += ", required"
	case o.Default != "":
		s += ", default " + o.Default
	}
	return s
}

// driverInfo is a driver as JSON.
type driverInfo struct {
	Name          string       `json:"name"`
	Kind          string       `json:"kind"`
	Doc           string       `json:"doc"`
	Schemes       []string     `json:"schemes,omitempty"`
	Options       []optionInfo `json:"options"`
	CreateOptions []optionInfo `json:"create_options,omitempty"`
}

type optionInfo struct {
	Name     string   `json:"name"`
	Type     string   `json:"type"`
	Allowed  []string `json:"allowed,omitempty"`
	Default  string   `json:"default,omitempty"`
	Required bool     `json:"required,omitempty"`
	Help     string   `json:"help"`
}

func describeDrivers(drivers []*block.Driver) []driverInfo {
	var all []driverInfo
	for _, d := range drivers {
		all = append(all, driverInfo{d.Name, d.Kind.String(), d.Doc, d.Schemes, describeOptions(d.Options), describeOptions(d.CreateOptions)})
	}
	return all
}

func describeOptions(options []block.Option) []optionInfo {
	all := []optionInfo{}
	for _, o := range options {
		all = append(all, optionInfo{o.Name, optionTypes[o.Type], o.Enum, o.Default, o.Required, o.Help})
	}
	return all
}
