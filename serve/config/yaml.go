package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"syscall"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/platter-storage/platter/block"
)

// LoadFile reads a configuration file.
func LoadFile(name string) (*Layer, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, errorAt(Place{Flag: "config"}, "%s: %v", name, ReadError(err))
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, MaxFileBytes+1))
	if err != nil {
		return nil, errorAt(Place{Flag: "config"}, "%s: %v", name, ReadError(err))
	}
	return Parse(name, text)
}

// ReadError says why a file cannot be read, and what to do; the file's name is
// the caller's to add.
func ReadError(err error) error {
	switch {
	case errors.Is(err, os.ErrNotExist):
		return errors.New("it does not exist: check the path")
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("it may not be read by user %d: change its mode or owner", os.Getuid())
	case errors.Is(err, syscall.EISDIR):
		return errors.New("it is a folder: name a file")
	}
	var path *os.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// maxNesting bounds brackets and dashes within each other: the parser takes
// time and memory by the square of it.
const maxNesting = 128

// tooDeep is the line at which the text is nested too deep, or 0. It looks at
// characters only, so a line of text that has many brackets counts as nesting.
func tooDeep(text []byte) (line int) {
	depth := 0
	line = 1
	for l := range bytes.Lines(text) {
		dashes := 0
		for rest := bytes.TrimLeft(l, " "); len(rest) > 1 && (rest[0] == '-' || rest[0] == '?') && rest[1] == ' '; rest = bytes.TrimLeft(rest[1:], " ") {
			dashes++
		}
		for _, c := range l {
			switch c {
			case '[', '{':
				depth++
			case ']', '}':
				depth = max(depth-1, 0)
			}
			if depth > maxNesting || dashes > maxNesting {
				return line
			}
		}
		line++
	}
	return 0
}

// Parse reads the text of a configuration file; name is for messages.
func Parse(name string, text []byte) (*Layer, error) {
	r := reader{name}
	if len(text) > MaxFileBytes {
		return nil, errorAt(Place{File: name}, "the file is longer than %s, the most that is read", block.FormatSize(MaxFileBytes))
	}
	if line := tooDeep(text); line > 0 {
		return nil, errorAt(Place{File: name, Line: line, Col: 1}, "it is nested deeper than %d", maxNesting)
	}
	file, err := parser.ParseBytes(text, 0)
	if err != nil {
		return nil, r.syntax(err)
	}
	l := &Layer{File: name}
	docs := slices.DeleteFunc(file.Docs, func(d *ast.DocumentNode) bool { return d.Body == nil })
	switch {
	case len(docs) == 0:
		return l, nil
	case len(docs) > 1:
		return nil, r.errorf(docs[1].Body, "a second document begins here: a configuration is one document, without ---")
	}
	return l, r.top(l, docs[0].Body)
}

// reader turns the tree of a YAML file into a Layer. Every error has its place.
type reader struct{ name string }

func (r reader) place(n ast.Node) Place {
	p := Place{File: r.name, Line: 1, Col: 1}
	if t := n.GetToken(); t != nil && t.Position != nil {
		p.Line, p.Col = t.Position.Line, t.Position.Column
	}
	return p
}

func (r reader) errorf(n ast.Node, format string, args ...any) error {
	return errorAt(r.place(n), format, args...)
}

// syntax gives the parser's error a place in our form.
func (r reader) syntax(err error) error {
	at := Place{File: r.name}
	msg := err.Error()
	var e yaml.Error
	if errors.As(err, &e) {
		msg = e.GetMessage()
		if t := e.GetToken(); t != nil && t.Position != nil {
			at.Line, at.Col = t.Position.Line, t.Position.Column
		}
	}
	return &Error{At: at, Msg: "this is not YAML: " + msg, Err: err}
}

// pairs calls f for each entry of a mapping.
func (r reader) pairs(n ast.Node, what string, f func(key string, at, val ast.Node) error) error {
	m, ok := n.(*ast.MappingNode)
	if !ok {
		return r.errorf(n, "%s is written as name: value lines, not as %s", what, kindOf(n))
	}
	for _, p := range m.Values {
		key, ok := p.Key.(*ast.StringNode)
		if !ok {
			return r.errorf(p.Key, "a name is plain text here, not %s", kindOf(p.Key))
		}
		if err := f(key.Value, key, p.Value); err != nil {
			return err
		}
	}
	return nil
}

// items calls f for each item of a list, or for a single value that is none.
func (r reader) items(n ast.Node, f func(n ast.Node) error) error {
	s, ok := n.(*ast.SequenceNode)
	if !ok {
		return f(n)
	}
	for _, v := range s.Values {
		if err := f(v); err != nil {
			return err
		}
	}
	return nil
}

// scalar is a value's text as it was written, whatever YAML thinks its type is:
// sizes and modes have types of their own.
func (r reader) scalar(n ast.Node, what string) (Text, error) {
	switch n := n.(type) {
	case *ast.StringNode:
		return Text{n.Value, r.place(n)}, nil
	case *ast.LiteralNode:
		return Text{n.Value.Value, r.place(n)}, nil
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return Text{n.GetToken().Value, r.place(n)}, nil
	}
	return Text{}, r.errorf(n, "%s is one value, not %s", what, kindOf(n))
}

func kindOf(n ast.Node) string {
	switch n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping"
	case *ast.SequenceNode:
		return "a list"
	case *ast.NullNode:
		return "nothing"
	case *ast.AnchorNode, *ast.AliasNode, *ast.MergeKeyNode:
		return "an anchor or alias: write it out, or say it once at the top for all disks"
	case *ast.TagNode:
		return "a tagged value"
	}
	return "one value"
}

