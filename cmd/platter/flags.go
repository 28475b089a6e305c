package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/platter-storage/platter/serve/config"
)

// qemuNBD is what flags of qemu-nbd are here, for people who come from there.
var qemuNBD = map[string]string{
	"p": "--listen HOST:PORT", "port": "--listen HOST:PORT",
	"b": "--listen HOST:PORT", "bind": "--listen HOST:PORT",
	"x": "--export name=NAME", "export-name": "--export name=NAME",
	"D": "--export name=NAME,description=TEXT", "description": "--export name=NAME,description=TEXT",
	"t": "nothing: serve goes on when a client leaves, unless --once is given", "persistent": "nothing: serve goes on when a client leaves, unless --once is given",
	"e": "--max-connections N", "shared": "--max-connections N",
	"n": "--cache none", "nocache": "--cache none",
	"o": "the option string driver=raw,offset=BYTES,file.filename=PATH", "offset": "the option string driver=raw,offset=BYTES,file.filename=PATH",
	"image-opts": "the option string itself, as the argument", "tls-creds": "--tls-cert, --tls-key, --tls-ca and --tls-verify-client", "object": "--tls-cert, --tls-key, --tls-ca and --tls-verify-client",
	"fork": "a service manager (see docs/serve.md), or & in a shell",
	"c":    "nbd-client, whose line serve prints", "connect": "nbd-client, whose line serve prints",
	"d": "nbd-client -d", "disconnect": "nbd-client -d",
	"s": "not there yet: serve a copy", "snapshot": "not there yet: serve a copy",
	"L": "nbdinfo --list URI", "list": "nbdinfo --list URI",
}

// flagError makes a flag's mistake one of usage, in our own words.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	var missing *pflag.ValueRequiredError
	var invalid *pflag.InvalidValueError
	var syntax *pflag.InvalidSyntaxError
	switch {
	case errors.As(err, &unknown):
		return unknownFlag(cmd, unknown)
	case errors.As(err, &missing):
		f := missing.GetFlag()
		return usagef("--%s needs a value: --%s %s", f.Name, f.Name, valueName(f))
	case errors.As(err, &invalid):
		return invalidValue(invalid)
	case errors.As(err, &syntax):
		return usagef("%q is not a flag; a path that begins with - is written ./%s", syntax.GetSpecifiedFlag(), syntax.GetSpecifiedFlag())
	}
	return &usageError{err}
}

// unknownFlag says what was probably meant.
func unknownFlag(cmd *cobra.Command, e *pflag.NotExistError) error {
	dashes, name := "--", e.GetSpecifiedName()
	if e.GetSpecifiedShortnames() != "" {
		dashes, name = "-", name[:1]
	}
	if here, ok := qemuNBD[name]; ok && cmd.Name() == "serve" {
		return usagef("there is no flag %s%s; what qemu-nbd means by it is here: %s", dashes, name, here)
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	if hint := config.Nearest(name, names); hint != "" && dashes == "--" {
		return usagef("there is no flag --%s; did you mean --%s?", name, hint)
	}
	return usagef("there is no flag %s%s", dashes, name)
}

// valueName is what help calls a flag's value.
func valueName(f *pflag.Flag) string {
	name, _ := pflag.UnquoteUsage(f)
	return name
}

// invalidValue says what a flag takes.
func invalidValue(e *pflag.InvalidValueError) error {
	var conf *config.Error
	if errors.As(e, &conf) {
		return &usageError{conf}
	}
	f, form := e.GetFlag(), e.Unwrap().Error()
	switch f.Value.Type() {
	case "duration":
		form = "write 250ms, 10s or 5m"
	case "bool":
		form = fmt.Sprintf("write --%s alone, or --%s=false", f.Name, f.Name)
	}
	return usagef("--%s: %q is not possible: %s", f.Name, e.GetValue(), strings.TrimSpace(form))
}
