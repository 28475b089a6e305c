package img

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/image"
)

// session is one run of qemu-io.
type session struct {
	*Call
	ctx    context.Context
	im     *image.Image
	src    image.Source
	ro     bool
	failed bool
	quit   bool
	// keepDiscards passes discards on to the image; else they do nothing.
	keepDiscards bool
}

var ioOptions = spec("c:cmd= f:format= r:read-only s:snapshot n:nocache C:copy-on-read m:misalign k:native-aio " +
	"i:aio= t:cache= d:discard= T:trace= U:force-share h:help V:version image-opts object= q:")

// IO is the program qemu-io: it does to an image what commands say, given by -c
// or read from In. It returns the exit code.
func (c *Call) IO(ctx context.Context, args []string) int {
	opts, rest, err := parse(ioOptions, args)
	cmd := &command{c, "", opts, rest}
	switch {
	case err != nil:
		return c.fail(err)
	case cmd.has("h"):
		fmt.Fprintf(c.Out, "usage: %s [-f FMT] [-r] [-n] [-t CACHE] [-U] [-c COMMAND]... [FILE]\n", c.Name)
		return ok
	case cmd.has("V"):
		fmt.Fprintln(c.Out, "qemu-io version 10.0.13 (the grammar that Platter has here)")
		return ok
	case len(rest) > 1:
		return c.fail(errors.New("at most one file is opened"))
	case cmd.has("s"), cmd.has("C"):
		return c.fail(errors.New("-s and -C are not supported here: work on a copy"))
	}
	s := &session{Call: c, ctx: ctx, keepDiscards: cmd.get("d") != "ignore" && cmd.get("d") != "off"}
	if len(rest) == 1 {
		if err := s.open(cmd, rest[0]); err != nil {
			return c.fail(fmt.Errorf("can't open device %s: %w", rest[0], err))
		}
	}
	if cmd.has("c") {
		for _, g := range opts {
			if g.name == "c" && !s.quit {
				s.line(g.value)
			}
		}
	} else {
		s.prompt(c.In)
	}
	if err := s.close(); err != nil || s.failed {
		return failed
	}
	return ok
}

func (s *session) open(cmd *command, name string) error {
	src, err := cmd.source(name, cmd.get("f"))
	if err != nil {
		return err
	}
	if src.Cache, err = cacheMode(cmd.get("t")); err != nil {
		return err
	}
	if cmd.has("n") {
		src.Cache = "none"
	}
	s.src, s.ro = src, cmd.has("r")
	s.im, err = image.Open(s.ctx, src, s.ro)
	return err
}

func (s *session) close() error {
	if s.im == nil {
		return nil
	}
	err := s.im.Close()
	s.im = nil
	return err
}

// prompt reads commands a line each, of at most bufio's 64 KiB.
func (s *session) prompt(r io.Reader) {
	lines := bufio.NewScanner(r)
	for !s.quit {
		fmt.Fprint(s.Out, "qemu-io> ")
		if !lines.Scan() {
			return
		}
		s.line(lines.Text())
	}
}

// line carries out one command.
func (s *session) line(text string) {
	words := strings.Fields(text)
	if len(words) == 0 {
		return
	}
	c, has := ioCommands[words[0]]
	if !has {
		fmt.Fprintf(s.Out, "command \"%s\" not found\n", words[0])
		s.failed = true
		return
	}
	if !c.free && s.im == nil {
		fmt.Fprintln(s.Out, "no file open, try 'help open'")
		s.failed = true
		return
	}
	opts, rest, err := parse(spec(c.spec), words[1:])
	if err == nil && (len(rest) < c.least || c.most >= 0 && len(rest) > c.most) {
		err = fmt.Errorf("%s takes %s", words[0], c.usage)
	}
	if err == nil {
		err = c.run(s, &command{s.Call, words[0], opts, rest})
	}
	var told exitTold
	if err != nil {
		s.failed = true
		if !errors.As(err, &told) {
			fmt.Fprintln(s.Out, strings.ReplaceAll(err.Error(), "\n", "; "))
		}
	}
}

// exitTold is the error of a command that has said what is wrong.
type exitTold struct{}

func (exitTold) Error() string { return "told" }

// ioCommand is a command of qemu-io.
type ioCommand struct {
	spec, usage string
	least, most int  // arguments; most -1 is any number
	free        bool // needs no image
	run         func(s *session, c *command) error
}

var ioCommands map[string]ioCommand