// top reads the file's settings and disks.
func (r reader) top(l *Layer, n ast.Node) error {
	return r.pairs(n, "a configuration", func(key string, at, val ast.Node) error {
		if key == "disks" {
			return r.items(val, func(n ast.Node) error { return r.disk(l, n) })
		}
		if Find(key) == nil {
			return r.errorf(at, "there is no setting %q: %s", key, oneOf(key, append([]string{"disks"}, Names(false)...)))
		}
		if key == "export" || key == "vhost-user" {
			return r.errorf(at, "%s stands at a disk: move it below disks", key)
		}
		return r.setting(&l.Settings, key, val)
	})
}

// setting reads the value or values of one setting.
func (r reader) setting(to *map[string][]Text, key string, val ast.Node) error {
	s := Find(key)
	if _, list := val.(*ast.SequenceNode); list && !s.Many {
		return r.errorf(val, "%s is one value, not a list", key)
	}
	return r.items(val, func(n ast.Node) error {
		v, err := r.scalar(n, key)
		if err != nil {
			return err
		}
		if err := s.Check(v); err != nil {
			return err
		}
		if *to == nil {
			*to = map[string][]Text{}
		}
		(*to)[key] = append((*to)[key], v)
		return nil
	})
}

// disk reads one item of disks: a path, or a mapping.
func (r reader) disk(l *Layer, n ast.Node) error {
	if len(l.Disks) == MaxDisks {
		return r.errorf(n, "there are more than %d disks, the most that one daemon serves", MaxDisks)
	}
	d := DiskLayer{At: r.place(n)}
	if s, ok := n.(*ast.StringNode); ok {
		d.Path = Text{s.Value, r.place(n)}
	} else if err := r.pairs(n, "a disk", func(key string, at, val ast.Node) error { return r.diskKey(&d, key, at, val) }); err != nil {
		return err
	} else if m := n.(*ast.MappingNode); len(m.Values) > 0 {
		d.At = r.place(m.Values[0].Key)
	}
	if d.Path.Value == "" {
		return errorAt(d.At, "a disk has no path: write path: FILE, a URI such as mem:1G, or node: with a driver's options")
	}
	l.Disks = append(l.Disks, d)
	return nil
}

