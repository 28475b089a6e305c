package img

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"syscall"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/image"
)

// Exit codes that are the reference's.
const (
	ok      = 0
	failed  = 1
	noCheck = 63
)

// Call is one call of a tool.
type Call struct {
	// Name is what messages begin with.
	Name string
	In   io.Reader
	Out  io.Writer
	Err  io.Writer
	// Trust has the reference's rules: formats are guessed, backing files
	// followed wherever they are.
	Trust bool
}

// verb is a subcommand.
type verb struct {
	usage string
	spec  []option
	run   func(ctx context.Context, c *command) int
}

// command is a verb being carried out.
type command struct {
	*Call
	verb string
	opts []given
	args []string
}

var verbs map[string]verb

func init() {
	const plain = " f:format= object= image-opts q:quiet h:help "
	verbs = map[string]verb{
		"info":     {"[-f FMT] [--output=human|json] [--backing-chain] [-U] FILE", spec(plain + "output= b:backing-chain U:force-share t:cache="), info},
		"create":   {"[-q] [-f FMT] [-b BACKING -F FMT] [-u] [-o OPTIONS] FILE [SIZE]", spec(plain + "b:backing= F:backing-format= u:backing-unsafe o:options="), create},
		"convert":  {"[-f FMT] [-O FMT] [-o OPTIONS] [-c] [-S SIZE] [-m N] [-W] [-n] FILE... TARGET", spec(plain + convertOptions), convert},
		"map":      {"[-f FMT] [--output=human|json] [-s OFFSET] [-l LENGTH] [-U] FILE", spec(plain + "output= s:start-offset= l:max-length= U:force-share"), mapImage},
		"compare":  {"[-f FMT] [-F FMT] [-s] [-p] [-q] [-U] FILE FILE", spec(" f:format|a-format|left-format= object= image-opts q:quiet h:help F:b-format|right-format= T:cache= p:progress s:strict U:force-share"), compare},
		"measure":  {"[-O FMT] [-o OPTIONS] [--output=human|json] (--size SIZE | FILE)", spec(plain + "output= O:target-format= o:options= s:size= l:snapshot= U:force-share"), measure},
		"resize":   {"[-f FMT] [--shrink] [--preallocation=MODE] FILE [+|-]SIZE", spec(plain + "shrink preallocation="), resize},
		"check":    {"[-f FMT] [-r leaks|all] [--output=human|json] [-U] FILE", spec(plain + "output= r:repair= T:cache= U:force-share"), check},
		"snapshot": {"[-l | -a NAME | -c NAME | -d NAME] [-U] FILE", spec(plain + "l:list a:apply= c:create= d:delete= U:force-share"), snapshot},
		"bitmap":   {"(--add|--remove|--clear|--enable|--disable|--merge SOURCE)... [-g SIZE] FILE BITMAP", spec(plain + "add remove clear enable disable merge= g:granularity= b:source-file= F:source-format="), bitmap},
		"commit":   {"[-f FMT] [-t CACHE] -d [-p] FILE", spec(plain + "t:cache= b:base= r:rate= d:drop p:progress"), commit},
		"rebase":   {"[-f FMT] [-u] -b BACKING [-F FMT] FILE", spec(plain + "t:cache= T:backing-cache= p:progress u:backing-unsafe c:compress U:force-share b:backing= F:backing-format="), rebase},
		"amend":    {"[-f FMT] -o OPTIONS FILE", spec(plain + "t:cache= p:progress o:options= force"), amend},
		"dd":       {"[-f FMT] [-O FMT] [bs=SIZE] [count=N] [skip=N] if=FILE of=FILE", spec(plain + "O:output-format= U:force-share"), dd},
	}
}

// Verbs lists the subcommands with how they are called.
func Verbs() map[string]string {
	out := map[string]string{}
	for name, v := range verbs {
		out[name] = v.usage
	}
	return out
}

// Run carries out a subcommand, and returns the exit code.
func (c *Call) Run(ctx context.Context, args []string) int {
	for len(args) > 0 && (args[0] == "-T" || args[0] == "--trace") {
		args = args[min(2, len(args)):]
	}
	if len(args) == 0 {
		return c.fail(errors.New("which command? See --help"))
	}
	switch args[0] {
	case "-h", "--help", "help":
		return c.help()
	case "-V", "--version":
		fmt.Fprintln(c.Out, "qemu-img version 10.0.13 (the grammar that Platter has here)")
		return ok
	}
	v, has := verbs[args[0]]
	if !has {
		return c.fail(fmt.Errorf("there is no command %q; there are: %s", args[0], strings.Join(slices.Sorted(maps.Keys(verbs)), ", ")))
	}
	// The last of resize is a size, also where it begins like an option.
	args, size := args, []string(nil)
	if n := len(args) - 1; args[0] == "resize" && n > 1 && !strings.HasPrefix(args[n], "--") {
		args, size = args[:n], args[n:]
	}
	opts, rest, err := parse(v.spec, args[1:])
	rest = append(rest, size...)
	if err != nil {
		return c.fail(fmt.Errorf("%s: %w", args[0], err))
	}
	cmd := &command{c, args[0], opts, rest}
	if cmd.has("h") {
		fmt.Fprintf(c.Out, "usage: %s %s %s\n", c.Name, args[0], v.usage)
		return ok
	}
	return v.run(ctx, cmd)
}