func init() {
	const rd, wr = "a: b: C: q: r: v: p: P:= s:= l:= i:", "b: c: C: f: n: q: r: u: z: p: P:= s:= i:"
	read := ioCommand{rd, "offset and length", 2, 2, false, (*session).read}
	write := ioCommand{wr, "offset and length", 2, 2, false, (*session).write}
	readv, writev := read, write
	readv.most, writev.most = -1, -1
	discard := ioCommand{"C: q:", "offset and length", 2, 2, false, (*session).discard}
	flush := ioCommand{"", "nothing", 0, 0, false, func(s *session, _ *command) error { return s.told("flush", s.im.Flush()) }}
	quit := ioCommand{"", "nothing", 0, 0, true, func(s *session, _ *command) error { s.quit = true; return nil }}
	length := ioCommand{"", "nothing", 0, 0, false, func(s *session, _ *command) error { fmt.Fprintln(s.Out, ioSize(s.im.Size())); return nil }}
	closing := ioCommand{"", "nothing", 0, 0, false, func(s *session, _ *command) error { return s.close() }}
	ioCommands = map[string]ioCommand{
		"read": read, "r": read, "readv": readv, "aio_read": readv,
		"write": write, "w": write, "writev": writev, "aio_write": writev,
		"discard": discard, "d": discard, "aio_discard": discard,
		"flush": flush, "f": flush, "aio_flush": flush,
		"truncate": {"m:=", "a size", 1, 1, false, (*session).truncate}, "t": {"m:=", "a size", 1, 1, false, (*session).truncate},
		"length": length, "l": length,
		"info": {"", "nothing", 0, 0, false, (*session).info}, "i": {"", "nothing", 0, 0, false, (*session).info},
		"alloc": {"", "offset and length", 1, 2, false, (*session).alloc}, "a": {"", "offset and length", 1, 2, false, (*session).alloc},
		"map":  {"", "nothing", 0, 0, false, (*session).mapRuns},
		"open": {openSpec, "a file", 0, 1, true, (*session).openCommand}, "o": {openSpec, "a file", 0, 1, true, (*session).openCommand},
		"close": closing, "c": closing,
		"reopen": {"r: w: c:= o:=", "options", 0, 0, false, (*session).reopen},
		"sleep":  {"", "milliseconds", 1, 1, true, (*session).sleep},
		"quit":   quit, "q": quit,
		"help": {"", "a command", 0, 1, true, (*session).help}, "?": {"", "a command", 0, 1, true, (*session).help},
	}
}

const openSpec = "r: s: n: C: k: U: t:= d:= o:="

func (s *session) help(c *command) error {
	for _, name := range slices.Sorted(maps.Keys(ioCommands)) {
		if len(c.args) == 0 || c.args[0] == name {
			fmt.Fprintf(s.Out, "%s -- takes %s\n", name, ioCommands[name].usage)
		}
	}
	return nil
}

// told says that an operation failed, as scripts look for it.
func (s *session) told(what string, err error) error {
	if err == nil {
		return nil
	}
	fmt.Fprintf(s.Out, "%s failed: %s\n", what, errnoText(err))
	return exitTold{}
}

func (s *session) openCommand(c *command) error {
	if s.im != nil {
		return errors.New("file open already, try 'help close'")
	}
	if len(c.args) == 0 && !c.has("o") {
		return errors.New("open takes a file")
	}
	name := ""
	if len(c.args) == 1 {
		name = c.args[0]
	}
	src := image.Source{Name: name, Trust: s.Trust, Shared: c.has("U")}
	if c.has("o") {
		vals, err := c.options()
		if err != nil {
			return err
		}
		src.Format = vals["driver"]
		if name == "" || len(vals) > 1 {
			if name != "" {
				vals["file.filename"] = name
			}
			src.Options, src.Name = vals, ""
		}
	}
	var err error
	if src.Cache, err = cacheMode(c.get("t")); err != nil {
		return err
	}
	if c.has("n") {
		src.Cache = "none"
	}
	s.src, s.ro = src, c.has("r")
	if s.im, err = image.Open(s.ctx, src, s.ro); err != nil {
		s.im = nil
		return fmt.Errorf("can't open device %s: %w", name, err)
	}
	return nil
}

// reopen closes the image and opens it again, with other options.
func (s *session) reopen(c *command) error {
	if c.has("o") {
		return errors.New("reopen -o is not supported here: close the image, and open it with the options")
	}
	if c.has("r") && c.has("w") {
		return errors.New("-r and -w exclude each other")
	}
	cache, err := cacheMode(c.get("c"))
	if err != nil {
		return err
	}
	if err := s.close(); err != nil {
		return err
	}
	if cache != "" {
		s.src.Cache = cache
	}
	s.ro = c.has("r") || s.ro && !c.has("w")
	im, err := image.Open(s.ctx, s.src, s.ro)
	if err == nil {
		s.im = im
	}
	return err
}

func (s *session) truncate(c *command) error {
	size, err := parseBytes(c.args[0])
	if err != nil {
		return err
	}
	mode := block.PreallocOff
	if c.has("m") {
		var known bool
		if mode, known = block.ParsePrealloc(c.get("m")); !known {
			return fmt.Errorf("there is no preallocation mode %q", c.get("m"))
		}
	}
	if err := s.im.Truncate(size, mode); err != nil {
		return err
	}
	return nil
}

func (s *session) info(*command) error {
	in, err := s.im.Info()
	if err != nil {
		return err
	}
	fmt.Fprintf(s.Out, "format name: %s\ncluster size: %s\nvm state offset: %s\n", in.Format, ioSize(in.ClusterSize), ioSize(0))
	return nil
}