// diskKey reads one line of a disk.
func (r reader) diskKey(d *DiskLayer, key string, at, val ast.Node) (err error) {
	switch key {
	case "path":
		if d.Path.Value != "" {
			return r.errorf(at, "path and node are two ways to say the same: leave one away")
		}
		d.Path, err = r.scalar(val, key)
	case "name":
		d.Name, err = r.scalar(val, key)
	case "node":
		if d.Path.Value != "" {
			return r.errorf(at, "path and node are two ways to say the same: leave one away")
		}
		var vals block.Values
		if vals, err = r.options(val); err == nil && vals["driver"] == "" {
			return r.errorf(val, "the description of a node begins with driver: and has the driver's options")
		}
		d.Path = Text{vals.String(), r.place(val)}
	case "options":
		d.Options, err = r.options(val)
	case "export":
		return r.items(val, func(n ast.Node) error { return r.export(d, n) })
	case "vhost-user":
		return r.items(val, func(n ast.Node) error { return r.vhostUser(d, n) })
	default:
		if s := Find(key); s == nil || !s.Disk() {
			return r.errorf(at, "a disk has no setting %q: %s", key, oneOf(key, append([]string{"path", "name", "node", "options"}, Names(true)...)))
		}
		return r.setting(&d.Settings, key, val)
	}
	return err
}

// export reads one export of a disk: a name, or a mapping.
func (r reader) export(d *DiskLayer, n ast.Node) error {
	e := Export{At: r.place(n)}
	if s, ok := n.(*ast.StringNode); ok {
		e.Name = s.Value
	} else if err := r.pairs(n, "an export", func(key string, at, val ast.Node) error {
		v, err := r.scalar(val, key)
		if err != nil {
			return err
		}
		return e.set(key, v, r.place(at))
	}); err != nil {
		return err
	}
	d.Exports = append(d.Exports, e)
	return nil
}

// vhostUser reads one way to offer a disk over vhost-user: as a flag has it, or
// a mapping.
func (r reader) vhostUser(d *DiskLayer, n ast.Node) (err error) {
	v := VhostUser{At: r.place(n)}
	if s, ok := n.(*ast.StringNode); ok {
		v, err = parseVhostUser(Text{s.Value, r.place(n)})
	} else if err = r.pairs(n, "vhost-user", func(key string, at, val ast.Node) error {
		x, err := r.scalar(val, key)
		if err != nil {
			return err
		}
		return v.set(key, x, r.place(at))
	}); err == nil {
		err = v.check()
	}
	d.VhostUsers = append(d.VhostUsers, v)
	return err
}

// options reads a tree of a driver's options.
func (r reader) options(n ast.Node) (block.Values, error) {
	vals := block.Values{}
	return vals, r.flatten(vals, "", n, 0)
}

func (r reader) flatten(vals block.Values, prefix string, n ast.Node, depth int) error {
	if depth > block.MaxOptionDepth {
		return r.errorf(n, "options are nested deeper than %d", block.MaxOptionDepth)
	}
	return r.pairs(n, "options", func(key string, at, val ast.Node) error {
		name := prefix + key
		switch val := val.(type) {
		case *ast.MappingNode:
			return r.flatten(vals, name+".", val, depth+1)
		case *ast.SequenceNode:
			for i, e := range val.Values {
				v, err := r.scalar(e, name)
				if err != nil {
					return err
				}
				vals[name+"."+strconv.Itoa(i)] = v.Value
			}
			return nil
		}
		v, err := r.scalar(val, name)
		if err != nil {
			return err
		}
		if on, ok := parseBool(v.Value); ok {
			v.Value = map[bool]string{true: "on", false: "off"}[on]
		}
		if _, twice := vals[name]; twice {
			return r.errorf(at, "option %s is given twice", name)
		}
		vals[name] = v.Value
		return nil
	})
}