func (c *Call) help() int {
	for _, name := range slices.Sorted(maps.Keys(verbs)) {
		fmt.Fprintf(c.Out, "%s %s %s\n", c.Name, name, verbs[name].usage)
	}
	fmt.Fprintf(c.Out, "Supported formats:")
	for _, d := range block.Drivers() {
		fmt.Fprintf(c.Out, " %s", d.Name)
	}
	fmt.Fprintln(c.Out)
	return ok
}

// fail tells an error in one line.
func (c *Call) fail(err error) int {
	fmt.Fprintf(c.Err, "%s: %s\n", c.Name, strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; "))
	return failed
}

func (c *command) has(name string) bool {
	return slices.ContainsFunc(c.opts, func(g given) bool { return g.name == name })
}

// get is the last value of an option.
func (c *command) get(name string) string {
	for _, g := range slices.Backward(c.opts) {
		if g.name == name {
			return g.value
		}
	}
	return ""
}

// size reads an option's value in bytes, or gives what it is without.
func (c *command) size(name string, without int64) (int64, error) {
	if !c.has(name) {
		return without, nil
	}
	n, err := parseBytes(c.get(name))
	if err != nil {
		return 0, fmt.Errorf("option %s: %w", name, err)
	}
	return n, nil
}

// parseBytes is block.ParseSize, and 0x….
func parseBytes(s string) (int64, error) {
	if hex, is := strings.CutPrefix(s, "0x"); is {
		var n int64
		if _, err := fmt.Sscanf(hex, "%x", &n); err != nil || n < 0 {
			return 0, fmt.Errorf("%q is not a size", s)
		}
		return n, nil
	}
	return block.ParseSize(s)
}

// options joins what all -o say; of two values of one name the last holds.
func (c *command) options() (block.Values, error) {
	out := block.Values{}
	for _, g := range c.opts {
		if g.name != "o" {
			continue
		}
		for _, item := range items(g.value) {
			vals, err := block.ParseOptions(item)
			if err != nil {
				return nil, err
			}
			maps.Copy(out, vals)
		}
	}
	return out, nil
}

// items cuts a list at its commas, but not at those that are doubled.
func items(s string) []string {
	var out []string
	from := 0
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] != ',':
		case i+1 < len(s) && s[i+1] == ',':
			i++
		default:
			out = append(out, s[from:i])
			from = i + 1
		}
	}
	return append(out, s[from:])
}

// source is the image that name means under the options of the verb.
func (c *command) source(name, format string) (image.Source, error) {
	s := image.Source{Name: name, Format: format, Trust: c.Trust, Shared: c.has("U")}
	if !c.has("image-opts") {
		return s, nil
	}
	if c.has("f") {
		return s, errors.New("--image-opts and -f exclude each other")
	}
	return described(s)
}

// described takes the name of s for a list of options.
func described(s image.Source) (image.Source, error) {
	vals, err := block.ParseOptions(s.Name)
	s.Options = vals
	return s, err
}

// only is the verb's one image.
func (c *command) only() (image.Source, error) {
	if len(c.args) != 1 {
		return image.Source{}, fmt.Errorf("%s takes one file name", c.verb)
	}
	if o := c.get("output"); o != "" && o != "human" && o != "json" {
		return image.Source{}, fmt.Errorf("--output is human or json, not %q", o)
	}
	s, err := c.source(c.args[0], c.get("f"))
	if err != nil {
		return s, err
	}
	s.Cache, err = cacheMode(c.get("t") + c.get("T"))
	return s, err
}

// cacheMode is the mode under our name for it.
func cacheMode(s string) (string, error) {
	switch s {
	case "off":
		return "none", nil
	case "", "none", "writeback", "writethrough", "directsync", "unsafe":
		return s, nil
	}
	return "", fmt.Errorf("there is no cache mode %q", s)
}

// say prints unless the call is a quiet one.
func (c *command) say(format string, a ...any) {
	if !c.has("q") {
		fmt.Fprintf(c.Out, format, a...)
	}
}

// progress prints per cent, where -p asks for them.
func (c *command) progress() block.Progress {
	if !c.has("p") || c.has("q") {
		return nil
	}
	last := int64(-1)
	return func(done, total int64) {
		if total <= 0 {
			done, total = 1, 1
		}
		hundredths := int64(float64(done) / float64(total) * 10000)
		if hundredths/50 == last/50 && last >= 0 && hundredths != 10000 {
			return
		}
		last = hundredths
		fmt.Fprintf(c.Out, "    (%d.%02d/100%%)\r", hundredths/100, hundredths%100)
		if done >= total {
			fmt.Fprintln(c.Out)
		}
	}
}

// errnoText is how the C library says an error, which scripts look for.
func errnoText(err error) string {
	e := block.Errno(err)
	if e == syscall.ENOTSUP {
		return "Operation not supported"
	}
	s := e.Error()
	return strings.ToUpper(s[:1]) + s[1:]
}
