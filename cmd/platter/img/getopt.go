// Package img is the command line of the image tools, in the grammar of
// qemu-img and qemu-io: what scripts that call those write works here.
package img

import (
	"fmt"
	"strings"
)

// option is one that a verb takes: its letter or 0, its long names.
type option struct {
	short byte
	long  []string
	value bool
}

// given is an option as it was used, by the first of its names.
type given struct{ name, value string }

// name is what the option is called in given.
func (o option) name() string {
	if o.short != 0 {
		return string(o.short)
	}
	return o.long[0]
}

// spec reads a table in short: "f:format q:quiet": a name that ends in = takes
// a value, a letter before a colon is the short form; names are separated by |.
func spec(text string) []option {
	var out []option
	for _, w := range strings.Fields(text) {
		var o option
		w, o.value = strings.CutSuffix(w, "=")
		if len(w) > 1 && w[1] == ':' {
			o.short, w = w[0], w[2:]
		}
		if w != "" {
			o.long = strings.Split(w, "|")
		}
		out = append(out, o)
	}
	return out
}

// parse reads options wherever they stand, as getopt does; -- ends them.
func parse(opts []option, args []string) (got []given, rest []string, err error) {
	for len(args) > 0 {
		a := args[0]
		args = args[1:]
		switch {
		case a == "--":
			return got, append(rest, args...), nil
		case strings.HasPrefix(a, "--"):
			var g given
			if g, args, err = parseLong(opts, a[2:], args); err != nil {
				return nil, nil, err
			}
			got = append(got, g)
		case len(a) > 1 && a[0] == '-':
			if got, args, err = parseShort(opts, got, a[1:], args); err != nil {
				return nil, nil, err
			}
		default:
			rest = append(rest, a)
		}
	}
	return got, rest, nil
}

func parseLong(opts []option, a string, args []string) (given, []string, error) {
	name, value, has := strings.Cut(a, "=")
	o, err := findLong(opts, name)
	switch {
	case err != nil:
		return given{}, nil, err
	case !o.value && has:
		return given{}, nil, fmt.Errorf("option --%s takes no value", name)
	case o.value && !has && len(args) == 0:
		return given{}, nil, fmt.Errorf("option --%s needs a value", name)
	case o.value && !has:
		value, args = args[0], args[1:]
	}
	return given{o.name(), value}, args, nil
}

// findLong finds an option by its name or a beginning that only it has.
func findLong(opts []option, name string) (option, error) {
	var near []option
	for _, o := range opts {
		begins := false
		for _, l := range o.long {
			if l == name {
				return o, nil
			}
			begins = begins || name != "" && strings.HasPrefix(l, name)
		}
		if begins {
			near = append(near, o)
		}
	}
	switch len(near) {
	case 0:
		return option{}, fmt.Errorf("there is no option --%s", name)
	case 1:
		return near[0], nil
	}
	return option{}, fmt.Errorf("option --%s could be --%s or --%s", name, near[0].long[0], near[1].long[0])
}

func parseShort(opts []option, got []given, a string, args []string) ([]given, []string, error) {
next:
	for a != "" {
		c := a[0]
		a = a[1:]
		for _, o := range opts {
			if o.short != c {
				continue
			}
			if !o.value {
				got = append(got, given{o.name(), ""})
				continue next
			}
			if a == "" && len(args) == 0 {
				return nil, nil, fmt.Errorf("option -%c needs a value", c)
			}
			if a == "" {
				a, args = args[0], args[1:]
			}
			return append(got, given{o.name(), a}), args, nil
		}
		return nil, nil, fmt.Errorf("there is no option -%c", c)
	}
	return got, args, nil
}
