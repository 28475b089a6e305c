package block

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"syscall"
)

// Values are the options of one node and, under dotted names, of the nodes
// below it: {"driver": "raw", "file.driver": "file", "file.filename": "a"}.
type Values map[string]string

// OptType says how an option's value is written.
type OptType uint8

// The types of options.
const (
	OptString OptType = iota
	OptBool           // on or off
	OptSize           // bytes, with an optional suffix: 4096, 64K, 1.5G
	OptInt
	OptEnum // one of Enum
	OptNode // a child: a node's name, or options under NAME.…
)

// Option describes one option of a driver: data, so that help, validation,
// completion and documentation come from one place.
type Option struct {
	Name, Help string
	Type       OptType
	Default    string
	Enum       []string
	Required   bool
}

// MaxOptionText bounds a description of a disk in bytes, and MaxOptions the
// number of values in it.
const (
	MaxOptionText = 1 << 20
	MaxOptions    = 4096
)

// ParseOptions reads the comma form, driver=file,filename=disk.img: a comma in
// a value is doubled. A bare name means name=on.
func ParseOptions(s string) (Values, error) {
	if len(s) > MaxOptionText {
		return nil, errOptionText(len(s))
	}
	vals := Values{}
	for s != "" {
		var item string
		item, s = cutItem(s)
		k, v, ok := strings.Cut(item, "=")
		if !ok {
			v = "on"
		}
		if err := vals.add(k, v); err != nil {
			return nil, err
		}
	}
	return vals, nil
}

func errOptionText(n int) error {
	return Errorf(syscall.EINVAL, "the description of a disk is %d bytes long; the most is %d", n, MaxOptionText)
}

// add enters a value that must be the only one of its name.
func (v Values) add(name, x string) error {
	if _, dup := v[name]; dup {
		return Errorf(syscall.EINVAL, "option %q is given twice", name)
	}
	if name == "" || strings.ContainsAny(name, "=,") {
		return Errorf(syscall.EINVAL, "%q is no name of an option; write name=value,name=value", name)
	}
	if len(v) == MaxOptions {
		return Errorf(syscall.EINVAL, "the description of a disk has more than %d options", MaxOptions)
	}
	v[name] = x
	return nil
}

// cutItem takes the text up to the first single comma.
func cutItem(s string) (item, rest string) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == ',' {
			if i+1 == len(s) || s[i+1] != ',' {
				return b.String(), s[i+1:]
			}
			i++
		}
		b.WriteByte(s[i])
	}
	return b.String(), ""
}

// MaxOptionDepth bounds how deep nodes may be nested in one description.
const MaxOptionDepth = 64

// ParseJSONOptions reads the object form, {"driver":"raw","file":{…}}; what
// the reference writes after json:.
func ParseJSONOptions(text []byte) (Values, error) {
	if len(text) > MaxOptionText {
		return nil, errOptionText(len(text))
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var tree map[string]any
	if err := dec.Decode(&tree); err != nil {
		return nil, Errorf(syscall.EINVAL, "the JSON description of a disk does not parse: %v", err)
	}
	if tree == nil {
		return nil, Errorf(syscall.EINVAL, "the JSON description of a disk is null; write an object, {\"driver\": …}")
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, Errorf(syscall.EINVAL, "there is text after the JSON description of a disk")
	}
	return FlattenOptions(tree)
}

// FlattenOptions turns a tree of options, as from YAML, into Values. Null, which
// says that there is no such node, becomes the empty value.
func FlattenOptions(tree map[string]any) (Values, error) {
	vals := Values{}
	if err := vals.flatten("", tree, 0); err != nil {
		return nil, err
	}
	return vals, nil
}

func (v Values) flatten(prefix string, tree map[string]any, depth int) error {
	if depth > MaxOptionDepth {
		return Errorf(syscall.EINVAL, "the description of a disk is nested deeper than %d", MaxOptionDepth)
	}
	// In order, so that of two errors the same is reported each time.
	for _, k := range slices.Sorted(maps.Keys(tree)) {
		if err := v.flattenOne(prefix+k, tree[k], depth); err != nil {
			return err
		}
	}
	return nil
}

func (v Values) flattenOne(name string, x any, depth int) error {
	switch x := x.(type) {
	case map[string]any:
		return v.flatten(name+".", x, depth+1)
	case []any:
		list := make(map[string]any, len(x))
		for i, e := range x {
			list[strconv.Itoa(i)] = e
		}
		return v.flatten(name+".", list, depth+1)
	case string:
		return v.add(name, x)
	case bool:
		return v.add(name, onOff(x))
	case nil:
		return v.add(name, "")
	case json.Number:
		return v.add(name, x.String())
	case int, int64, uint64, float64:
		return v.add(name, fmt.Sprint(x))
	}
	return Errorf(syscall.EINVAL, "option %q: a value of this kind (%T) is not possible here", name, x)
}

func onOff(b bool) string {
	if b {
		return "on"
	}
	return "off"
}

// Sub is the options under name, without that prefix; nil where there are none.
func (v Values) Sub(name string) Values {
	var sub Values
	for k, x := range v {
		if rest, ok := strings.CutPrefix(k, name+"."); ok {
			if sub == nil {
				sub = Values{}
			}
			sub[rest] = x
		}
	}
	return sub
}

// String writes the comma form, driver first, for messages and commands.
func (v Values) String() string {
	keys := make([]string, 0, len(v))
	for k := range v {
		keys = append(keys, k)
	}
	sort.Slice(keys, func(i, j int) bool {
		if (keys[i] == "driver") != (keys[j] == "driver") {
			return keys[i] == "driver"
		}
		return keys[i] < keys[j]
	})
	for i, k := range keys {
		keys[i] = k + "=" + strings.ReplaceAll(v[k], ",", ",,")
	}
	return strings.Join(keys, ",")
}

// sizeForm is how a size is written: digits, a fraction, a suffix.
var sizeForm = regexp.MustCompile(`^([0-9]+)(\.[0-9]+)?(?:([KMGTPEkmgtpe])(?:[iI]?[bB])?|[bB])?$`)

// ParseSize reads a size in bytes: digits, and a suffix K, M, G, T, P or E
// (powers of 1024; B or iB may follow), before which there may be a fraction.
func ParseSize(s string) (int64, error) {
	if n, ok := parseSize(strings.TrimSpace(s)); ok {
		return n, nil
	}
	if len(s) > 64 {
		s = s[:64] + "…"
	}
	return 0, Errorf(syscall.EINVAL, "%q is not a size: write bytes, or a number with K, M, G, T, P or E, below 8E", s)
}

func parseSize(s string) (int64, bool) {
	m := sizeForm.FindStringSubmatch(s)
	if m == nil || m[2] != "" && m[3] == "" {
		return 0, false // no part of a byte
	}
	shift := 0
	if m[3] != "" {
		shift = 10 * (strings.Index("KMGTPE", strings.ToUpper(m[3])) + 1)
	}
	if m[2] == "" {
		n, err := strconv.ParseInt(m[1], 10, 64)
		return n << shift, err == nil && n <= math.MaxInt64>>shift
	}
	f, err := strconv.ParseFloat(m[1]+m[2], 64)
	f *= float64(int64(1) << shift)
	return int64(f), err == nil && f < 1<<63
}

// FormatSize writes a size for people: 1 GiB, 1.5 MiB, 1000 bytes.
func FormatSize(n int64) string {
	if n < 1024 {
		return fmt.Sprintf("%d bytes", n)
	}
	f, unit := float64(n), 0
	for f >= 1024 && unit < 6 {
		f, unit = f/1024, unit+1
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", f), ".0") + " " + "KMGTPE"[unit-1:unit] + "iB"
}

// Options are a driver's options as given, checked and with defaults: what
// Driver.Open reads.
type Options struct {
	spec []Option
	vals Values
}

// Check validates vals against the driver's table of options for opening:
// unknown names, missing ones, wrong values.
func (d *Driver) Check(vals Values) (*Options, error) { return d.checkAgainst(d.Options, vals) }

// CheckCreate validates vals against the table for creating.
func (d *Driver) CheckCreate(vals Values) (*Options, error) {
	return d.checkAgainst(d.CreateOptions, vals)
}

// HasCreateOption reports whether the driver's table for creating has name.
func (d *Driver) HasCreateOption(name string) bool { return findOption(d.CreateOptions, name) != nil }

func (d *Driver) checkAgainst(spec []Option, vals Values) (*Options, error) {
	for _, k := range slices.Sorted(maps.Keys(vals)) {
		x := vals[k]
		if k == "driver" || k == "node-name" || isNested(spec, k) {
			continue
		}
		o := findOption(spec, k)
		if o == nil {
			return nil, Errorf(syscall.EINVAL, "driver %s has no option %q; it has: %s", d.Name, k, optionNames(spec))
		}
		if err := o.check(x); err != nil {
			return nil, fmt.Errorf("driver %s, option %s: %w", d.Name, k, err)
		}
	}
	for _, o := range spec {
		_, given := vals[o.Name]
		switch nested := o.Type == OptNode && vals.Sub(o.Name) != nil; {
		case o.Required && !given && !nested:
			return nil, Errorf(syscall.EINVAL, "driver %s needs the option %q (%s)", d.Name, o.Name, o.Help)
		case given && nested:
			return nil, Errorf(syscall.EINVAL, "driver %s, option %s: it names a node and describes one (%s.…); give one of both", d.Name, o.Name, o.Name)
		}
	}
	return &Options{spec, vals}, nil
}

// isNested reports whether k belongs to the node under one of the options.
func isNested(spec []Option, k string) bool {
	name, _, nested := strings.Cut(k, ".")
	o := findOption(spec, name)
	return nested && o != nil && o.Type == OptNode
}

func findOption(spec []Option, name string) *Option {
	i := slices.IndexFunc(spec, func(o Option) bool { return o.Name == name })
	if i < 0 {
		return nil
	}
	return &spec[i]
}

func optionNames(spec []Option) string {
	var names []string
	for _, o := range spec {
		names = append(names, o.Name)
	}
	return strings.Join(names, ", ")
}

func (o *Option) check(x string) error {
	switch o.Type {
	case OptBool:
		if x != "on" && x != "off" {
			return Errorf(syscall.EINVAL, "%q is neither on nor off", x)
		}
	case OptSize:
		_, err := ParseSize(x)
		return err
	case OptInt:
		if _, err := strconv.ParseInt(x, 10, 64); err != nil {
			return Errorf(syscall.EINVAL, "%q is not a whole number", x)
		}
	case OptEnum:
		if !slices.Contains(o.Enum, x) {
			return Errorf(syscall.EINVAL, "%q is not possible; choose one of %s", x, strings.Join(o.Enum, ", "))
		}
	}
	return nil
}

// Has reports whether the user gave the option.
func (o *Options) Has(name string) bool { _, ok := o.vals[name]; return ok }

// HasNested reports whether the user described a node under the option.
func (o *Options) HasNested(name string) bool { return o.vals.Sub(name) != nil }

// String is the option's value or its default. Asking for an option that the
// driver's table lacks panics.
func (o *Options) String(name string) string {
	spec := findOption(o.spec, name)
	if spec == nil {
		panic("block: option " + name + " is not in the driver's table")
	}
	if x, ok := o.vals[name]; ok {
		return x
	}
	return spec.Default
}

// Bool is the value of an on/off option.
func (o *Options) Bool(name string) bool { return o.String(name) == "on" }

// Size is the value in bytes, 0 where neither value nor default is there.
func (o *Options) Size(name string) int64 {
	n, _ := ParseSize(o.String(name)) // checked before, or empty
	return n
}

// Int is the value of a whole-number option, 0 where it is not there.
func (o *Options) Int(name string) int64 {
	n, _ := strconv.ParseInt(o.String(name), 10, 64) // checked before, or empty
	return n
}
